/// This file defines the stable layers N* of a model: trailing layers whose attention singles out
/// the same important block in document after document (SamKV). Budgets per document are derived
/// from these layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace quire {

/// First and last stable layer, 0-based, inclusive.
struct StableLayers {
  std::int32_t first = 0, last = 0;

  std::int32_t count() const { return last - first + 1; }
  bool contains(std::int32_t layer) const { return layer >= first && layer <= last; }
  bool operator==(const StableLayers&) const = default;
};

/// Returns the stable layers of a model that was not calibrated. These are the published layers for
/// Mistral-7B (28 to 32, 1-based), else the last max(4, ceil(num_layers / 8)), which matches those
/// published for Llama-3.1-8B and Qwen2.5-3B.
inline StableLayers default_stable_layers(std::string_view model_type, std::int32_t num_layers) {
  if (model_type == "mistral" && num_layers == 32) return {27, 31};
  const std::int32_t count = std::min(num_layers, std::max(4, (num_layers + 7) / 8));
  return {num_layers - count, num_layers - 1};
}

}  // namespace quire
