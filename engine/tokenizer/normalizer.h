/// Unicode normalisation form C with a way back to the original bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::tokenizer_internal {

/// From byte offsets of a normalised text to those of its original. Monotonic; 0 and the end map to
/// 0 and the end. Offsets inside a changed range map to the end of that range.
class OffsetMap {
 public:
  struct Changed {
    std::uint32_t to_begin, to_size;      ///< in the normalised text
    std::uint32_t from_begin, from_size;  ///< in the original
  };
  void add(const Changed& range) { ranges_.push_back(range); }
  std::uint32_t original(std::uint32_t normalised) const;

 private:
  std::vector<Changed> ranges_;  ///< ascending
};

/// Writes the NFC of `text` (valid UTF-8) to `out` and how to get back to `map`. False, with `out`
/// untouched, if the text is in NFC already (the usual case, decided without a copy).
bool to_nfc(std::string_view text, std::string& out, OffsetMap& map);

}  // namespace quire::tokenizer_internal
