/// How much the rows of one KV head are worth to many groups of queries at once: what an index of
/// rows is built from.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/kv.h"

namespace quire {

/// votes[i * ld_votes + j] = max_g (scale * q[i, g] . K[first_row + j] - lse[i, g]), or -inf where
/// the row stands behind limits[i]: the logarithm of the largest softmax weight that a query of the
/// group gives the row, so that large and tiny weights alike stay apart. A vote depends on its
/// group and its row alone, bit for bit. Sums in f32; head_dim a multiple of 8 in 8..256, any
/// number of queries in a group. Errors: kInvalidArgument. Allocates only thread-local scratch.
struct RowVotesArgs {
  const float* q;    ///< [num_groups, group, head_dim] f32, post-RoPE
  const float* lse;  ///< [num_groups, group] natural log-sum-exp of each query's attention
  const std::int32_t* limits;  ///< [num_groups] last visible position
  std::int64_t num_groups;
  std::int32_t group;
  float scale;
  KvView kv;
  std::int32_t kv_head;
  std::int64_t first_row, num_rows;
  float* votes;  ///< [num_groups, num_rows], row stride ld_votes elements, overwritten
  std::int64_t ld_votes;
};
Status row_votes(const RowVotesArgs& args);
Status row_votes_reference(const RowVotesArgs& args);

}  // namespace quire
