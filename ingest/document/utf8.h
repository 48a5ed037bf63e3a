/// UTF-8 checks and code point counts, which JSON strings and chunk cuts depend on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

/// Returns the offset of the first byte that is not part of well-formed UTF-8; none: the text is
/// valid. Overlong forms, surrogates and values above U+10FFFF are malformed.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// Counts the code points of well-formed UTF-8.
std::uint64_t count_code_points(std::string_view text);

/// Returns the largest offset <= pos at which a code point begins (or the end of the text).
inline std::size_t code_point_floor(std::string_view text, std::size_t pos) {
  if (pos >= text.size()) return text.size();
  while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80) --pos;
  return pos;
}

/// Turns byte offsets into code point offsets. It is cheap where each is near the one before.
class CodePointCounter {
 public:
  explicit CodePointCounter(std::string_view text) : text_(text) {}
  /// Returns the code point offset of `byte`. It reads the text from the last place, or from the
  /// beginning where that is nearer, as chunks overlap in long documents.
  std::uint64_t at(std::size_t byte) {
    if (byte > text_.size()) byte = text_.size();
    if (byte < byte_ && byte < byte_ - byte) byte_ = 0, count_ = 0;
    if (byte < byte_)
      count_ -= count_code_points(text_.substr(byte, byte_ - byte));
    else
      count_ += count_code_points(text_.substr(byte_, byte - byte_));
    byte_ = byte;
    return count_;
  }

 private:
  std::string_view text_;
  std::size_t byte_ = 0;
  std::uint64_t count_ = 0;
};

/// Turns ascending code point offsets into byte offsets, reading the text once.
class CodePointSeeker {
 public:
  explicit CodePointSeeker(std::string_view text) : text_(text) {}
  /// Returns the byte at which code point `index` begins; none: the text has fewer. A smaller
  /// `index` than before restarts the count.
  std::optional<std::size_t> at(std::uint64_t index) {
    if (index < count_) byte_ = 0, count_ = 0;
    for (; count_ < index; ++count_) {
      if (byte_ >= text_.size()) return std::nullopt;
      ++byte_;
      while (byte_ < text_.size() && (static_cast<unsigned char>(text_[byte_]) & 0xC0) == 0x80)
        ++byte_;
    }
    return byte_;
  }

 private:
  std::string_view text_;
  std::size_t byte_ = 0;
  std::uint64_t count_ = 0;
};

/// Returns whether the text has only ASCII white space and U+00A0, U+2028, U+2029, U+3000, U+FEFF.
bool is_blank(std::string_view text);

}  // namespace quire
