#include "kernels/rows/cpu/rows.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows/cpu/rows.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

constexpr std::int64_t kMaxHeadDim = 256;

void RmsNormRows(const RmsNormArgs& a, std::int64_t begin, std::int64_t end) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.dim;
    float* out = a.out + r * a.dim;
    auto s0 = hn::Zero(d), s1 = hn::Zero(d);
    std::int64_t c = 0;
    for (; c + 2 * lanes <= a.dim; c += 2 * lanes) {
      const auto v0 = hn::LoadU(d, x + c), v1 = hn::LoadU(d, x + c + lanes);
      s0 = hn::MulAdd(v0, v0, s0);
      s1 = hn::MulAdd(v1, v1, s1);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
    for (; c < a.dim; ++c) sum += x[c] * x[c];
    const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(a.dim) + a.eps);
    for_each_vector(a.dim, [&](auto dv, std::int64_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::LoadU(dv, x + i), hn::Set(dv, inverse));
      hn::StoreU(hn::Mul(scaled, hn::LoadU(dv, a.weight + i)), dv, out + i);
    });
  }
}

void LayerNormRows(const LayerNormArgs& a, std::int64_t begin, std::int64_t end) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto dim = static_cast<float>(a.dim);
  for (std::int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.dim;
    float* out = a.out + r * a.dim;
    auto sums = hn::Zero(d);
    std::int64_t c = 0;
    for (; c + lanes <= a.dim; c += lanes) sums = hn::Add(sums, hn::LoadU(d, x + c));
    float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (; c < a.dim; ++c) sum += x[c];
    const float mean = sum / dim;
    auto squares = hn::Zero(d);
    for (c = 0; c + lanes <= a.dim; c += lanes) {
      const auto v = hn::Sub(hn::LoadU(d, x + c), hn::Set(d, mean));
      squares = hn::MulAdd(v, v, squares);
    }
    float square = hn::GetLane(hn::SumOfLanes(d, squares));
    for (; c < a.dim; ++c) square += (x[c] - mean) * (x[c] - mean);
    const float inverse = 1.0f / std::sqrt(square / dim + a.eps);
    for_each_vector(a.dim, [&](auto dv, std::int64_t i) HWY_ATTR {
      const auto centred = hn::Sub(hn::LoadU(dv, x + i), hn::Set(dv, mean));
      const auto scaled = hn::Mul(centred, hn::Set(dv, inverse));
      hn::StoreU(hn::MulAdd(scaled, hn::LoadU(dv, a.weight + i), hn::LoadU(dv, a.bias + i)), dv,
                 out + i);
    });
  }
}

/// The tail of the normal distribution is that of erfc() in Abramowitz and Stegun, 7.1.26.
void GeluRange(float* x, std::int64_t begin, std::int64_t end) {
  for_each_vector(end - begin, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + begin + i), one = hn::Set(d, 1.0f);
    const auto z = hn::Mul(hn::Abs(v), hn::Set(d, 0.70710678f));
    const auto t = hn::Div(one, hn::MulAdd(z, hn::Set(d, 0.3275911f), one));
    auto p = hn::Set(d, 1.061405429f);
    p = hn::MulAdd(p, t, hn::Set(d, -1.453152027f));
    p = hn::MulAdd(p, t, hn::Set(d, 1.421413741f));
    p = hn::MulAdd(p, t, hn::Set(d, -0.284496736f));
    p = hn::MulAdd(p, t, hn::Set(d, 0.254829592f));
    const auto erfc = hn::Mul(hn::Mul(p, t), fast_exp(d, hn::Neg(hn::Mul(z, z))));
    const auto tail = hn::Mul(erfc, hn::Set(d, 0.5f));
    const auto below = hn::IfThenElse(hn::Lt(v, hn::Zero(d)), tail, hn::Sub(one, tail));
    hn::StoreU(hn::Mul(v, below), d, x + begin + i);
  });
}

void SwigluRows(const SwigluArgs& a, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const float* gate = a.gate_up + r * 2 * a.dim;
    const float* up = gate + a.dim;
    float* out = a.out + r * a.dim;
    for_each_vector(a.dim, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto g = hn::LoadU(d, gate + i);
      // exp(-|g|) cannot overflow: silu = g / (1 + e) for g >= 0, else g * e / (1 + e).
      const auto e = fast_exp(d, hn::Neg(hn::Abs(g)));
      const auto numerator = hn::IfThenElse(hn::Lt(g, hn::Zero(d)), hn::Mul(g, e), g);
      const auto silu = hn::Div(numerator, hn::Add(hn::Set(d, 1.0f), e));
      hn::StoreU(hn::Mul(silu, hn::LoadU(d, up + i)), d, out + i);
    });
  }
}

void AddRange(float* x, const float* y, std::int64_t begin, std::int64_t end) {
  for_each_vector(end - begin, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Add(hn::LoadU(d, x + begin + i), hn::LoadU(d, y + begin + i)), d, x + begin + i);
  });
}

