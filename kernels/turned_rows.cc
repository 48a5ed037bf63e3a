#include "kernels/turned_rows.h"

#include "kernels/cpu/turned_rows_blocks.h"
#include "kernels/parallel.h"

namespace quire {

Status turned_scores(const TurnedScoresArgs& args) {
  QUIRE_RETURN_IF_ERROR(check_turned_scores(args));
  if (args.num_rows == 0) return {};
  // Threads take whole runs of blocks, so that a score is computed in the same lane whoever does
  // it.
  const std::int64_t first = args.first_row / kTurnedRows,
                     blocks = (args.first_row + args.num_rows - 1) / kTurnedRows + 1 - first;
  const std::int64_t per_block = std::int64_t{args.num_kv_heads} * args.group *
                                 args.rows.num_pairs * kTurnedRows * 2;
  parallel_for(blocks, 1 + 262144 / per_block, [&](std::int64_t begin, std::int64_t end) {
    cpu::turned_scores_blocks(args, first + begin, first + end);
  });
  return {};
}

}  // namespace quire
