/// The KV one request attends to: per layer a list of rows with positions, in pages of 16.
///
/// Keys are post-RoPE at their assembled positions, so nothing rotates during decode. Layers may
/// hold different rows (SamKV keeps different blocks in each). Rows that came from the store were
/// copied and rotated: the store is never edited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/cache/page_pool.h"
#include "kernels/kv.h"
#include "kernels/rope.h"

namespace quire {

/// Where the pool's pages lie in a device's memory, calls that copy or write rows themselves settle
/// it first, so that nothing enqueued uses the rows. Threads: one at a time (the engine thread);
/// read-only views may be read by kernel threads meanwhile.
class WorkingCache {
 public:
  /// `pool` must outlive the cache. No page is taken before rows are added.
  WorkingCache(PagePool& pool, std::int32_t num_layers);
  ~WorkingCache();
  WorkingCache(WorkingCache&&) noexcept;
  WorkingCache& operator=(WorkingCache&&) = delete;
  WorkingCache(const WorkingCache&) = delete;
  WorkingCache& operator=(const WorkingCache&) = delete;

  std::int32_t num_layers() const { return static_cast<std::int32_t>(layers_.size()); }
  std::int64_t num_rows(std::int32_t layer) const;
  std::span<const std::int32_t> positions(std::int32_t layer) const;
  std::int64_t bytes() const;
  /// The most that bytes() has been.
  std::int64_t most_bytes() const { return most_bytes_; }

  /// Appends rows whose content is written later by place() or by the forward pass. Returns the
  /// first new row. Errors: kResourceExhausted (nothing changes).
  Result<std::int64_t> add_rows(std::int32_t layer, std::span<const std::int32_t> positions);
  /// Drops every row from `num_rows` on and returns their pages.
  void truncate(std::int32_t layer, std::int64_t num_rows);
  void truncate_all(std::int64_t num_rows);

  /// Appends a whole page of rows that another cache computed: one page per layer, [num_layers], at
  /// these kPageTokens positions. The pages stay the other holders' as well; writing to their rows
  /// takes a copy. Every layer must end at a page border.
  void append_shared(std::span<void* const> pages, std::span<const std::int32_t> positions);
  /// Page `page` of every layer with one more holder, who must release them: all their rows are
  /// there. Rows written later go to a copy.
  std::vector<void*> share_page(std::int64_t page);

  /// Copies every page to ordinary memory and gives them back; until move_in() nothing but
  /// positions, bytes_out() and the destructor may be used.
  void move_out();
  /// Takes pages again and copies the rows back, bit for bit. Errors: kResourceExhausted (nothing
  /// changes).
  Status move_in();
  /// Ordinary memory held by what was moved out; 0: nothing was.
  std::int64_t bytes_out() const { return static_cast<std::int64_t>(moved_.size()); }

  /// Copies raw rows (stored K before RoPE, V) into rows first_row.., rotating K to those rows'
  /// positions.
  Status place(std::int32_t layer, const RopeTable& rope, const RawKvView& raw,
               std::int64_t first_row);
  /// The same for scattered rows.
  Status place_rows(std::int32_t layer, const RopeTable& rope, const RawKvView& raw,
                    std::span<const std::int32_t> rows);

  /// The layer's pages for writing these rows to, each within the layer: pages that others hold
  /// have become copies. Valid until the cache changes. Errors: kInvalidArgument,
  /// kResourceExhausted (some pages may have become copies).
  Result<MutableKvView> writable(std::int32_t layer, std::span<const std::int32_t> rows);

  /// Keeps of the layer only these rows, a list for each KV head, [num_kv_heads], each ascending,
  /// not empty and within the layer, and returns the pages that are free then. Afterwards row r
  /// holds every head's r-th kept row and stands at the largest of their positions, so that nobody
  /// sees it too early. Where lists differ in length the layer is ragged: the rows behind a shorter
  /// list hold nothing for that head. Rows added later are every head's. Errors: kInvalidArgument,
  /// kResourceExhausted (a page that others hold could not be copied); nothing changes.
  Status keep_rows(std::int32_t layer, std::span<const std::vector<std::int32_t>> rows);
  /// Some head does not hold all rows: who attends must go by head_rows().
  bool ragged(std::int32_t layer) const;
  /// The rows that the head holds, ascending.
  void head_rows(std::int32_t layer, std::int32_t kv_head, std::vector<std::int32_t>& out) const;

  /// The layer's rows leave the device: `copy` copies every row of every KV head from the old pages
  /// to new ones in the host's tier of the pool, laid out as said, enqueued with what the device
  /// computes or done when it returns. Rows that are added later go there, too. Nothing happens
  /// where the pool has no such tier, or the layer has left. Views of the layer change. Errors:
  /// kResourceExhausted (the host's tier is full), those of copy; nothing changes then.
  using CopyRows = std::function<Status(const KvView& from, const MutableKvView& to)>;
  Status leave_device(std::int32_t layer, PageLayout layout, const CopyRows& copy);
  bool on_host(std::int32_t layer) const {
    return layers_.at(static_cast<std::size_t>(layer)).on_host;
  }
  PageLayout layout(std::int32_t layer) const {
    return layers_.at(static_cast<std::size_t>(layer)).layout;
  }
  /// Every layer's pages are laid out as others expect pages that they share.
  bool shareable() const;

  KvView view(std::int32_t layer) const;
  /// The row of `position` in `layer`, or -1. O(log n) while positions ascend, else O(n). Not after
  /// keep_rows().
  std::int64_t find_row(std::int32_t layer, std::int32_t position) const;

 private:
  struct Layer {
    std::vector<void*> pages;
    std::vector<std::int32_t> positions;
    std::size_t shared = 0;  ///< pages from here on have no other holder
    bool sorted = true;
    bool on_host = false;  ///< it has left the device
    PageLayout layout = PageLayout::kHeadPages;
    /// [num_kv_heads], of the first `ragged_rows`; empty: every head holds every row
    std::vector<std::int64_t> head_rows;
    std::int64_t ragged_rows = 0;
  };
  MutableKvView mutable_view(std::int32_t layer);
  MutableKvView mutable_view(std::span<void* const> pages, std::int64_t rows,
                             PageLayout layout) const;
  Result<void*> new_page(const Layer& layer) const {
    return pool_->allocate(layer.on_host ? PageTier::kHost : PageTier::kDevice);
  }
  Status own_rows(Layer& layer, std::span<const std::int32_t> rows);
  Status own_page(Layer& layer, std::size_t page);
  PagePool* pool_;
  std::vector<Layer> layers_;
  std::int64_t most_bytes_ = 0;
  std::vector<std::byte> moved_;  ///< [pages of all layers in order]; empty: nothing is moved out
};

}  // namespace quire
