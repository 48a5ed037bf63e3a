#include "kernels/attention/cpu/attention_stats_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/attention_stats_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/choice/cpu/key_tile-inl.h"

// Vector lanes hold keys and query channels are broadcast, so a column's sums never cross lanes and
// grow row by row. The keys of a tile are transposed once for all rows: keys
// [num_kv_heads][head_dim][tile keys]. Rows are processed in blocks that fill the registers. Their
// probabilities are summed over heads in attention [kStatsRows][tile keys] and then added to the
// column sums.

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

static_assert(kStatsRows % kRegisterRows == 0);

struct Memory {
  float *keys, *attention, *query, *log_x, *lse;
};

/// Returns ln x for normal x > 0, within 4e-7 relative (Cephes logf).
template <class D>
HWY_INLINE hn::Vec<D> fast_log(D d, hn::Vec<D> x) {
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, x);
  // X = m * 2^exponent, m in [sqrt(1/2), sqrt(2))
  const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3f3504f3)));
  const auto f = hn::Sub(hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent))),
                         hn::Set(d, 1.0f));
  const auto e = hn::ConvertTo(d, exponent);
  auto p = hn::Set(d, 7.0376836292e-2f);
  p = hn::MulAdd(p, f, hn::Set(d, -1.1514610310e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.1676998740e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, -1.2420140846e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.4249322787e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, -1.6668057665e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.0000714765e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, -2.4999993993e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 3.3333331174e-1f));
  const auto square = hn::Mul(f, f);
  auto y = hn::Mul(hn::Mul(square, f), p);
  y = hn::MulAdd(e, hn::Set(d, -2.12194440e-4f), y);
  y = hn::NegMulAdd(square, hn::Set(d, 0.5f), y);
  return hn::MulAdd(e, hn::Set(d, 0.693359375f), hn::Add(f, y));
}

/// Computes probabilities of `rows` query rows from `first` on, summed over all heads.
HWY_INLINE void SumHeads(const AttentionStatsArgs& a, std::int64_t first, std::int64_t rows,
                         std::int64_t keys, const Memory& w) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  const std::int64_t padded = (rows + kRegisterRows - 1) / kRegisterRows * kRegisterRows;
  std::fill(w.attention, w.attention + padded * keys, 0.0f);
  for (std::int64_t h = 0; h < a.num_heads; ++h) {
    const float* k = w.keys + h / group * dim * keys;
    for (std::int64_t block = 0; block < padded; block += kRegisterRows) {
      for (std::int64_t r = 0; r < kRegisterRows; ++r) {
        float* out = w.query + r * dim;
        // Rows past the last repeat it; their results are ignored.
        const std::int64_t row = first + std::min(block + r, rows - 1);
        const float* q = a.q + row * a.ldq + h * dim;
        for_each_vector(dim, [&](auto dv, std::int64_t i) HWY_ATTR {
          hn::StoreU(hn::Mul(hn::LoadU(dv, q + i), hn::Set(dv, a.scale)), dv, out + i);
        });
        w.lse[r] = a.lse[row * a.ld_lse + h];
      }
      for (std::int64_t i = 0; i < keys; i += 2 * lanes)
        AddProbabilities(w.query, k + i, w.lse, dim, keys, w.attention + block * keys + i);
    }
  }
}

