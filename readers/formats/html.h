/// HTML to text with Markdown's headings, for the readers of formats that hold HTML.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "readers/read_document.h"

namespace quire {

/// Returns the text of a page in UTF-8: headings, paragraphs, lists, tables and code. Scripts,
/// styles, forms, menus and what is hidden are left out. The title is that of <title>, else that of
/// the first <h1>. A page without text gives an empty one. Errors: kInvalidArgument (no HTML).
Result<ReadDocument> document_of_html(std::string_view utf8);

/// Returns the encoding that a page declares in its first bytes, or an empty text.
std::string declared_html_encoding(std::string_view bytes);

}  // namespace quire
