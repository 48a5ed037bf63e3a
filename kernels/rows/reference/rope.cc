#include "kernels/rows/rope.h"

#include "kernels/rows/reference/rotate.h"

namespace quire {

Status rope_rotate_reference(const RopeTable& table, const RopeRotateArgs& a) {
  const std::int64_t d = table.config().head_dim;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t h = 0; h < a.num_heads; ++h) {
      const float* x = a.x + r * a.ldx + h * d;
      const auto y = reference::rotate(table, a.positions[r], std::vector<double>(x, x + d));
      for (std::int64_t c = 0; c < d; ++c) a.out[r * a.ldo + h * d + c] = static_cast<float>(y[c]);
    }
  }
  return {};
}

}  // namespace quire
