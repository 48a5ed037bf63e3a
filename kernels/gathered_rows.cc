#include "kernels/gathered_rows.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/parallel.h"

namespace quire {
namespace {

std::int64_t row_bytes_of(const KvView& kv) { return kv.head_dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype)); }

}  // namespace

std::int64_t gathered_bytes(const KvView& kv, std::int64_t num_rows) {
  return (num_rows + kPageTokens - 1) / kPageTokens * 2 * kPageTokens * row_bytes_of(kv);
}

void GatheredRows::gather(const KvView& kv, std::int32_t head, const RowList& list, RowOrder order, std::byte* memory) {
  const std::int64_t row_bytes = row_bytes_of(kv), page_bytes = 2 * kPageTokens * row_bytes;
  pages_.resize(static_cast<std::size_t>((list.length + kPageTokens - 1) / kPageTokens));
  positions_.resize(static_cast<std::size_t>(list.length));
  for (std::size_t p = 0; p < pages_.size(); ++p) pages_[p] = memory + static_cast<std::int64_t>(p) * page_bytes;
  parallel_for(list.length, std::max<std::int64_t>(1, 65536 / row_bytes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = list.rows[i];
      const auto* from = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + head * kv.head_stride + row % kPageTokens * kv.token_stride;
      std::byte* to = memory + i / kPageTokens * page_bytes + i % kPageTokens * row_bytes;
      std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
      std::memcpy(to + page_bytes / 2, from + kv.kv_stride, static_cast<std::size_t>(row_bytes));
      positions_[static_cast<std::size_t>(i)] = kv.positions[row];
    }
  });
  all_ = KvView{.pages = pages_.data(), .positions = positions_.data(), .num_rows = list.length, .num_kv_heads = 1, .head_dim = kv.head_dim, .dtype = kv.dtype,
                .kv_stride = page_bytes / 2, .head_stride = 0, .token_stride = row_bytes, .sorted = kv.sorted && order == RowOrder::kAscending};
}

KvView GatheredRows::view(std::int64_t num_rows) const {
  KvView out = all_;
  out.num_rows = num_rows;
  return out;
}

Status check_row_lists(const RowList* lists, const KvView& kv, const char* field, RowOrder order) {
  if (lists == nullptr) return Status::invalid(field, "one list per KV head is needed");
  for (std::int32_t m = 0; m < kv.num_kv_heads; ++m) {
    const RowList& list = lists[m];
    if (list.length < 0 || (list.length > 0 && list.rows == nullptr)) return Status::invalid(field, "a list needs its rows");
    for (std::int64_t i = 0; i < list.length; ++i) {
      const std::int32_t before = i == 0 || order == RowOrder::kAny ? -1 : list.rows[i - 1];
      if (list.rows[i] > before && list.rows[i] < kv.num_rows) continue;
      return Status::invalid(field, "the rows of KV head " + std::to_string(m) + (order == RowOrder::kAny ? " must" : " must ascend and") + " lie within the cache's " + std::to_string(kv.num_rows));
    }
  }
  return {};
}

}  // namespace quire
