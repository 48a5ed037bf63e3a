// The record of a model's stable layers, of any bytes, is refused or names layers that the model
// has.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/calibrate/stable_layers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  constexpr std::int32_t kLayers = 28;
  const auto layers = decode_stable_layers({reinterpret_cast<const char*>(data), size}, kLayers);
  if (!layers.ok()) {
    if (layers.status().code() != Code::kCorruption || layers.status().message().empty())
      std::abort();
    return 0;
  }
  if (layers->first < 0 || layers->last < layers->first || layers->last >= kLayers) std::abort();
  const auto again = decode_stable_layers(encode_stable_layers(*layers, 3), kLayers);
  if (!again.ok() || again->first != layers->first || again->last != layers->last) std::abort();
  return 0;
}
