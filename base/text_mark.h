/// Places of pages and headings in a text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire {

/// TextMark holds from its offset up to the next mark's, or to the end of the text.
struct TextMark {
  std::uint64_t offset = 0;  ///< bytes of UTF-8 from the text's beginning
  std::uint32_t page = 0;    ///< from 1; 0: the format has no pages
  std::string heading;       ///< path of headings, "Chapter 2 > Safety"; empty: none yet
  friend bool operator==(const TextMark&, const TextMark&) = default;
};

/// Returns the mark that holds at `offset`; null before the first. `marks` ascend by offset.
inline const TextMark* mark_at(std::span<const TextMark> marks, std::uint64_t offset) {
  const auto next = std::ranges::upper_bound(marks, offset, {}, &TextMark::offset);
  return next == marks.begin() ? nullptr : &*(next - 1);
}

/// Where a range of a text lies: the pages of its first and last byte, from 1 (0: the format has no
/// pages), and the path of headings at its beginning.
struct TextPlace {
  std::uint32_t page = 0, last_page = 0;
  std::string heading;
  friend bool operator==(const TextPlace&, const TextPlace&) = default;
};
/// Returns the place of the bytes from `begin` up to `end`. Where no mark holds at `begin`, the
/// first one in the range does.
TextPlace place_of(std::span<const TextMark> marks, std::uint64_t begin, std::uint64_t end);

/// Keeps the path of headings while a text is read from its beginning.
class HeadingPath {
 public:
  /// Begins a section of `level`, 1 to 9; deeper headings end.
  void open(int level, std::string title);
  /// "Chapter 2 > Safety"
  std::string path() const;

 private:
  std::vector<std::pair<int, std::string>> open_;
};

}  // namespace quire
