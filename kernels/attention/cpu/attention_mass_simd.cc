#include "kernels/attention/cpu/attention_mass_range.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/attention_mass_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/choice/cpu/key_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

static_assert(kRegisterRows <= kMassRows);

struct MassMemory {
  float *keys, *attention, *query;
};

/// Adds a tile. Row r of the register block is query row min(first + r, rows - 1): rows past the
/// last repeat it, and their results are ignored.
HWY_INLINE void AddTile(const AttentionMassArgs& a, std::int64_t range,
                        const std::int32_t* positions, const MassMemory& w) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  float lse[kMassRows];
  for (std::int64_t h = 0; h < a.num_heads; ++h) {
    const float* k = w.keys + h / group * dim * kMassKeys;
    for (std::int64_t first = 0; first < a.rows; first += kRegisterRows) {
      for (std::int64_t r = 0; r < kRegisterRows; ++r) {
        const std::int64_t row = std::min(first + r, a.rows - 1);
        const float* q = a.q + row * a.ldq + h * dim;
        float* out = w.query + r * dim;
        for_each_vector(dim, [&](auto dv, std::int64_t i) HWY_ATTR {
          hn::StoreU(hn::Mul(hn::LoadU(dv, q + i), hn::Set(dv, a.scale)), dv, out + i);
        });
        const float l = a.lse[row * a.ld_lse + h];
        // The row saw nothing: exp gives 0
        lse[r] = l == -std::numeric_limits<float>::infinity()
                     ? std::numeric_limits<float>::infinity()
                     : l;
      }
      std::fill(w.attention, w.attention + kRegisterRows * kMassKeys, 0.0f);
      for (std::int64_t i = 0; i < kMassKeys; i += 2 * lanes)
        AddProbabilities(w.query, k + i, lse, dim, kMassKeys, w.attention + i);
      const std::int64_t rows = std::min<std::int64_t>(kRegisterRows, a.rows - first);
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto own = hn::Set(di, a.query_positions[first + r]);
        auto sum = hn::Zero(d);
        for (std::int64_t i = 0; i < kMassKeys; i += lanes) {
          const auto seen = hn::Not(hn::Gt(hn::Load(di, positions + i), own));
          sum = hn::Add(sum, hn::IfThenElseZero(hn::RebindMask(d, seen),
                                                hn::Load(d, w.attention + r * kMassKeys + i)));
        }
        a.mass[((first + r) * a.num_heads + h) * a.num_ranges + range] += hn::GetLane(
            hn::SumOfLanes(d, sum));
      }
    }
  }
}

void MassRange(const AttentionMassArgs& a, std::int64_t range, void* scratch) {
  const std::int64_t dim = a.kv.head_dim;
  MassMemory w;
  w.keys = static_cast<float*>(scratch);
  w.attention = w.keys + a.kv.num_kv_heads * dim * kMassKeys;
  w.query = w.attention + kMassRows * kMassKeys;
  HWY_ALIGN std::int32_t positions[kMassKeys];
  for (std::int64_t i = 0; i < a.rows * a.num_heads; ++i) a.mass[i * a.num_ranges + range] = 0.0f;
  const RowRange& s = a.ranges[range];
  for (std::int64_t first = s.begin; first < s.end; first += kMassKeys) {
    const std::int64_t valid = std::min(kMassKeys, s.end - first);
    // Keys past the end get a position after every query.
    for (std::int64_t i = 0; i < kMassKeys; ++i)
      positions[i] = i < valid ? a.kv.positions[first + i]
                               : std::numeric_limits<std::int32_t>::max();
    TurnKeys(a.kv, first, kMassKeys, valid, w.keys);
    AddTile(a, range, positions, w);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {

[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch

HWY_EXPORT(MassRange);

}  // namespace

std::int64_t attention_mass_scratch_bytes(const AttentionMassArgs& a) {
  return (a.kv.num_kv_heads * a.kv.head_dim * kMassKeys + kMassRows * kMassKeys +
          kMassRows * a.kv.head_dim) *
         static_cast<std::int64_t>(sizeof(float));
}

void attention_mass_range(const AttentionMassArgs& args, std::int64_t range, void* scratch) {
  HWY_DYNAMIC_DISPATCH(MassRange)(args, range, scratch);
}

}  // namespace quire::cpu
#endif
