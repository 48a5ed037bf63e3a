#include "server/json/mark_codec.h"

#include <boost/json/object.hpp>
#include <cstdint>
#include <limits>
#include <string>

#include "cachestore/format/document.h"
#include "ingest/document/utf8.h"

namespace quire {
namespace json = boost::json;
void read_marks(JsonReader& r, std::string_view text, std::vector<TextMark>& out) {
  if (!r.has("marks")) return;
  const json::array* list = r.array("marks", 0, kMaxMarks);
  if (!list) return;
  out.clear();
  out.reserve(list->size());
  CodePointSeeker seeker(text);
  std::int64_t least = 0;
  std::size_t heading_bytes = 0;
  // A heading that goes on costs memory in each mark, so too many of them are read no further.
  for (std::size_t i = 0; i < list->size() && r.ok() && heading_bytes <= kMaxMarkBytes; ++i) {
    JsonReader one((*list)[i], r.path_of("marks") + "[" + std::to_string(i) + "]");
    std::int64_t start = 0, page = 0;
    TextMark mark;
    if (!out.empty()) mark = out.back(), page = mark.page;
    one.integer("start", start, 0, std::numeric_limits<std::int64_t>::max(), JsonNeed::kRequired);
    one.integer("page", page, 1, std::numeric_limits<std::int32_t>::max());
    one.string("heading", mark.heading, kMaxHeadingBytes);
    one.finish();
    if (one.ok() && start < least)
      one.fail("start", one.path_of("start") + " must not be below that of the mark before it");
    if (one.ok()) {
      least = start;
      const auto byte = seeker.at(static_cast<std::uint64_t>(start));
      if (!byte)
        one.fail("start", one.path_of("start") + " is " + std::to_string(start) +
                              ", past the end of the text");
      mark.offset = byte.value_or(0);
    }
    r.adopt(one.error());
    mark.page = static_cast<std::uint32_t>(page);
    heading_bytes += mark.heading.size();
    out.push_back(std::move(mark));
  }
  if (!r.ok()) return;
  if (const Status s = check_marks(out, text.size()); !s.ok())
    r.fail("marks", r.path_of("marks") + " " + s.message());
}

json::array marks_json(std::span<const TextMark> marks, std::string_view text) {
  json::array out;
  CodePointCounter counter(text);
  const TextMark* last = nullptr;
  for (const TextMark& mark : marks) {
    json::object one{{"start", counter.at(static_cast<std::size_t>(mark.offset))}};
    if (mark.page > 0 && (!last || last->page != mark.page)) one["page"] = mark.page;
    if (!last || last->heading != mark.heading) one["heading"] = mark.heading;
    out.push_back(std::move(one));
    last = &mark;
  }
  return out;
}

}  // namespace quire
