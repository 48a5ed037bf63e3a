#include "kernels/attention_rows.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/scratch.h"
#include "kernels/kv_checks.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

Status check(const AttentionRowsArgs& args) {
  const AttentionArgs& a = args.attention;
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (!internal::is_kv_dtype(a.kv.dtype)) return Status::invalid("kv.dtype", "KV is f32, f16 or bf16");
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0) return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (args.lists == nullptr) return Status::invalid("lists", "one list per KV head is needed");
  for (std::int32_t m = 0; m < a.kv.num_kv_heads; ++m) {
    const RowList& list = args.lists[m];
    if (list.length < 0 || (list.length > 0 && list.rows == nullptr)) return Status::invalid("lists", "a list needs its rows");
    for (std::int64_t i = 0; i < list.length; ++i) {
      if (list.rows[i] > (i == 0 ? -1 : list.rows[i - 1]) && list.rows[i] < a.kv.num_rows) continue;
      return Status::invalid("lists", "the rows of KV head " + std::to_string(m) + " must ascend and lie within the cache's " + std::to_string(a.kv.num_rows));
    }
  }
  return {};
}

/// The rows of one KV head brought together, as a cache of one head.
struct Gathered {
  std::vector<const void*> pages;
  std::vector<std::int32_t> positions;
  KvView view;
};

void gather(const KvView& kv, std::int32_t head, const RowList& list, Gathered& out) {
  const std::int64_t row_bytes = kv.head_dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype));
  const std::int64_t pages = (list.length + kPageTokens - 1) / kPageTokens, page_bytes = 2 * kPageTokens * row_bytes;
  auto* to = cpu::thread_scratch<std::byte>(cpu::ScratchSlot::kAttentionRows, pages * page_bytes);
  out.pages.resize(static_cast<std::size_t>(pages));
  out.positions.resize(static_cast<std::size_t>(list.length));
  for (std::int64_t p = 0; p < pages; ++p) out.pages[static_cast<std::size_t>(p)] = to + p * page_bytes;
  parallel_for(list.length, std::max<std::int64_t>(1, 65536 / row_bytes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = list.rows[i];
      const auto* from = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + head * kv.head_stride + row % kPageTokens * kv.token_stride;
      std::byte* at = to + i / kPageTokens * page_bytes + i % kPageTokens * row_bytes;
      std::memcpy(at, from, static_cast<std::size_t>(row_bytes));
      std::memcpy(at + page_bytes / 2, from + kv.kv_stride, static_cast<std::size_t>(row_bytes));
      out.positions[static_cast<std::size_t>(i)] = kv.positions[row];
    }
  });
  out.view = KvView{.pages = out.pages.data(), .positions = out.positions.data(), .num_rows = list.length, .num_kv_heads = 1, .head_dim = kv.head_dim,
                    .dtype = kv.dtype, .kv_stride = page_bytes / 2, .head_stride = 0, .token_stride = row_bytes, .sorted = kv.sorted};
}

}  // namespace

Status attention_rows(const AttentionRowsArgs& args) {
  QUIRE_RETURN_IF_ERROR(check(args));
  const AttentionArgs& a = args.attention;
  const std::int32_t group = a.num_heads / a.kv.num_kv_heads;
  Gathered gathered;
  std::vector<float> lse(a.lse != nullptr ? static_cast<std::size_t>(a.rows * group) : 0);
  for (std::int32_t m = 0; m < a.kv.num_kv_heads; ++m) {
    gather(a.kv, m, args.lists[m], gathered);
    AttentionArgs head = a;
    head.q = a.q + std::int64_t{m} * group * a.kv.head_dim;
    head.out = a.out + std::int64_t{m} * group * a.kv.head_dim;
    head.num_heads = group;
    head.kv = gathered.view;
    head.lse = a.lse != nullptr ? lse.data() : nullptr;
    QUIRE_RETURN_IF_ERROR(attention(head));
    for (std::int64_t t = 0; a.lse != nullptr && t < a.rows; ++t) std::copy_n(lse.data() + t * group, group, a.lse + t * a.num_heads + m * group);
  }
  return {};
}

}  // namespace quire
