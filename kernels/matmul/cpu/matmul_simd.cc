#include "kernels/matmul/cpu/matmul_kernels.h"

#include <algorithm>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/cpu/matmul_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr std::int64_t kLanes = HWY_LANES(float);
// Columns of two vectors, handled together
constexpr std::int64_t kBlockColumns = std::min<std::int64_t>(2 * kLanes, kPanelColumns);
constexpr int kMaxRows = kLanes >= 16 ? 8 : 4;  // limited by registers

/// Chains of R rows x two vectors, in registers.
template <int R>
struct Block {
  V acc[R][2];

  HWY_INLINE void load(const PanelOutput& out, std::int64_t row, std::int64_t column) {
    const D d;
    HWY_ALIGN float edge[2 * kLanes];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float* from = out.first ? out.bias : out.y + (row + r) * out.ldy;
      if (from == nullptr) {
        acc[r][0] = acc[r][1] = hn::Zero(d);
        continue;
      }
      from += column;
      if (!out.first && column + kBlockColumns > out.columns) {
        for (std::int64_t i = 0; i < kBlockColumns; ++i)
          edge[i] = column + i < out.columns ? from[i] : 0.0f;
        from = edge;
      }
      acc[r][0] = hn::LoadU(d, from);
      acc[r][1] = hn::LoadU(d, from + kLanes);
    }
  }

  HWY_INLINE void store(const PanelOutput& out, std::int64_t row, std::int64_t column) const {
    const D d;
    HWY_ALIGN float edge[2 * kLanes];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* to = out.y + (row + r) * out.ldy + column;
      const bool whole = column + kBlockColumns <= out.columns;
      float* target = whole ? to : edge;
      hn::StoreU(acc[r][0], d, target);
      hn::StoreU(acc[r][1], d, target + kLanes);
      if (!whole) {
        for (std::int64_t i = 0; column + i < out.columns; ++i) to[i] = edge[i];
      }
    }
  }
};

struct F32Panel {
  const float* data;
  std::int64_t k;

  template <int R>
  HWY_INLINE void run(const float* x, std::int64_t ldx, std::int64_t column, Block<R>& b) const {
    const D d;
    const float* w = data + column;
    for (std::int64_t i = 0; i < k; ++i, w += kPanelColumns) {
      __builtin_prefetch(w + 16 * kPanelColumns);
      const V w0 = hn::LoadU(d, w), w1 = hn::LoadU(d, w + kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const V a = hn::Set(d, x[r * ldx + i]);
        b.acc[r][0] = hn::MulAdd(a, w0, b.acc[r][0]);
        b.acc[r][1] = hn::MulAdd(a, w1, b.acc[r][1]);
      }
    }
  }
};

struct Bf16Panel {
  const std::uint16_t* data;
  std::int64_t steps;

  template <int R>
  HWY_INLINE void run(const float* x, std::int64_t ldx, std::int64_t column, Block<R>& b) const {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const auto high = hn::Set(du, 0xffff0000u);
    // Column c of pair p in a step is in tile c / 16 at p * 16 + c % 16, in units of pairs (32
    // bits).
    const std::int64_t second = column + kLanes;
    const auto* w0 = reinterpret_cast<const std::uint32_t*>(data) + column / 16 * 256 + column % 16;
    const auto* w1 = reinterpret_cast<const std::uint32_t*>(data) + second / 16 * 256 + second % 16;
    for (std::int64_t s = 0; s < steps;
         ++s, w0 += kStepElements / 2, w1 += kStepElements / 2, x += kStepInputs) {
      for (std::int64_t p = 0; p < 16; ++p) {
        __builtin_prefetch(w0 + kStepElements / 2 + p * 16);
        __builtin_prefetch(w1 + kStepElements / 2 + p * 16);
        const auto u0 = hn::LoadU(du, w0 + p * 16), u1 = hn::LoadU(du, w1 + p * 16);
        const V even0 = hn::BitCast(d, hn::ShiftLeft<16>(u0)),
                even1 = hn::BitCast(d, hn::ShiftLeft<16>(u1));
        const V odd0 = hn::BitCast(d, hn::And(u0, high)), odd1 = hn::BitCast(d, hn::And(u1, high));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const V a = hn::Set(d, x[r * ldx + 2 * p]), c = hn::Set(d, x[r * ldx + 2 * p + 1]);
          b.acc[r][0] = hn::MulAdd(c, odd0, hn::MulAdd(a, even0, b.acc[r][0]));
          b.acc[r][1] = hn::MulAdd(c, odd1, hn::MulAdd(a, even1, b.acc[r][1]));
        }
      }
    }
  }
};

