#include "kernels/choice/gathered_rows.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Rows to prefetch; listed rows are scattered, so the hardware prefetcher cannot predict them
constexpr std::int64_t kFetchAhead = 16;

std::int64_t row_bytes_of(const KvView& kv) {
  return kv.head_dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype));
}

const std::byte* row_at(const KvView& kv, std::int32_t head, std::int64_t row) {
  return static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + head * kv.head_stride +
         row % kPageTokens * kv.token_stride;
}

void fetch(const KvView& kv, std::int32_t head, std::int64_t row, std::int64_t row_bytes) {
  const std::byte* from = row_at(kv, head, row);
  for (std::int64_t i = 0; i < row_bytes; i += 64) {
    __builtin_prefetch(from + i);
    __builtin_prefetch(from + kv.kv_stride + i);
  }
}

/// Copies a row. head_dim is a multiple of 8 and an element has at least two bytes, so a row is a
/// multiple of 16 bytes.
void copy_row(std::byte* to, const std::byte* from, std::int64_t bytes) {
  std::int64_t i = 0;
  for (; i + 64 <= bytes; i += 64) std::memcpy(to + i, from + i, 64);
  for (; i < bytes; i += 16) std::memcpy(to + i, from + i, 16);
}

/// Returns whether kPageTokens rows are those of one page, in order.
bool is_page(const std::int32_t* rows) {
  if (rows[0] % kPageTokens != 0) return false;
  for (std::int64_t i = 1; i < kPageTokens; ++i) {
    if (rows[i] != rows[0] + i) return false;
  }
  return true;
}

}  // namespace

std::int64_t gathered_bytes(const KvView& kv, std::int64_t num_rows) {
  return (num_rows + kPageTokens - 1) / kPageTokens * 2 * kPageTokens * row_bytes_of(kv);
}

void GatheredRows::gather(const KvView& kv, std::int32_t head, const RowList& list, RowOrder order,
                          std::byte* memory) {
  const std::int64_t row_bytes = row_bytes_of(kv), page_bytes = 2 * kPageTokens * row_bytes,
                     pages = (list.length + kPageTokens - 1) / kPageTokens;
  // A page that is listed whole is read in place if its layout is that of gathered pages.
  const bool alike = kv.token_stride == row_bytes && kv.kv_stride == kPageTokens * row_bytes;
  pages_.resize(to_size(pages));
  positions_.resize(to_size(list.length));
  parallel_for(
      pages, std::max<std::int64_t>(1, 65536 / (row_bytes * kPageTokens)),
      [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t page = begin; page < end; ++page) {
          const std::int64_t first = page * kPageTokens,
                             n = std::min<std::int64_t>(kPageTokens, list.length - first);
          const std::int32_t* rows = list.rows + first;
          if (alike && n == kPageTokens && is_page(rows)) {
            pages_[at(page)] = static_cast<const std::byte*>(kv.pages[rows[0] / kPageTokens]) +
                               head * kv.head_stride;
            std::copy_n(kv.positions + rows[0], kPageTokens, positions_.data() + first);
            continue;
          }
          std::byte* to = memory + page * page_bytes;
          pages_[at(page)] = to;
          for (std::int64_t i = 0; i < n; ++i) {
            if (first + i + kFetchAhead < list.length)
              fetch(kv, head, rows[i + kFetchAhead], row_bytes);
            const std::byte* from = row_at(kv, head, rows[i]);
            copy_row(to + i * row_bytes, from, row_bytes);
            copy_row(to + page_bytes / 2 + i * row_bytes, from + kv.kv_stride, row_bytes);
            positions_[at(first + i)] = kv.positions[rows[i]];
          }
        }
      });
  all_ = KvView{.pages = pages_.data(),
                .positions = positions_.data(),
                .num_rows = list.length,
                .num_kv_heads = 1,
                .head_dim = kv.head_dim,
                .dtype = kv.dtype,
                .kv_stride = page_bytes / 2,
                .head_stride = 0,
                .token_stride = row_bytes,
                .sorted = kv.sorted && order == RowOrder::kAscending};
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
    if (list.length < 0 || (list.length > 0 && list.rows == nullptr))
      return Status::invalid(field, "a list needs its rows");
    for (std::int64_t i = 0; i < list.length; ++i) {
      const std::int32_t before = i == 0 || order == RowOrder::kAny ? -1 : list.rows[i - 1];
      if (list.rows[i] > before && list.rows[i] < kv.num_rows) continue;
      return Status::invalid(field, "the rows of KV head " + std::to_string(m) +
                                        (order == RowOrder::kAny ? " must" : " must ascend and") +
                                        " lie within the cache's " + std::to_string(kv.num_rows));
    }
  }
  return {};
}

}  // namespace quire
