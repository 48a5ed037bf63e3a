#include "kernels/choice/transposed_rows.h"

#include "kernels/choice/cpu/transposed_rows_blocks.h"
#include "kernels/parallel.h"

namespace quire {

Status transposed_scores(const TransposedScoresArgs& args) {
  QUIRE_RETURN_IF_ERROR(check_transposed_scores(args));
  if (args.num_rows == 0) return {};
  // Threads take whole blocks, so that a score is computed in the same vector lane on every thread.
  const std::int64_t first = args.first_row / kTransposeRows,
                     blocks = (args.first_row + args.num_rows - 1) / kTransposeRows + 1 - first;
  const std::int64_t per_block = std::int64_t{args.num_kv_heads} * args.group *
                                 args.rows.num_pairs * kTransposeRows * 2;
  parallel_for(blocks, 1 + 262144 / per_block, [&](std::int64_t begin, std::int64_t end) {
    cpu::transposed_scores_blocks(args, first + begin, first + end);
  });
  return {};
}

}  // namespace quire
