#include "kernels/attention/attention_scores.h"

#include <algorithm>
#include <string>

#include "kernels/attention/cpu/attention_scores_tile.h"
#include "kernels/cpu/scratch.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

Status check(const AttentionScoresArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0 ||
      a.num_heads / a.kv.num_kv_heads > cpu::kMostScoreGroup) {
    return Status::invalid("num_heads", "must be 1 to 16 times num_kv_heads (" +
                                            std::to_string(a.kv.num_kv_heads) + "), is " +
                                            std::to_string(a.num_heads));
  }
  if (!internal::is_kv_dtype(a.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.rows < 0 || a.kv.num_rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.rows == 0 || a.kv.num_rows == 0) return {};
  if (a.ldq < std::int64_t{a.num_heads} * a.kv.head_dim || a.ld_lse < a.num_heads)
    return Status::invalid("ldq", "row strides are too small");
  if (a.ld_scores < a.kv.num_rows)
    return Status::invalid("ld_scores", "must be at least the number of cached rows");
  if (!a.q || !a.query_positions || !a.lse || !a.scores || !a.kv.pages || !a.kv.positions) {
    return Status::invalid("q", "attention_scores needs all of its arrays");
  }
  return {};
}

}  // namespace

Status attention_scores(const AttentionScoresArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  if (args.rows == 0) return {};
  parallel_tasks((args.kv.num_rows + cpu::kScoreKeys - 1) / cpu::kScoreKeys,
                 [&](std::int64_t tile) {
                   void* scratch = cpu::thread_scratch<std::byte>(
                       cpu::ScratchSlot::kAttention, cpu::attention_scores_scratch_bytes(args));
                   cpu::attention_scores_tile(args, tile * cpu::kScoreKeys, scratch);
                 });
  return {};
}

}  // namespace quire
