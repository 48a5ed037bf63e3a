#include "kernels/choice/row_votes.h"

#include <string>

#include "kernels/choice/cpu/row_votes_tiles.h"
#include "kernels/cpu/scratch.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

Status check(const RowVotesArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (!internal::is_kv_dtype(a.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.kv_head < 0 || a.kv_head >= a.kv.num_kv_heads)
    return Status::invalid("kv_head", "there is no KV head " + std::to_string(a.kv_head));
  if (a.num_groups < 0 || a.group < 1)
    return Status::invalid("group", "needs at least one query, and no negative number of groups");
  if (a.num_rows < 0 || a.first_row < 0 || a.first_row + a.num_rows > a.kv.num_rows)
    return Status::invalid(
        "rows", "must lie within the cache's " + std::to_string(a.kv.num_rows) + " rows");
  if (a.num_groups == 0 || a.num_rows == 0) return {};
  if (a.ld_votes < a.num_rows)
    return Status::invalid("ld_votes", "must be at least the number of rows");
  if (!a.q || !a.lse || !a.limits || !a.votes || !a.kv.pages || !a.kv.positions)
    return Status::invalid("q", "row_votes needs all of its arrays");
  return {};
}

}  // namespace

Status row_votes(const RowVotesArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  if (args.num_groups == 0 || args.num_rows == 0) return {};
  const std::int64_t tiles = (args.num_rows + cpu::kVoteRows - 1) / cpu::kVoteRows;
  parallel_for(tiles,
               1 + cpu::kLeastVoteProducts /
                       (args.num_groups * args.group * args.kv.head_dim * cpu::kVoteRows),
               [&](std::int64_t begin, std::int64_t end) {
                 cpu::row_votes_tiles(args, begin, end,
                                      cpu::thread_scratch<float>(cpu::ScratchSlot::kRowScores,
                                                                 cpu::row_votes_scratch(args)));
               });
  return {};
}

}  // namespace quire
