/// This file declares row votes: how much many groups of queries attend to each row of one KV head.
/// Indexes of rows are built from them.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"

namespace quire {

/// Computes votes[i * ld_votes + j] = max_g (scale * q[i, g] . K[first_row + j] - lse[i, g]), or
/// -inf where the row's position is greater than limits[i]. A vote is the logarithm of the largest
/// softmax weight that a query of the group gives the row, so tiny weights stay distinct.
///
/// The bits of a vote depend only on its group and its row. Sums are f32; head_dim is a multiple of
/// 8 in 8..256 and a group has any number of queries. Errors: kInvalidArgument. Allocates only
/// thread-local scratch.
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
