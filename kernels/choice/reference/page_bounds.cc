#include "kernels/choice/page_bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace quire {
namespace {

/// Returns the next bf16 in the direction of `to`, or `value` if it is one.
double bf16_towards(double value, double to) {
  if (value == 0) return value;
  int exponent = 0;
  (void)std::frexp(value, &exponent);
  const double step = std::ldexp(1.0, exponent - 8);
  return (to < value ? std::floor(value / step) : std::ceil(value / step)) * step;
}

struct Center {
  double mean = 0, deviation = 0;
};

Center center_of(const PageBoundsArgs& a, const RowRange& rows, std::int64_t head,
                 std::int64_t channel) {
  const auto key = [&](std::int64_t r) {
    return load_f32(static_cast<const std::byte*>(a.kv.pages[r / kPageTokens]) +
                        head * a.kv.head_stride + r % kPageTokens * a.kv.token_stride,
                    a.kv.dtype, channel);
  };
  const auto n = static_cast<double>(rows.end - rows.begin);
  Center out;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) out.mean += key(r) / n;
  for (std::int64_t r = rows.begin; r < rows.end; ++r)
    out.deviation += std::abs(key(r) - out.mean) / n;
  return out;
}

}  // namespace

Status page_bounds_reference(const PageBoundsArgs& a) {
  const std::int64_t d = a.kv.head_dim;
  for (std::int64_t j = 0; j < a.num_pages; ++j) {
    for (std::int64_t m = 0; m < a.kv.num_kv_heads; ++m) {
      for (std::int64_t c = 0; c < d; ++c) {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        for (std::int64_t r = a.pages[j].begin; r < a.pages[j].end; ++r) {
          const auto* key = static_cast<const std::byte*>(a.kv.pages[r / kPageTokens]) +
                            m * a.kv.head_stride + r % kPageTokens * a.kv.token_stride;
          low = std::min<double>(low, load_f32(key, a.kv.dtype, c));
          high = std::max<double>(high, load_f32(key, a.kv.dtype, c));
        }
        std::uint16_t* out = a.bounds + (j * a.kv.num_kv_heads + m) * 2 * d;
        if (a.summary != PageSummary::kExtremes) {
          const Center center = center_of(a, a.pages[j], m, c);
          const double deviation = a.summary == PageSummary::kDeviation ? center.deviation : 0;
          store_f32(out, DType::kBF16, c, static_cast<float>(center.mean - deviation));
          store_f32(out, DType::kBF16, d + c, static_cast<float>(center.mean + deviation));
          continue;
        }
        store_f32(out, DType::kBF16, c,
                  static_cast<float>(bf16_towards(low, -std::numeric_limits<double>::infinity())));
        store_f32(out, DType::kBF16, d + c,
                  static_cast<float>(bf16_towards(high, std::numeric_limits<double>::infinity())));
      }
    }
  }
  return {};
}

Status page_scores_reference(const PageScoresArgs& a) {
  const std::int64_t d = a.head_dim, group = a.num_heads / a.num_kv_heads;
  for (std::int64_t h = 0; h < a.num_heads; ++h) {
    for (std::int64_t j = 0; j < a.num_pages; ++j) {
      const std::uint16_t* bounds = a.bounds + (j * a.num_kv_heads + h / group) * 2 * d;
      double sum = 0;
      for (std::int64_t c = 0; c < d; ++c) {
        const double q = a.q[h * d + c];
        sum += std::max(q * load_f32(bounds, DType::kBF16, c),
                        q * load_f32(bounds, DType::kBF16, d + c));
      }
      a.scores[h * a.ld_scores + j] = static_cast<float>(a.scale * sum);
    }
  }
  return {};
}

}  // namespace quire