/// Adds the attention of the rows to the columns' sums [keys].
HWY_INLINE void AddToColumns(const AttentionStatsArgs& a, std::int64_t first, std::int64_t rows,
                             std::int64_t first_key, std::int64_t keys, const std::int32_t* late,
                             const Memory& w, double* sum_log, double* sum_x_log,
                             double* sum_late) {
  // Half vectors of f32 fill vectors of f64.
  const hn::ScalableTag<double> d64;
  const hn::Rebind<float, decltype(d64)> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d64));
  const float inverse = 1.0f / static_cast<float>(a.num_heads);
  const std::int64_t last = a.first_row + (first + rows - 1) * a.row_step - first_key;
  // log_x[i] = ln(last - i); a row's distances decrease from key to key.
  const std::int64_t span = (rows - 1) * a.row_step + keys;
  for (std::int64_t i = 0; i < span; ++i)
    w.log_x[i] = last - i >= 1 ? a.log_distance[last - i] : 0.0f;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t behind = (rows - 1 - r) * a.row_step;
    const auto distance = static_cast<std::int32_t>(last - behind);
    for (std::int64_t i = 0; i < keys; i += lanes) {
      const auto x = hn::Sub(hn::Set(di, distance - static_cast<std::int32_t>(i)), hn::Iota(di, 0));
      const auto seen = hn::Gt(x, hn::Zero(di));
      const auto is_late = hn::And(seen, hn::Not(hn::Lt(x, hn::LoadU(di, late + i))));
      const auto p = hn::Mul(hn::LoadU(d, w.attention + r * keys + i), hn::Set(d, inverse));
      auto y = fast_log(d, hn::Max(p, hn::Set(d, kAttentionFloor)));
      y = hn::IfThenElseZero(hn::RebindMask(d, seen), y);
      const auto xy = hn::Mul(y, hn::LoadU(d, w.log_x + behind + i));
      const auto m = hn::IfThenElseZero(hn::RebindMask(d, is_late), p);
      hn::Store(hn::Add(hn::Load(d64, sum_log + i), hn::PromoteTo(d64, y)), d64, sum_log + i);
      hn::Store(hn::Add(hn::Load(d64, sum_x_log + i), hn::PromoteTo(d64, xy)), d64, sum_x_log + i);
      hn::Store(hn::Add(hn::Load(d64, sum_late + i), hn::PromoteTo(d64, m)), d64, sum_late + i);
    }
  }
}

void StatsTile(const AttentionStatsArgs& a, std::int64_t first_key, std::int64_t keys,
               void* scratch) {
  const std::int64_t dim = a.kv.head_dim, column = first_key - a.first_column,
                     valid = std::min(keys, a.num_columns - column);
  Memory w;
  w.keys = static_cast<float*>(scratch);
  w.attention = w.keys + a.kv.num_kv_heads * dim * keys;
  w.query = w.attention + kStatsRows * keys;
  w.lse = w.query + 16 * dim;
  w.log_x = w.lse + 16;
  HWY_ALIGN double sum_log[kStatsMaxKeys], sum_x_log[kStatsMaxKeys], sum_late[kStatsMaxKeys];
  HWY_ALIGN std::int32_t late[kStatsMaxKeys];
  for (std::int64_t i = 0; i < keys; ++i) {
    const bool has = i < valid;
    sum_log[i] = has ? a.sum_log[column + i] : 0.0;
    sum_x_log[i] = has ? a.sum_x_log[column + i] : 0.0;
    sum_late[i] = has ? a.sum_late[column + i] : 0.0;
    late[i] = has ? a.late_distance[column + i] : std::numeric_limits<std::int32_t>::max();
  }
  // Rows before the first one that sees a key of the tile are skipped.
  std::int64_t first = 0;
  if (a.first_row <= first_key) first = (first_key - a.first_row) / a.row_step + 1;
  if (first < a.rows) TurnKeys(a.kv, first_key, keys, valid, w.keys);
  for (; first < a.rows; first += kStatsRows) {
    const std::int64_t rows = std::min(kStatsRows, a.rows - first);
    SumHeads(a, first, rows, keys, w);
    AddToColumns(a, first, rows, first_key, keys, late, w, sum_log, sum_x_log, sum_late);
  }
  for (std::int64_t i = 0; i < valid; ++i) {
    a.sum_log[column + i] = sum_log[i];
    a.sum_x_log[column + i] = sum_x_log[i];
    a.sum_late[column + i] = sum_late[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {

[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch

HWY_EXPORT(StatsTile);

}  // namespace

std::int64_t attention_stats_scratch_bytes(const AttentionStatsArgs& a, std::int64_t keys) {
  const std::int64_t log_x = (kStatsRows - 1) * a.row_step + keys;
  return (a.kv.num_kv_heads * a.kv.head_dim * keys + kStatsRows * keys + 16 * a.kv.head_dim + 16 +
          log_x) *
         static_cast<std::int64_t>(sizeof(float));
}

void attention_stats_tile(const AttentionStatsArgs& args, std::int64_t first_key, std::int64_t keys,
                          void* scratch) {
  HWY_DYNAMIC_DISPATCH(StatsTile)(args, first_key, keys, scratch);
}

}  // namespace quire::cpu
#endif
