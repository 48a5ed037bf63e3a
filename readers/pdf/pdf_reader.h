/// The PDF reader. It is a library of its own, because Poppler's licence is the GPL: only the
/// program quire-reader links it, and only with QUIRE_PDF=ON.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "readers/read_document.h"

namespace quire {

/// Reads the text of all pages, with a mark where each begins and where a section of the outline
/// begins whose title is found on a page. Errors: kInvalidArgument (damaged, or without text, as
/// scanned pages are), kFailedPrecondition (protected by a password).
Result<std::vector<ReadDocument>> read_pdf_pages(std::string_view bytes,
                                                 const ReaderRequest& request);

}  // namespace quire
