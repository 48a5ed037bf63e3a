/// What stands for the keys of a layer's pages, laid out for the step that scores all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/kv.h"
#include "kernels/page_bounds.h"
#include "kernels/turned_rows.h"

namespace quire {

/// A page is a row of TurnedRows: of each channel its low and its high value. Threads: one at a
/// time, but for score().
class PageSummaries {
 public:
  /// Adds complete pages of `kv`. Errors: kInvalidArgument (nothing is added).
  Status append(const KvView& kv, std::span<const KvStretch> pages, PageSummary summary);
  std::int32_t num_pages() const { return num_pages_; }

  /// scores [group, end - begin]: what page_scores() says of pages [begin, end), of which there are
  /// some, for the query heads of one KV head. `query` is [group, head_dim], post-RoPE. For several
  /// KV heads at once, in different threads. Errors: kInvalidArgument.
  Status score(std::int32_t kv_head, const float* query, std::int32_t group, std::int32_t begin,
               std::int32_t end, float scale, float* scores) const;

 private:
  std::vector<std::unique_ptr<std::uint16_t[]>> memory_;
  std::vector<const std::uint16_t*> blocks_;
  std::int32_t num_pages_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
};

}  // namespace quire
