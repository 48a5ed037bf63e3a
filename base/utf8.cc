#include "base/utf8.h"

#include <cstdint>
#include <cstring>

#include "base/index.h"

namespace quire::tokenizer_internal {

int decode_utf8(std::string_view text, char32_t& code_point) {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i) { return i < text.size() && (byte(i) & 0xC0) == 0x80; };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    code_point = lead;
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF && continues(1)) {
    code_point = static_cast<char32_t>((lead & 0x1F) << 6 | (byte(1) & 0x3F));
    return 2;
  }
  if (lead >= 0xE0 && lead <= 0xEF && continues(1) && continues(2)) {
    code_point = static_cast<char32_t>((lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 |
                                       (byte(2) & 0x3F));
    if (code_point < 0x800 || (code_point >= 0xD800 && code_point <= 0xDFFF)) return 0;
    return 3;
  }
  if (lead >= 0xF0 && lead <= 0xF4 && continues(1) && continues(2) && continues(3)) {
    code_point = static_cast<char32_t>((lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 |
                                       (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F));
    if (code_point < 0x10000 || code_point > 0x10FFFF) return 0;
    return 4;
  }
  return 0;
}

void append_utf8(char32_t cp, std::string& out) {
  if (cp < 0x80) {
    out.push_back(static_cast<char>(cp));
  } else if (cp < 0x800) {
    out.push_back(static_cast<char>(0xC0 | cp >> 6));
    out.push_back(static_cast<char>(0x80 | (cp & 0x3F)));
  } else if (cp < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | cp >> 12));
    out.push_back(static_cast<char>(0x80 | (cp >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (cp & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | cp >> 18));
    out.push_back(static_cast<char>(0x80 | (cp >> 12 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (cp >> 6 & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (cp & 0x3F)));
  }
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight = 0;
    if (i + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + i, 8);
      if ((eight & 0x8080808080808080ULL) == 0) {
        i += 8;
        continue;
      }
    }
    char32_t cp = 0;
    const int n = decode_utf8(text.substr(i), cp);
    if (n == 0) break;
    i += to_size(n);
  }
  return i;
}

}  // namespace quire::tokenizer_internal