template <int R, class Panel>
HWY_INLINE void RunRows(const Panel& panel, const float* x, std::int64_t ldx, std::int64_t row,
                        const PanelOutput& out) {
  for (std::int64_t column = 0; column < out.columns; column += kBlockColumns) {
    Block<R> block;
    block.load(out, row, column);
    panel.run(x + row * ldx, ldx, column, block);
    block.store(out, row, column);
  }
}

template <class Panel>
HWY_INLINE void RunPanel(const Panel& panel, const float* x, std::int64_t ldx,
                         const PanelOutput& out) {
  std::int64_t row = 0;
  for (; row + kMaxRows <= out.rows; row += kMaxRows) RunRows<kMaxRows>(panel, x, ldx, row, out);
  if (kMaxRows > 4 && row + 4 <= out.rows) {
    RunRows<4>(panel, x, ldx, row, out);
    row += 4;
  }
  if (row + 2 <= out.rows) {
    RunRows<2>(panel, x, ldx, row, out);
    row += 2;
  }
  if (row < out.rows) RunRows<1>(panel, x, ldx, row, out);
}

void MultiplyPanelF32(const float* x, std::int64_t ldx, const float* panel, std::int64_t k,
                      const PanelOutput& out) {
  RunPanel(F32Panel{panel, k}, x, ldx, out);
}

void MultiplyPanelBf16(const float* x, std::int64_t ldx, const std::uint16_t* panel,
                       std::int64_t steps, const PanelOutput& out) {
  RunPanel(Bf16Panel{panel, steps}, x, ldx, out);
}

void RoundInputs(const float* x, std::int64_t k, std::int64_t padded_k, float* out) {
  for_each_vector(k, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(round_to_bf16(d, hn::LoadU(d, x + i)))), d,
               out + i);
  });
  std::fill(out + k, out + padded_k, 0.0f);
}

void DequantisePanel(const std::byte* records, std::int64_t groups, std::uint16_t* panel) {
  constexpr std::int64_t kWidth = std::min<std::int64_t>(kLanes, 16);
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto half = hn::Set(du, 0x8000u), high = hn::Set(du, 0xffff0000u);
  const auto expand = [&](const std::int8_t* p, auto scale) HWY_ATTR {
    const auto w = hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, p))), scale);
    return hn::Add(hn::BitCast(du, w), half);
  };
  auto* out = reinterpret_cast<std::uint32_t*>(panel);
  for (std::int64_t s = 0; s < 2 * groups; ++s) {
    const std::byte* record = records + s / 2 * kInt8GroupBytes;
    const auto* scales = reinterpret_cast<const float*>(record);
    const auto* q = reinterpret_cast<const std::int8_t*>(record + kInt8ScaleBytes) +
                    s % 2 * kStepElements;
    for (std::int64_t tile = 0; tile < 2; ++tile) {
      for (std::int64_t c = 0; c < 16; c += kWidth) {
        const auto scale = hn::LoadU(d, scales + tile * 16 + c);
        const std::int8_t* from = q + tile * 512 + c;
        std::uint32_t* to = out + (s * 2 + tile) * 256 + c;
        for (std::int64_t p = 0; p < 16; ++p, from += 32, to += 16) {
          __builtin_prefetch(from + 4096);
          const auto even = hn::ShiftRight<16>(expand(from, scale)),
                     odd = hn::And(expand(from + 16, scale), high);
          hn::StoreU(hn::Or(even, odd), du, to);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {
[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch
}
HWY_EXPORT(MultiplyPanelF32);
HWY_EXPORT(MultiplyPanelBf16);
HWY_EXPORT(RoundInputs);
HWY_EXPORT(DequantisePanel);

void multiply_panel_f32(const float* x, std::int64_t ldx, const float* panel, std::int64_t k,
                        const PanelOutput& out) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanelF32)(x, ldx, panel, k, out);
}
void multiply_panel_bf16(const float* x, std::int64_t ldx, const std::uint16_t* panel,
                         std::int64_t steps, const PanelOutput& out) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanelBf16)(x, ldx, panel, steps, out);
}
void round_inputs(const float* x, std::int64_t k, std::int64_t padded_k, float* out) {
  HWY_DYNAMIC_DISPATCH(RoundInputs)(x, k, padded_k, out);
}
void dequantise_panel(const std::byte* records, std::int64_t groups, std::uint16_t* panel) {
  HWY_DYNAMIC_DISPATCH(DequantisePanel)(records, groups, panel);
}

}  // namespace quire::cpu
#endif
