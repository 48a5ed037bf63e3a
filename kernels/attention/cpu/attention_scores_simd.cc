#include "kernels/attention/cpu/attention_scores_tile.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/attention_scores_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/choice/cpu/key_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

static_assert(kRegisterRows <= kScoreRows);

struct ScoreMemory {
  float *keys, *weights, *query;  ///< weights: [heads of the group][kScoreRows][kScoreKeys]
};

/// Computes the weights of query rows from `first` on, for one KV head's query heads. Rows past the
/// last repeat it, and their results are ignored.
HWY_INLINE void WeighRows(const AttentionScoresArgs& a, std::int64_t kv_head, std::int64_t first,
                          const ScoreMemory& w) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  const float* k = w.keys + kv_head * dim * kScoreKeys;
  float lse[kScoreRows];
  for (std::int64_t g = 0; g < group; ++g) {
    const std::int64_t h = kv_head * group + g;
    for (std::int64_t r = 0; r < kRegisterRows; ++r) {
      const std::int64_t row = std::min(first + r, a.rows - 1);
      const float* q = a.q + row * a.ldq + h * dim;
      float* out = w.query + r * dim;
      for_each_vector(dim, [&](auto dv, std::int64_t i) HWY_ATTR {
        hn::StoreU(hn::Mul(hn::LoadU(dv, q + i), hn::Set(dv, a.scale)), dv, out + i);
      });
      const float l = a.lse[row * a.ld_lse + h];
      // The row saw nothing: exp gives 0
      lse[r] = l == -std::numeric_limits<float>::infinity() ? std::numeric_limits<float>::infinity()
                                                            : l;
    }
    float* weights = w.weights + g * kScoreRows * kScoreKeys;
    std::fill(weights, weights + kRegisterRows * kScoreKeys, 0.0f);
    for (std::int64_t i = 0; i < kScoreKeys; i += 2 * lanes)
      AddProbabilities(w.query, k + i, lse, dim, kScoreKeys, weights + i);
  }
}

/// Computes scores[key] <- reduction over it and the weights, rows ascending, then heads.
HWY_INLINE void Reduce(const AttentionScoresArgs& a, std::int64_t first,
                       const std::int32_t* positions, const ScoreMemory& w, float* scores) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads,
                     rows = std::min<std::int64_t>(kRegisterRows, a.rows - first);
  for (std::int64_t i = 0; i < kScoreKeys; i += lanes) {
    const auto key_positions = hn::Load(di, positions + i);
    auto score = hn::Load(d, scores + i);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto hidden = hn::RebindMask(
          d, hn::Gt(key_positions, hn::Set(di, a.query_positions[first + r])));
      for (std::int64_t g = 0; g < group; ++g) {
        const auto p = hn::IfThenZeroElse(
            hidden, hn::Load(d, w.weights + (g * kScoreRows + r) * kScoreKeys + i));
        score = a.reduction == ScoreReduction::kMax ? hn::Max(score, p) : hn::Add(score, p);
      }
    }
    hn::Store(score, d, scores + i);
  }
}

void ScoreTile(const AttentionScoresArgs& a, std::int64_t first_key, void* scratch) {
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  const std::int64_t valid = std::min(kScoreKeys, a.kv.num_rows - first_key);
  ScoreMemory w;
  w.keys = static_cast<float*>(scratch);
  w.weights = w.keys + a.kv.num_kv_heads * dim * kScoreKeys;
  w.query = w.weights + group * kScoreRows * kScoreKeys;
  HWY_ALIGN std::int32_t positions[kScoreKeys];
  HWY_ALIGN float scores[kScoreKeys];
  // Keys past the end get a position after every query.
  for (std::int64_t i = 0; i < kScoreKeys; ++i)
    positions[i] = i < valid ? a.kv.positions[first_key + i]
                             : std::numeric_limits<std::int32_t>::max();
  TurnKeys(a.kv, first_key, kScoreKeys, valid, w.keys);
  for (std::int64_t m = 0; m < a.kv.num_kv_heads; ++m) {
    float* out = a.scores + m * a.ld_scores + first_key;
    std::fill(std::copy(out, out + valid, scores), scores + kScoreKeys, 0.0f);
    for (std::int64_t first = 0; first < a.rows; first += kRegisterRows) {
      WeighRows(a, m, first, w);
      Reduce(a, first, positions, w, scores);
    }
    std::copy(scores, scores + valid, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {

[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch

HWY_EXPORT(ScoreTile);

}  // namespace

std::int64_t attention_scores_scratch_bytes(const AttentionScoresArgs& a) {
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads, dim = a.kv.head_dim;
  return (a.kv.num_kv_heads * dim * kScoreKeys + group * kScoreRows * kScoreKeys +
          kScoreRows * dim) *
         static_cast<std::int64_t>(sizeof(float));
}

void attention_scores_tile(const AttentionScoresArgs& args, std::int64_t first_key, void* scratch) {
  HWY_DYNAMIC_DISPATCH(ScoreTile)(args, first_key, scratch);
}

}  // namespace quire::cpu
#endif
