#include "kernels/attention_rows.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/scratch.h"
#include "kernels/gathered_rows.h"
#include "kernels/kv_checks.h"

namespace quire {
namespace {

Status check(const AttentionRowsArgs& args) {
  const AttentionArgs& a = args.attention;
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (!internal::is_kv_dtype(a.kv.dtype)) return Status::invalid("kv.dtype", "KV is f32, f16 or bf16");
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0) return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  return check_row_lists(args.lists, a.kv, "lists", args.order);
}

}  // namespace

Status attention_rows(const AttentionRowsArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  const AttentionArgs& a = args.attention;
  const std::int32_t group = a.num_heads / a.kv.num_kv_heads;
  GatheredRows gathered;
  std::vector<float> lse(a.lse != nullptr ? static_cast<std::size_t>(a.rows * group) : 0);
  for (std::int32_t m = 0; m < a.kv.num_kv_heads; ++m) {
    const RowList& list = args.lists[m];
    gathered.gather(a.kv, m, list, args.order, cpu::thread_scratch<std::byte>(cpu::ScratchSlot::kAttentionRows, gathered_bytes(a.kv, list.length)));
    AttentionArgs head = a;
    head.q = a.q + std::int64_t{m} * group * a.kv.head_dim;
    head.out = a.out + std::int64_t{m} * group * a.kv.head_dim;
    head.num_heads = group;
    head.kv = gathered.view(list.length);
    head.lse = a.lse != nullptr ? lse.data() : nullptr;
    QUIRE_RETURN_IF_ERROR(attention(head));
    for (std::int64_t t = 0; a.lse != nullptr && t < a.rows; ++t) std::copy_n(lse.data() + t * group, group, a.lse + t * a.num_heads + m * group);
  }
  return {};
}

}  // namespace quire
