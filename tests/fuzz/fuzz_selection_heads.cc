// The record of a model's retrieval heads, of any bytes, is refused or names heads that the model
// has.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/calibrate/head_calibration.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  constexpr std::int32_t kLayers = 28, kHeads = 12;
  const auto heads = decode_selection_heads({reinterpret_cast<const char*>(data), size}, kLayers,
                                            kHeads);
  if (!heads.ok()) {
    if (heads.status().code() != Code::kCorruption || heads.status().message().empty())
      std::abort();
    return 0;
  }
  if (heads->empty()) std::abort();
  for (const SelectionHeads::Head& h : heads->heads) {
    if (h.layer < 0 || h.layer >= kLayers || h.head < 0 || h.head >= kHeads) std::abort();
  }
  const auto again = decode_selection_heads(encode_selection_heads(*heads), kLayers, kHeads);
  if (!again.ok() || !(*again == *heads)) std::abort();
  return 0;
}
