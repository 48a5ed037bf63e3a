/// PageSummaries holds the summaries of a layer's page keys, laid out for scoring all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/compute/compute.h"
#include "kernels/choice/page_bounds.h"
#include "kernels/choice/transposed_rows.h"

namespace quire {

/// PageSummaries stores the low and the high value of each channel of a page. A device reads them
/// page by page, as page_bounds() writes them. The host stores a page as a row of TransposedRows,
/// which it scores several times as fast. Threads: one at a time.
class PageSummaries {
 public:
  /// Holds nothing yet; `memory` receives the summaries, null: the host computes.
  explicit PageSummaries(std::shared_ptr<ComputeMemory> memory) : memory_(std::move(memory)) {}

  /// Adds the summaries of those of `pages`, all complete pages of `kv`, that are missing. Errors:
  /// kInvalidArgument (nothing is added), those of the Compute.
  Status extend(Compute& compute, const KvView& kv, std::span<const RowRange> pages,
                PageSummary summary);
  /// Does the same where ChoiceOps::choose_pages() follows on the device, which may compute the
  /// bounds of one page by itself. Returns that page, which is missing until add_one(); -1: none.
  Result<std::int32_t> extend_but_one(Compute& compute, const KvView& kv,
                                      std::span<const RowRange> pages, PageSummary summary);
  /// Says that the call which computes that page's bounds was enqueued.
  void add_one() { ++num_pages_; }
  /// Returns the bounds of all pages, as page_bounds() writes them; null on the host.
  std::uint16_t* bounds() { return bounds_.data(); }
  std::int32_t num_pages() const { return num_pages_; }
  /// Returns whether score() scores all heads, whichever it is asked for.
  bool scores_every_head() const { return memory_ != nullptr; }

  /// Returns the values of memory that `pages` pages take where a device computes.
  static std::int64_t values_of(std::int64_t pages, std::int64_t num_kv_heads,
                                std::int64_t head_dim) {
    return pages * num_kv_heads * 2 * head_dim;
  }

  struct Query {
    const float* query;  ///< [num_heads, head_dim], post-RoPE
    std::int32_t num_heads;
    std::int32_t begin, end;  ///< the pages to score, at least one
    float scale;
    /// [num_kv_heads], the KV heads whose query heads are scored; null: all. The scores of others
    /// are undefined.
    const std::vector<bool>* kv_heads = nullptr;
  };
  /// Computes page_scores(): scores [num_heads, end - begin] in the Compute's memory.
  Status score(Compute& compute, const Query& query, float* scores) const;

 private:
  Status extend_transposed(const KvView& kv, std::span<const RowRange> pages, PageSummary summary);
  Status extend_bounds(Compute& compute, const KvView& kv, std::span<const RowRange> pages,
                       PageSummary summary);
  Status score_head(const Query& query, std::int64_t kv_head, float* scores) const;

  std::shared_ptr<ComputeMemory> memory_;
  std::int32_t num_pages_ = 0, num_kv_heads_ = 0, head_dim_ = 0;
  // On a device: [pages, num_kv_heads, low and high, head_dim] bf16, with room for most_pages_.
  ComputeBuffer<std::uint16_t> bounds_;
  std::int32_t most_pages_ = 0;
  // On the host: blocks of transposed rows.
  std::vector<std::unique_ptr<std::uint16_t[]>> blocks_memory_;
  std::vector<const std::uint16_t*> blocks_;
};

}  // namespace quire
