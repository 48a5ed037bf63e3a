/// PageSummaries holds the summaries of a layer's page keys, laid out for scoring all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/kv.h"
#include "kernels/page_bounds.h"
#include "kernels/transposed_rows.h"

namespace quire {

/// PageSummaries stores a page as a row of TransposedRows: the low and the high value of each
/// channel. Threads: one at a time, except for score().
class PageSummaries {
 public:
  /// Adds complete pages of `kv`. Errors: kInvalidArgument (nothing is added).
  Status append(const KvView& kv, std::span<const RowRange> pages, PageSummary summary);
  std::int32_t num_pages() const { return num_pages_; }

  /// Computes the page_scores() of pages [begin, end), at least one, for the query heads of one KV
  /// head: scores [group, end - begin]. `query` is [group, head_dim], post-RoPE; several KV heads
  /// may call it concurrently. Errors: kInvalidArgument.
  Status score(std::int32_t kv_head, const float* query, std::int32_t group, std::int32_t begin,
               std::int32_t end, float scale, float* scores) const;

 private:
  std::vector<std::unique_ptr<std::uint16_t[]>> memory_;
  std::vector<const std::uint16_t*> blocks_;
  std::int32_t num_pages_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
};

}  // namespace quire