/// Computes out = rot(x) for one head; x may be out.
HWY_INLINE void RotateHead(const RopeConfig& config, const float* cos, const float* sin,
                           const float* x, float* out) {
  const std::int64_t half = config.rotary_dim / 2;
  if (config.interleaved) {
    for (std::int64_t c = 0; c < half; ++c) {
      const float a = x[2 * c], b = x[2 * c + 1];
      out[2 * c] = a * cos[c] - b * sin[c];
      out[2 * c + 1] = b * cos[c] + a * sin[c];
    }
  } else {
    for_each_vector(half, [&](auto d, std::int64_t c) HWY_ATTR {
      const auto a = hn::LoadU(d, x + c), b = hn::LoadU(d, x + half + c);
      const auto co = hn::LoadU(d, cos + c), si = hn::LoadU(d, sin + c);
      hn::StoreU(hn::NegMulAdd(b, si, hn::Mul(a, co)), d, out + c);
      hn::StoreU(hn::MulAdd(a, si, hn::Mul(b, co)), d, out + half + c);
    });
  }
  for (std::int64_t c = 2 * half; c < config.head_dim; ++c) out[c] = x[c];
}

void RopeRows(const RopeTable& table, const RopeRotateArgs& a, std::int64_t begin,
              std::int64_t end) {
  const RopeConfig& config = table.config();
  for (std::int64_t r = begin; r < end; ++r) {
    const float* cos = table.cos_row(a.positions[r]);
    const float* sin = table.sin_row(a.positions[r]);
    for (std::int64_t h = 0; h < a.num_heads; ++h) {
      RotateHead(config, cos, sin, a.x + r * a.ldx + h * config.head_dim,
                 a.out + r * a.ldo + h * config.head_dim);
    }
  }
}

template <class Tag>
HWY_INLINE void LoadRow(Tag tag, const void* src, float* out, std::int64_t n) {
  const auto* p = static_cast<const typename Tag::Type*>(src);
  for_each_vector(n, [&](auto d, std::int64_t i)
                         HWY_ATTR { hn::StoreU(load_as_f32(d, tag, p + i), d, out + i); });
}
template <class Tag>
HWY_INLINE void StoreRow(Tag tag, const float* x, void* dst, std::int64_t n) {
  auto* p = static_cast<typename Tag::Type*>(dst);
  for_each_vector(n, [&](auto d, std::int64_t i)
                         HWY_ATTR { store_from_f32(d, tag, hn::LoadU(d, x + i), p + i); });
}

template <class SrcTag, class DstTag>
HWY_INLINE void PlaceRows(SrcTag src_tag, DstTag dst_tag, const RopeTable& table,
                          const KvPlaceArgs& a, std::int64_t begin, std::int64_t end) {
  HWY_ALIGN float row[kMaxHeadDim];
  const std::int64_t dim = a.dst.head_dim;
  const auto* src = static_cast<const std::byte*>(a.src.data);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t dst_row = a.dst_rows != nullptr ? a.dst_rows[r] : a.first_dst_row + r;
    std::byte* dst = static_cast<std::byte*>(a.dst.pages[dst_row / kPageTokens]) +
                     (dst_row % kPageTokens) * a.dst.token_stride;
    const float* cos = table.cos_row(a.positions[r]);
    const float* sin = table.sin_row(a.positions[r]);
    for (std::int64_t h = 0; h < a.dst.num_kv_heads; ++h) {
      const std::byte* s = src + h * a.src.head_stride + r * a.src.row_stride;
      std::byte* o = dst + h * a.dst.head_stride;
      LoadRow(src_tag, s, row, dim);
      RotateHead(table.config(), cos, sin, row, row);
      StoreRow(dst_tag, row, o, dim);
      LoadRow(src_tag, s + a.src.kv_stride, row, dim);
      StoreRow(dst_tag, row, o + a.dst.kv_stride, dim);
    }
  }
}

void KvPlaceRows(const RopeTable& table, const KvPlaceArgs& a, std::int64_t begin,
                 std::int64_t end) {
  with_dtype(a.src.dtype, [&](auto s) HWY_ATTR {
    with_dtype(a.dst.dtype, [&](auto t) HWY_ATTR { PlaceRows(s, t, table, a, begin, end); });
  });
}

void KvPackRows(const KvPackArgs& a, std::int64_t begin, std::int64_t end) {
  with_dtype(a.dtype, [&](auto tag) HWY_ATTR {
    const std::int64_t row_bytes = a.head_dim * static_cast<std::int64_t>(dtype_bytes(a.dtype));
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t h = 0; h < a.num_kv_heads; ++h) {
        std::byte* o = static_cast<std::byte*>(a.out) + (h * 2 * a.rows + r) * row_bytes;
        StoreRow(tag, a.k + r * a.ldk + h * a.head_dim, o, a.head_dim);
        StoreRow(tag, a.v + r * a.ldv + h * a.head_dim, o + a.rows * row_bytes, a.head_dim);
      }
    }
  });
}

