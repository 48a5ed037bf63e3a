/// Pages and headings of a text in JSON: [{"start": code points, "page": 3, "heading": "A > B"}].
#pragma once

#include <boost/json/array.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/text_mark.h"

namespace quire {

/// Reads member `marks` of a document. Offsets become bytes of `text`. A mark without `page` or
/// `heading` keeps that of the mark before it.
void read_marks(JsonReader& r, std::string_view text, std::vector<TextMark>& out);
/// Returns the marks as read_marks() reads them.
boost::json::array marks_json(std::span<const TextMark> marks, std::string_view text);

}  // namespace quire
