#include "engine/sample/automata/character_bytes.h"

#include <array>
#include <cstdio>
#include <string_view>

namespace quire {

void add_utf8(std::uint32_t first, std::uint32_t last, std::vector<BytePiece>& out) {
  for (const std::uint32_t limit : {0x7ffu, 0xffffu}) {
    if (first <= limit && last > limit) {
      add_utf8(first, limit, out);
      return add_utf8(limit + 1, last, out);
    }
  }
  if (first < 0xd800 && last >= 0xd800) add_utf8(first, 0xd7ff, out);
  if (first <= 0xdfff && last > 0xdfff) add_utf8(0xe000, last, out);
  if (first <= 0xdfff && last >= 0xd800) return;
  const int tails = first < 0x800 ? 1 : first < 0x10000 ? 2 : 3;
  for (int i = tails; i > 0; --i) {
    const std::uint32_t low = (1u << (6 * i)) - 1;
    if ((first & ~low) == (last & ~low)) continue;
    if ((first & low) != 0) {
      add_utf8(first, first | low, out);
      return add_utf8((first | low) + 1, last, out);
    }
    if ((last & low) != low) {
      add_utf8(first, (last & ~low) - 1, out);
      return add_utf8(last & ~low, last, out);
    }
  }
  const auto spelled = [tails](std::uint32_t c) {
    std::array<unsigned char, 4> bytes{};
    constexpr std::array<std::uint32_t, 4> kLead = {0, 0xc0, 0xe0, 0xf0};
    bytes[0] = static_cast<unsigned char>(kLead[static_cast<std::size_t>(tails)] |
                                          c >> (6 * tails));
    for (int i = 1; i <= tails; ++i)
      bytes[static_cast<std::size_t>(i)] = static_cast<unsigned char>(
          0x80 | (c >> (6 * (tails - i)) & 0x3f));
    return bytes;
  };
  const auto from = spelled(first), to = spelled(last);
  BytePiece& piece = out.emplace_back();
  for (std::size_t i = 0; i <= static_cast<std::size_t>(tails); ++i)
    piece.emplace_back(from[i], to[i]);
}

bool needs_json_escape(std::uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

std::string json_escape(std::uint32_t c) {
  constexpr std::string_view kShort = "\b\t\n\f\r", kLetters = "btnfr";
  const char byte = static_cast<char>(c);
  const std::size_t at = kShort.find(byte);
  if (c == '"' || c == '\\') return std::string("\\") + byte;
  if (at != std::string_view::npos && c != 0) return std::string("\\") + kLetters[at];
  char text[8];
  std::snprintf(text, sizeof text, "\\u%04x", c);
  return text;
}

}  // namespace quire
