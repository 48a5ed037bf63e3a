#include "ingest/document/utf8.h"

#include <cstring>

namespace quire {
namespace {

/// Returns the length of the well-formed sequence at `p`; 0: there is none.
std::size_t sequence_length(const unsigned char* p, std::size_t left) {
  const unsigned char c = p[0];
  const auto tail = [&](std::size_t i) { return i < left && (p[i] & 0xC0) == 0x80; };
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return tail(1) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF) {
    if (!tail(1) || !tail(2)) return 0;
    if (c == 0xE0 && p[1] < 0xA0) return 0;  // overlong
    if (c == 0xED && p[1] > 0x9F) return 0;  // surrogate
    return 3;
  }
  if (c >= 0xF0 && c <= 0xF4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if (c == 0xF0 && p[1] < 0x90) return 0;
    if (c == 0xF4 && p[1] > 0x8F) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t i = 0;
  while (i < text.size()) {
    std::uint64_t eight;
    while (i + 8 <= text.size() &&
           (std::memcpy(&eight, p + i, 8), (eight & 0x8080808080808080ull) == 0))
      i += 8;
    if (i >= text.size()) break;
    const std::size_t n = sequence_length(p + i, text.size() - i);
    if (n == 0) return i;
    i += n;
  }
  return std::nullopt;
}

std::uint64_t count_code_points(std::string_view text) {
  std::uint64_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

bool is_blank(std::string_view text) {
  static constexpr std::string_view kWide[] = {"\xC2\xA0", "\xE2\x80\xA8", "\xE2\x80\xA9",
                                               "\xE3\x80\x80", "\xEF\xBB\xBF"};
  while (!text.empty()) {
    const char c = text.front();
    if (c == ' ' || (c >= '\t' && c <= '\r')) {
      text.remove_prefix(1);
      continue;
    }
    bool wide = false;
    for (const auto w : kWide) {
      if (text.substr(0, w.size()) == w) {
        text.remove_prefix(w.size());
        wide = true;
        break;
      }
    }
    if (!wide) return false;
  }
  return true;
}

}  // namespace quire
