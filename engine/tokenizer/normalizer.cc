#include "engine/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "base/index.h"
#include "base/utf8.h"

namespace quire::tokenizer_internal {
namespace {

/// Whether normalisation never changes across the place in front of this code point: it neither
/// reorders with nor composes with what stands before it. Everything below U+0300 is such a place.
/// The starters that do compose with their predecessor are spacing marks and Hangul vowels and
/// finals.
bool begins_segment(char32_t cp) {
  if (cp < 0x300) return true;
  if ((cp >= 0x1161 && cp <= 0x1175) || (cp >= 0x11A8 && cp <= 0x11C2)) return false;
  const utf8proc_property_t* p = utf8proc_get_property(static_cast<utf8proc_int32_t>(cp));
  if (p->combining_class != 0) return false;
  return p->category != UTF8PROC_CATEGORY_MN && p->category != UTF8PROC_CATEGORY_MC &&
         p->category != UTF8PROC_CATEGORY_ME;
}

/// The NFC of a few code points.
std::string compose(std::string_view segment) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(segment.data());
  const auto size = static_cast<utf8proc_ssize_t>(segment.size());
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(bytes, size, &result, kOptions);
  if (n < 0) return std::string(segment);
  std::string out(reinterpret_cast<const char*>(result), to_size(n));
  std::free(result);
  return out;
}

/// End of the segment that begins at `begin`; `plain` tells that it cannot change: one code point
/// below U+0300 or without a decomposition.
std::size_t segment_end(std::string_view text, std::size_t begin, bool& plain) {
  char32_t cp = 0;
  std::size_t i = begin + to_size(std::max(1, decode_utf8(text.substr(begin), cp)));
  plain = cp < 0x300 ||
          utf8proc_get_property(static_cast<utf8proc_int32_t>(cp))->decomp_seqindex == UINT16_MAX;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0xCC) break;  // below U+0300
    const int n = decode_utf8(text.substr(i), cp);
    if (n == 0 || begins_segment(cp)) break;
    plain = false;
    i += to_size(n);
  }
  return i;
}

}  // namespace

std::uint32_t OffsetMap::original(std::uint32_t normalised) const {
  const auto next = std::upper_bound(
      ranges_.begin(), ranges_.end(), normalised,
      [](std::uint32_t at, const Changed& s) { return at < s.to_begin; });
  if (next == ranges_.begin()) return normalised;
  const Changed& s = *(next - 1);
  if (normalised == s.to_begin) return s.from_begin;
  if (normalised < s.to_begin + s.to_size) return s.from_begin + s.from_size;
  return s.from_begin + s.from_size + (normalised - s.to_begin - s.to_size);
}

bool to_nfc(std::string_view text, std::string& out, OffsetMap& map) {
  bool changed = false;
  std::size_t copied = 0;  // text[0, copied) is in `result`
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0x80 &&
        (i + 1 == text.size() || static_cast<unsigned char>(text[i + 1]) < 0xCC)) {
      ++i;
      continue;
    }
    bool plain = false;
    const std::size_t end = segment_end(text, i, plain);
    if (!plain) {
      const std::string_view segment = text.substr(i, end - i);
      const std::string composed = compose(segment);
      if (composed != segment) {
        changed = true;
        result.append(text, copied, i - copied);
        map.add({static_cast<std::uint32_t>(result.size()),
                 static_cast<std::uint32_t>(composed.size()), static_cast<std::uint32_t>(i),
                 static_cast<std::uint32_t>(end - i)});
        result += composed;
        copied = end;
      }
    }
    i = end;
  }
  if (!changed) return false;
  result.append(text, copied, text.size() - copied);
  out = std::move(result);
  return true;
}

}  // namespace quire::tokenizer_internal
