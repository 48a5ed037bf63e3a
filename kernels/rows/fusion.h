/// This file blends new KV with stored KV (SamKV, Eq. 4).
#pragma once

#include <span>

namespace quire {

/// Returns theta = clamp(cos(fresh, stored), 0, 1), the weight of `fresh`. It is 0 if either vector
/// is zero or not finite, as nothing then shows that they agree.
float fusion_weight(std::span<const float> fresh, std::span<const float> stored);
/// Sets fresh to theta * fresh + (1 - theta) * stored. The result is exact for theta 0 and 1 and
/// for equal inputs.
void fuse(std::span<float> fresh, std::span<const float> stored, float theta);

}  // namespace quire
