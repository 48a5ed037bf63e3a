#include "kernels/attention/attention_rows.h"

#include <algorithm>
#include <vector>

#include "base/index.h"
#include "kernels/attention/attention_listed.h"
#include "kernels/choice/gathered_rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {
namespace {

Status check(const AttentionRowsArgs& args) {
  const AttentionArgs& a = args.attention;
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (!internal::is_kv_dtype(a.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  return check_row_lists(args.lists, a.kv, "lists", args.order);
}

/// Computes attention of `head` over the listed rows of KV head `m`, in place or gathered.
Status attend_listed(AttentionArgs head, std::int32_t m, const RowList& list, RowOrder order) {
  const KvView kv = head.kv;
  thread_local GatheredRows gathered;
  thread_local std::vector<std::int32_t> positions;
  head.kv.num_kv_heads = 1;
  if (!reads_listed_rows(head)) {
    gathered.gather(kv, m, list, order,
                    cpu::thread_scratch<std::byte>(cpu::ScratchSlot::kAttentionRows,
                                                   gathered_bytes(kv, list.length)));
    head.kv = gathered.view(list.length);
    return attention(head);
  }
  positions.resize(to_size(list.length));
  for (std::int64_t i = 0; i < list.length; ++i) positions[at(i)] = kv.positions[list.rows[i]];
  head.kv.positions = positions.data();
  head.kv.num_rows = list.length;
  head.kv.sorted = kv.sorted && order == RowOrder::kAscending;
  return attention_listed(head, {list.rows, m});
}

Status attend_head(const AttentionRowsArgs& args, std::int32_t m) {
  const AttentionArgs& a = args.attention;
  const std::int32_t group = a.num_heads / a.kv.num_kv_heads;
  const RowList& list = args.lists[m];
  std::vector<float> lse(a.lse != nullptr ? to_size(a.rows * group) : 0);
  AttentionArgs head = a;
  head.q = a.q + std::int64_t{m} * group * a.kv.head_dim;
  head.out = a.out + std::int64_t{m} * group * a.kv.head_dim;
  head.num_heads = group;
  head.lse = a.lse != nullptr ? lse.data() : nullptr;
  QUIRE_RETURN_IF_ERROR(attend_listed(head, m, list, args.order));
  for (std::int64_t t = 0; a.lse != nullptr && t < a.rows; ++t)
    std::copy_n(lse.data() + t * group, group, a.lse + t * a.num_heads + m * group);
  return {};
}

}  // namespace

Status attention_rows(const AttentionRowsArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  const std::int32_t kv_heads = args.attention.kv.num_kv_heads;
  if (kv_heads < num_threads()) {
    for (std::int32_t m = 0; m < kv_heads; ++m) QUIRE_RETURN_IF_ERROR(attend_head(args, m));
    return {};
  }
  // One thread gathers and reads a head's rows, from its own cache.
  std::vector<Status> status(to_size(kv_heads));
  parallel_tasks(kv_heads, [&](std::int64_t m) {
    status[at(m)] = attend_head(args, static_cast<std::int32_t>(m));
  });
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  return {};
}

}  // namespace quire
