#include "kernels/choice/cpu/row_votes_tiles.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/choice/cpu/row_votes_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/choice/cpu/key_tile-inl.h"

// A tile of keys is transposed once, so that rows lie in vector lanes; then every query reads it.

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

constexpr float kNoVote = -std::numeric_limits<float>::infinity();

std::int64_t QueriesPadded(const RowVotesArgs& a) {
  return (a.num_groups * a.group + kRegisterRows - 1) / kRegisterRows * kRegisterRows;
}

/// Computes products[r][lane] = q[r] . k[lane] for kRegisterRows queries and two vectors of keys.
HWY_INLINE void MultiplyTile(const float* query, const float* keys, std::int64_t dim,
                             float* products) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  MultiplyKeys(query, keys, dim, kVoteRows, [&](int r, V first, V second) HWY_ATTR {
    hn::Store(first, d, products + r * kVoteRows);
    hn::Store(second, d, products + r * kVoteRows + lanes);
  });
}

/// Computes the largest of a group's products, each minus its query's lse.
HWY_INLINE void VoteOfGroup(const RowVotesArgs& a, std::int64_t i, const float* products,
                            const std::int32_t* positions, std::int64_t valid, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* lse = a.lse + i * a.group;
  HWY_ALIGN float votes[kVoteRows];
  for (std::int64_t lane = 0; lane < kVoteRows; lane += lanes) {
    auto vote = hn::Set(d, kNoVote);
    for (std::int64_t g = 0; g < a.group; ++g)
      vote = hn::Max(vote,
                     hn::Sub(hn::Load(d, products + g * kVoteRows + lane), hn::Set(d, lse[g])));
    const auto hidden = hn::RebindMask(
        d, hn::Gt(hn::Load(di, positions + lane), hn::Set(di, a.limits[i])));
    vote = hn::IfThenElse(hidden, hn::Set(d, kNoVote), vote);
    if (lane + lanes <= valid)
      hn::StoreU(vote, d, out + lane);
    else
      hn::Store(vote, d, votes + lane);
  }
  for (std::int64_t lane = valid / lanes * lanes; lane < valid; ++lane) out[lane] = votes[lane];
}

/// Prefetches part `part` of `parts` of the keys of kVoteRows rows from `first` on. A head's rows
/// are not contiguous, so the hardware prefetcher cannot predict them.
HWY_INLINE void FetchTile(const RowVotesArgs& a, std::int64_t first, std::int64_t part,
                          std::int64_t parts) {
  const std::int64_t row_bytes = a.kv.head_dim * static_cast<std::int64_t>(dtype_bytes(a.kv.dtype)),
                     end = std::min(first + kVoteRows, a.first_row + a.num_rows);
  for (std::int64_t row = first + kVoteRows * part / parts;
       row < std::min(first + kVoteRows * (part + 1) / parts, end); ++row) {
    const auto* at = static_cast<const std::byte*>(a.kv.pages[row / kPageTokens]) +
                     a.kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
    for (std::int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(at + i);
  }
}

void VoteTiles(const RowVotesArgs& a, std::int64_t begin, std::int64_t end, float* scratch) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.kv.head_dim, queries = a.num_groups * a.group,
                     padded = QueriesPadded(a);
  float *q = scratch, *keys = q + padded * dim, *products = keys + dim * kVoteRows;
  for (std::int64_t i = 0; i < padded * dim; ++i)
    q[i] = i < queries * dim ? a.q[i] * a.scale : 0.0f;
  HWY_ALIGN std::int32_t positions[kVoteRows];
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const std::int64_t first = tile * kVoteRows, valid = std::min(kVoteRows, a.num_rows - first);
    for (std::int64_t j = 0; j < kVoteRows; ++j)
      positions[j] = j < valid ? a.kv.positions[a.first_row + first + j]
                               : std::numeric_limits<std::int32_t>::max();
    TurnHeadKeys(a.kv, a.kv_head, a.first_row + first, kVoteRows, valid, keys);
    for (std::int64_t r = 0; r < padded; r += kRegisterRows) {
      FetchTile(a, a.first_row + first + kVoteRows, r / kRegisterRows, padded / kRegisterRows);
      for (std::int64_t lane = 0; lane < kVoteRows; lane += 2 * lanes)
        MultiplyTile(q + r * dim, keys + lane, dim, products + r * kVoteRows + lane);
    }
    for (std::int64_t i = 0; i < a.num_groups; ++i)
      VoteOfGroup(a, i, products + i * a.group * kVoteRows, positions, valid,
                  a.votes + i * a.ld_votes + first);
  }
}

std::int64_t VoteScratch(const RowVotesArgs& a) {
  return QueriesPadded(a) * (a.kv.head_dim + kVoteRows) + a.kv.head_dim * kVoteRows;
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {

[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch

HWY_EXPORT(VoteTiles);
HWY_EXPORT(VoteScratch);

}  // namespace

std::int64_t row_votes_scratch(const RowVotesArgs& args) {
  return HWY_DYNAMIC_DISPATCH(VoteScratch)(args);
}
void row_votes_tiles(const RowVotesArgs& args, std::int64_t begin, std::int64_t end,
                     float* scratch) {
  HWY_DYNAMIC_DISPATCH(VoteTiles)(args, begin, end, scratch);
}

}  // namespace quire::cpu
#endif
