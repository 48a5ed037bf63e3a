/// Text of which every byte remembers who wrote it: the template, or one of its inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

/// Who wrote a byte: 0 is the template itself, all else is the caller's to give out.
using Mark = char;
constexpr Mark kTemplateMark = 0;

/// UTF-8 with one mark for each byte. `marks` is empty where every byte is the template's.
struct Text {
  std::string bytes, marks;

  Text() = default;
  explicit Text(std::string text, Mark mark = kTemplateMark);

  std::size_t size() const { return bytes.size(); }
  bool empty() const { return bytes.empty(); }
  Mark mark_at(std::size_t at) const { return marks.empty() ? kTemplateMark : marks[at]; }
  void append(const Text& other) { append(other, 0, other.size()); }
  /// other[from, from + count), which must lie within it.
  void append(const Text& other, std::size_t from, std::size_t count);
  void append(std::string_view text, Mark mark = kTemplateMark);
  Text substr(std::size_t from, std::size_t count = std::string::npos) const;
  void clear();
};

/// One character: its bytes [begin, end) and its code point (U+FFFD for a broken byte).
struct Character {
  std::size_t begin, end;
  char32_t code_point;
};
Character character_at(std::string_view text, std::size_t at);
std::size_t num_characters(std::string_view text);
/// Byte offset of the character with this index; the size of the text if there are fewer.
std::size_t offset_of_character(std::string_view text, std::size_t index);
/// What Python's str.isspace() says.
bool is_space(char32_t code_point);

/// As Python's str.strip(): white space, or any character of `*characters`.
Text strip(const Text& text, bool left, bool right, const std::string* characters = nullptr);

}  // namespace quire::jinja
