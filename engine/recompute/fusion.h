/// Blending new KV with stored KV (SamKV, Eq. 4).
#pragma once

#include <span>

namespace quire {

/// theta = clamp(cos(fresh, stored), 0, 1): what is kept of `fresh`. 0 when either is zero or not
/// finite: nothing says they agree.
float fusion_weight(std::span<const float> fresh, std::span<const float> stored);
/// fresh <- theta * fresh + (1 - theta) * stored. Exact for theta 0 and 1, and wherever the two are
/// equal.
void fuse(std::span<float> fresh, std::span<const float> stored, float theta);

}  // namespace quire
