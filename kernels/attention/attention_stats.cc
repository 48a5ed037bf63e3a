#include "kernels/attention/attention_stats.h"

#include <algorithm>
#include <string>

#include "kernels/attention/cpu/attention_stats_tile.h"
#include "kernels/cpu/scratch.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

// The f32 keys of a tile must stay in L2
constexpr std::int64_t kLargestTileBytes = 512 << 10;

Status check(const AttentionStatsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0 ||
      a.num_heads / a.kv.num_kv_heads > 16) {
    return Status::invalid("num_heads", "must be 1 to 16 times num_kv_heads (" +
                                            std::to_string(a.kv.num_kv_heads) + "), is " +
                                            std::to_string(a.num_heads));
  }
  if (!internal::is_kv_dtype(a.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.first_row < 0 || a.row_step < 1 ||
      (a.rows > 0 && a.first_row + (a.rows - 1) * a.row_step >= a.kv.num_rows)) {
    return Status::invalid("first_row", "query rows must be rows of the cache");
  }
  if (a.first_column < 0 || a.num_columns < 0 || a.first_column + a.num_columns > a.kv.num_rows) {
    return Status::invalid("num_columns", "columns must be rows of the cache");
  }
  if (a.rows == 0 || a.num_columns == 0) return {};
  if (a.ldq < std::int64_t{a.num_heads} * a.kv.head_dim || a.ld_lse < a.num_heads)
    return Status::invalid("ldq", "row strides are too small");
  if (!a.q || !a.lse || !a.kv.pages || !a.kv.positions || !a.late_distance || !a.log_distance ||
      !a.sum_log || !a.sum_x_log || !a.sum_late) {
    return Status::invalid("q", "attention_stats needs all of its arrays");
  }
  if (!a.kv.sorted || a.kv.positions[a.kv.num_rows - 1] - a.kv.positions[0] != a.kv.num_rows - 1) {
    return Status::invalid("kv", "positions must be consecutive");
  }
  return {};
}

}  // namespace

Status attention_stats(const AttentionStatsArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  if (args.rows == 0) return {};
  // Rows see only earlier rows, so columns from the last row on get nothing.
  const std::int64_t end = std::min(args.first_column + args.num_columns,
                                    args.first_row + (args.rows - 1) * args.row_step);
  const std::int64_t columns = end - args.first_column;
  if (columns <= 0) return {};
  std::int64_t keys = cpu::kStatsMaxKeys;
  const bool few = columns<4 * num_threads() * keys,
                           wide = std::int64_t{args.kv.num_kv_heads} * args.kv.head_dim * keys * 4>
      kLargestTileBytes;
  if (few || wide) keys /= 2;
  // The most rows see the first tiles, so these come first.
  parallel_tasks((columns + keys - 1) / keys, [&](std::int64_t tile) {
    void* scratch = cpu::thread_scratch<std::byte>(cpu::ScratchSlot::kAttention,
                                                   cpu::attention_stats_scratch_bytes(args, keys));
    cpu::attention_stats_tile(args, args.first_column + tile * keys, keys, scratch);
  });
  return {};
}

}  // namespace quire
