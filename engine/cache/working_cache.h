/// WorkingCache is the KV that one request attends to: per layer a list of rows with positions, in
/// pages of 16.
///
/// Keys are post-RoPE at their assembled positions, so nothing rotates during decode. Layers may
/// hold different rows (SamKV keeps different blocks in each). Rows from the store were copied and
/// rotated: the store is never edited.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/cache/kv_table.h"
#include "engine/cache/page_pool.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/rope.h"

namespace quire {

/// HostRows is room for a layer's rows in ordinary memory, filled by WorkingCache::host_view() of
/// one cache and layer.
class HostRows {
 public:
  /// Forgets the copied rows, for example because they were written to.
  void clear() { rows_ = 0; }

 private:
  friend class WorkingCache;
  std::vector<std::byte> bytes_;
  std::vector<const void*> pages_;
  std::int64_t rows_ = 0;  ///< copied so far
};

/// WorkingCache owns its rows' pages. Where they lie in device memory, rows are copied there by
/// enqueued work, and only host_view() and move_out() bring them to the host. Threads: one at a
/// time (the engine thread); kernel threads may read read-only views meanwhile.
class WorkingCache {
 public:
  /// Makes an empty cache that takes no page before rows are added. `pool` must outlive the cache.
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
  /// Returns the peak of bytes().
  std::int64_t most_bytes() const { return most_bytes_; }

  /// Appends rows whose content place() or the forward pass writes later, and returns the first new
  /// row. Errors: kResourceExhausted (nothing changes).
  Result<std::int64_t> add_rows(std::int32_t layer, std::span<const std::int32_t> positions);
  /// Drops every row from `num_rows` on and releases their pages.
  void truncate(std::int32_t layer, std::int64_t num_rows);
  void truncate_all(std::int64_t num_rows);

  /// Appends a page's first rows, which another cache computed: one page per layer, [num_layers],
  /// at these positions, kPageTokens at most. The other holders keep the pages, so writing to them
  /// takes a copy; every layer must end at a page border.
  void append_shared(std::span<void* const> pages, std::span<const std::int32_t> positions);
  /// Returns page `page` of every layer, some of whose rows must exist, with one more holder, who
  /// must release them. Rows written later go to a copy.
  std::vector<void*> share_page(std::int64_t page);

  /// Copies every page to ordinary memory and releases it. Until move_in() only positions,
  /// bytes_out() and the destructor may be used. Errors: kResourceExhausted (no memory for the
  /// rows), those of PagePool::read_pages(); the pages and their rows stay then.
  Status move_out();
  /// Allocates pages again and copies the rows back, bit for bit; does nothing if none are moved
  /// out. Errors: kResourceExhausted, those of PagePool::write_pages(); nothing changes then.
  Status move_in();
  /// Returns the bytes of ordinary memory that move_out() holds; 0: nothing is moved out.
  std::int64_t bytes_out() const { return count_of(moved_); }

  /// Copies raw rows (stored K before RoPE, V) into rows first_row.. and rotates K to those rows'
  /// positions. For pages in ordinary memory; KvOps::place() is for all.
  Status place(std::int32_t layer, const RopeTable& rope, const RawKvView& raw,
               std::int64_t first_row);
  /// Copies raw rows into the given rows as place() does.
  Status place_rows(std::int32_t layer, const RopeTable& rope, const RawKvView& raw,
                    std::span<const std::int32_t> rows);

  /// Returns the layer's pages for writing to these rows, which are within the layer; pages with
  /// other holders become copies. The view is valid until the cache changes. Errors:
  /// kInvalidArgument, kResourceExhausted (some pages may have become copies).
  Result<MutableKvView> writable(std::int32_t layer, std::span<const std::int32_t> rows);