template <class Tag>
HWY_INLINE void SummariseHead(Tag tag, const RopeTable& table, const BlockSummaryArgs& a,
                              std::int64_t h) {
  HWY_ALIGN float row[kMaxHeadDim], sum[kMaxHeadDim], lo[kMaxHeadDim], hi[kMaxHeadDim];
  const std::int64_t dim = a.head_dim;
  for (std::int64_t c = 0; c < dim; ++c) {
    sum[c] = 0;
    lo[c] = std::numeric_limits<float>::infinity();
    hi[c] = -std::numeric_limits<float>::infinity();
  }
  for (std::int64_t r = 0; r < a.raw.num_rows; ++r) {
    LoadRow(
        tag,
        static_cast<const std::byte*>(a.raw.data) + h * a.raw.head_stride + r * a.raw.row_stride,
        row, dim);
    RotateHead(table.config(), table.cos_row(a.first_position + r),
               table.sin_row(a.first_position + r), row, row);
    for_each_vector(dim, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto v = hn::LoadU(d, row + i);
      hn::StoreU(hn::Add(hn::LoadU(d, sum + i), v), d, sum + i);
      hn::StoreU(hn::Min(hn::LoadU(d, lo + i), v), d, lo + i);
      hn::StoreU(hn::Max(hn::LoadU(d, hi + i), v), d, hi + i);
    });
  }
  const float scale = 1.0f / static_cast<float>(a.raw.num_rows);
  for (std::int64_t c = 0; c < dim; ++c) {
    if (a.mean != nullptr) a.mean[h * dim + c] = sum[c] * scale;
    if (a.min != nullptr) a.min[h * dim + c] = lo[c];
    if (a.max != nullptr) a.max[h * dim + c] = hi[c];
  }
}

void BlockSummaryHeads(const RopeTable& table, const BlockSummaryArgs& a, std::int64_t begin,
                       std::int64_t end) {
  with_dtype(a.raw.dtype, [&](auto tag) HWY_ATTR {
    for (std::int64_t h = begin; h < end; ++h) SummariseHead(tag, table, a, h);
  });
}

void RowMeanColumns(const float* x, std::int64_t rows, std::int64_t ldx, float* out,
                    std::int64_t begin, std::int64_t end) {
  const float scale = 1.0f / static_cast<float>(rows);
  for_each_vector(end - begin, [&](auto d, std::int64_t i) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::int64_t r = 0; r < rows; ++r)
      sum = hn::Add(sum, hn::LoadU(d, x + r * ldx + begin + i));
    hn::StoreU(hn::Mul(sum, hn::Set(d, scale)), d, out + begin + i);
  });
}

float MaxValue(const float* x, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float none = -std::numeric_limits<float>::infinity();
  auto best = hn::Set(d, none);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    best = hn::IfThenElse(hn::Gt(v, best), v, best);  // a NaN never compares greater
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {
[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch
}
HWY_EXPORT(RmsNormRows);
HWY_EXPORT(LayerNormRows);
HWY_EXPORT(GeluRange);
HWY_EXPORT(SwigluRows);
HWY_EXPORT(AddRange);
HWY_EXPORT(RopeRows);
HWY_EXPORT(KvPlaceRows);
HWY_EXPORT(KvPackRows);
HWY_EXPORT(BlockSummaryHeads);
HWY_EXPORT(RowMeanColumns);
HWY_EXPORT(MaxValue);

void rms_norm_rows(const RmsNormArgs& a, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RmsNormRows)(a, begin, end);
}
void layer_norm_rows(const LayerNormArgs& a, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(LayerNormRows)(a, begin, end);
}
void gelu_range(float* x, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(GeluRange)(x, begin, end);
}
void swiglu_rows(const SwigluArgs& a, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(SwigluRows)(a, begin, end);
}
void add_range(float* x, const float* y, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(AddRange)(x, y, begin, end);
}
void rope_rows(const RopeTable& table, const RopeRotateArgs& a, std::int64_t begin,
               std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RopeRows)(table, a, begin, end);
}
void kv_place_rows(const RopeTable& table, const KvPlaceArgs& a, std::int64_t begin,
                   std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(KvPlaceRows)(table, a, begin, end);
}
void kv_pack_rows(const KvPackArgs& a, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(KvPackRows)(a, begin, end);
}
void block_summary_heads(const RopeTable& table, const BlockSummaryArgs& a, std::int64_t begin,
                         std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(BlockSummaryHeads)(table, a, begin, end);
}
void row_mean_columns(const float* x, std::int64_t rows, std::int64_t ldx, float* out,
                      std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(RowMeanColumns)(x, rows, ldx, out, begin, end);
}
float max_value(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(MaxValue)(x, n); }

}  // namespace quire::cpu
#endif
