#include "base/text_mark.h"

namespace quire {

void HeadingPath::open(int level, std::string title) {
  while (!open_.empty() && open_.back().first >= level) open_.pop_back();
  open_.emplace_back(level, std::move(title));
}

std::string HeadingPath::path() const {
  std::string out;
  for (const auto& [level, title] : open_) {
    if (!out.empty()) out += " > ";
    out += title;
  }
  return out;
}

TextPlace place_of(std::span<const TextMark> marks, std::uint64_t begin, std::uint64_t end) {
  TextPlace out;
  const TextMark* first = mark_at(marks, begin);
  if (!first && !marks.empty() && marks.front().offset < end) first = &marks.front();
  if (!first) return out;
  out.page = out.last_page = first->page;
  out.heading = first->heading;
  if (const TextMark* last = mark_at(marks, end > begin ? end - 1 : begin))
    out.last_page = last->page;
  return out;
}

}  // namespace quire
