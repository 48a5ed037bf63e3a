#include "kernels/attention/attention_mass.h"

#include <string>

#include "kernels/attention/cpu/attention_mass_range.h"
#include "kernels/cpu/scratch.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

Status check(const AttentionMassArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0 ||
      a.num_heads / a.kv.num_kv_heads > 16) {
    return Status::invalid("num_heads", "must be 1 to 16 times num_kv_heads (" +
                                            std::to_string(a.kv.num_kv_heads) + "), is " +
                                            std::to_string(a.num_heads));
  }
  if (!internal::is_kv_dtype(a.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.rows < 0 || a.num_ranges < 0) return Status::invalid("rows", "must not be negative");
  if (a.rows == 0 || a.num_ranges == 0) return {};
  if (a.ldq < std::int64_t{a.num_heads} * a.kv.head_dim || a.ld_lse < a.num_heads)
    return Status::invalid("ldq", "row strides are too small");
  if (!a.q || !a.query_positions || !a.lse || !a.ranges || !a.mass)
    return Status::invalid("q", "attention_mass needs all of its arrays");
  for (std::int64_t s = 0; s < a.num_ranges; ++s) {
    const RowRange& range = a.ranges[s];
    if (range.begin < 0 || range.begin > range.end || range.end > a.kv.num_rows) {
      return Status::invalid(
          "ranges", "range " + std::to_string(s) + " does not lie within the cache's rows");
    }
    if (range.begin < range.end && (!a.kv.pages || !a.kv.positions))
      return Status::invalid("kv", "attention_mass needs pages and positions");
  }
  return {};
}

}  // namespace

Status attention_mass(const AttentionMassArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  if (args.rows == 0) return {};
  parallel_tasks(args.num_ranges, [&](std::int64_t range) {
    void* scratch = cpu::thread_scratch<std::byte>(cpu::ScratchSlot::kAttention,
                                                   cpu::attention_mass_scratch_bytes(args));
    cpu::attention_mass_range(args, range, scratch);
  });
  return {};
}

}  // namespace quire