  /// Keeps only these rows of the layer and releases the pages that become free. `rows` has a list
  /// for each KV head, [num_kv_heads], each ascending, not empty and within the layer. Afterwards
  /// row r holds every head's r-th kept row at the largest of their positions, so that no query
  /// sees it too early. If the lists differ in length the layer is ragged: the rows after a shorter
  /// list hold nothing for that head. Rows added later belong to every head. Errors:
  /// kInvalidArgument, kResourceExhausted (a shared page could not be copied); nothing changes.
  Status keep_rows(std::int32_t layer, std::span<const std::vector<std::int32_t>> rows);
  /// Returns whether some head lacks some rows; attention must then use head_rows().
  bool ragged(std::int32_t layer) const;
  /// Writes the rows that the head holds to `out`, ascending.
  void head_rows(std::int32_t layer, std::int32_t kv_head, std::vector<std::int32_t>& out) const;

  /// Moves the layer's rows from the device to new pages in the pool's host tier. `copy` copies
  /// every row of every KV head to the new `layout`, enqueued on the device or complete when it
  /// returns. Rows added later go to the host tier, too, while it has room. Nothing happens if the
  /// pool has no such tier, or the layer has left already. Views of the layer change. Errors:
  /// kResourceExhausted (the host tier is full), those of `copy`; nothing changes then.
  using CopyRows = std::function<Status(const KvView& from, const MutableKvView& to)>;
  Status leave_device(std::int32_t layer, PageLayout layout, const CopyRows& copy);
  bool on_host(std::int32_t layer) const { return layers_.at(at(layer)).on_host; }
  PageLayout layout(std::int32_t layer) const { return layers_.at(at(layer)).layout; }
  /// Returns whether every layer's pages have the layout that holders of shared pages expect.
  bool shareable() const;

  KvView view(std::int32_t layer) const;
  /// Makes room for the layer's rows in the device's table of them, if there is a device. Errors:
  /// kResourceExhausted, kDeviceLost.
  Status make_table_room(std::int32_t layer);
  /// Makes a device send pages and positions again, because work that should have done so may not
  /// have run.
  void forget_tables();
  /// Returns a view that the host may read, valid until the layer or `room` changes: pages in host
  /// memory themselves, which nothing enqueued may write to, and copies in `room` of others. Rows
  /// that `room` holds from an earlier call, and that have not changed since, are not copied again.
  /// Errors: those of PagePool::read_pages().
  Result<KvView> host_view(std::int32_t layer, HostRows& room) const;
  /// Returns the row of `position` in `layer`, or -1, in O(log n) while positions ascend, else
  /// O(n). It must not be called after keep_rows().
  std::int64_t find_row(std::int32_t layer, std::int32_t position) const;

 private:
  struct Layer {
    std::vector<void*> pages;
    std::vector<std::int32_t> positions;
    std::size_t shared = 0;  ///< pages from this index on have no other holder
    bool sorted = true;
    bool on_host = false;  ///< the layer has left the device
    bool strays = false;   ///< some of its pages may lie there, because the host tier was full
    PageLayout layout = PageLayout::kHeadPages;
    /// The heads' row counts, [num_kv_heads], within the first `ragged_rows`; empty: every head
    /// holds every row.
    std::vector<std::int64_t> head_rows;
    std::int64_t ragged_rows = 0;
    std::unique_ptr<KvTable> table;  ///< of pages and positions; null: ordinary memory
  };
  MutableKvView mutable_view(std::int32_t layer);
  MutableKvView mutable_view(std::span<void* const> pages, std::int64_t rows,
                             PageLayout layout) const;
  Result<void*> new_page(Layer& layer) const;
  Result<KvView> without_strays(const Layer& layer, const KvView& kv, HostRows& room) const;
  Status check_host_pages() const;
  Status copy_kept(Layer& layer, std::span<const std::vector<std::int32_t>> rows);
  Status gather_kept(std::int32_t layer, std::span<const std::vector<std::int32_t>> rows,
                     std::size_t most);
  Status own_rows(Layer& layer, std::span<const std::int32_t> rows);
  Status own_page(Layer& layer, std::size_t page);
  PagePool* pool_;
  std::vector<Layer> layers_;
  std::int64_t most_bytes_ = 0;
  std::vector<std::byte> moved_;  ///< [pages of all layers in order]; empty: nothing is moved out
};

}  // namespace quire
