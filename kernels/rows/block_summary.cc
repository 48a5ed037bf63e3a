#include "kernels/rows/block_summary.h"

#include "kernels/parallel.h"
#include "kernels/rows/cpu/rows.h"
#include "kernels/rows/kv_checks.h"

namespace quire {

Status block_summary(const RopeTable& table, const BlockSummaryArgs& args) {
  if (args.raw.num_rows <= 0)
    return Status::invalid("raw.num_rows", "a block summary needs at least one row");
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(args.num_kv_heads, args.head_dim));
  if (!internal::is_raw_kv_dtype(args.raw.dtype))
    return Status::invalid("raw.dtype", "KV is f32, f16 or bf16");
  if (args.raw.data == nullptr) return Status::invalid("raw.data", "must not be null");
  const std::int32_t first = args.first_position;
  QUIRE_RETURN_IF_ERROR(internal::check_table(table, args.head_dim, &first, 1));
  if (args.raw.num_rows > table.max_positions() - first) {
    return Status::invalid("first_position", "the block ends past the RoPE table of " +
                                                 std::to_string(table.max_positions()) +
                                                 " positions");
  }
  const std::int64_t grain = 1 + 16384 / (args.raw.num_rows * args.head_dim);
  parallel_for(args.num_kv_heads, grain, [&](std::int64_t begin, std::int64_t end) {
    cpu::block_summary_heads(table, args, begin, end);
  });
  return {};
}

void row_mean(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx, float* out) {
  parallel_for(dim, 64 + 65536 / rows, [&](std::int64_t begin, std::int64_t end) {
    cpu::row_mean_columns(x, rows, ldx, out, begin, end);
  });
}

}  // namespace quire
