/// This file declares voted lists: for many groups of queries, the rows of each KV head that they
/// attend to most. An inverted file whose centroids are queries consists of them (CTkvr).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/kv_checks.h"

namespace quire {

/// Makes one list for each KV head m and group i: of rows [first_row, first_row + num_rows) the k
/// with the largest vote, or all if there are no more. A vote is
///   max_g (scale * q[i, g] . K[row, m] - lse[i, g])   over the query heads g of m
/// and a row whose position is greater than limits[i] is in no list. Ties go to the smaller row.
///
/// A list is one bit for each row, in words of 64, from row 0 on; all list_words words are written.
/// The CPU computes votes as row_votes() does, whatever the number of threads. A device with KV of
/// 16 bits rounds scaled queries to its type, as attention over many rows does. head_dim is a
/// multiple of 8 in 8..256. Errors: kInvalidArgument.
struct VotedListsArgs {
  const float* q;              ///< [num_groups, num_heads, head_dim], post-RoPE
  const float* lse;            ///< [num_groups, num_heads] natural log-sum-exps of their attention
  const std::int32_t* limits;  ///< [num_groups] last visible position
  std::int64_t num_groups;
  std::int32_t num_heads;  ///< a multiple of kv.num_kv_heads; CUDA: 16 times at most
  float scale;
  KvView kv;
  std::int64_t first_row, num_rows;
  std::int64_t k;
  std::uint64_t* lists;     ///< [num_kv_heads][ld_lists][list_words]; list i of a KV head
  std::int64_t ld_lists;    ///< num_groups at least
  std::int64_t list_words;  ///< (first_row + num_rows + 63) / 64
  /// Scratch memory of CUDA: [num_kv_heads, num_groups, num_rows], and as many rows of min(k,
  /// num_rows).
  float* votes = nullptr;
  std::int32_t* best = nullptr;
};
Status voted_lists(const VotedListsArgs& args);
Status voted_lists_reference(const VotedListsArgs& args);

namespace internal {
/// Checks shapes, for every implementation.
inline Status check_voted_lists(const VotedListsArgs& a) {
  QUIRE_RETURN_IF_ERROR(check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (!is_kv_dtype(a.kv.dtype)) return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads (" +
                                            std::to_string(a.kv.num_kv_heads) + "), is " +
                                            std::to_string(a.num_heads));
  if (a.num_groups < 0 || a.k < 0) return Status::invalid("k", "must not be negative");
  if (a.num_rows < 0 || a.first_row < 0 || a.first_row + a.num_rows > a.kv.num_rows)
    return Status::invalid(
        "rows", "must lie within the cache's " + std::to_string(a.kv.num_rows) + " rows");
  if (a.ld_lists < a.num_groups)
    return Status::invalid("ld_lists", "must be at least the number of groups");
  if (a.list_words != (a.first_row + a.num_rows + 63) / 64)
    return Status::invalid("list_words", "must be one for 64 rows up to the last");
  if (a.num_groups > 0 && (!a.q || !a.lse || !a.limits || !a.lists))
    return Status::invalid("q", "voted_lists needs all of its arrays");
  return {};
}
}  // namespace internal

}  // namespace quire
