/// The KV one request attends to: per layer a list of rows with positions, in pages of 16.
///
/// Keys are post-RoPE at their assembled positions (algorithms §1), so nothing rotates during decode. Layers may hold different
/// rows (SamKV keeps different blocks in each). Rows that came from the store were copied and rotated: the store is never edited.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/page_pool.h"
#include "kernels/base/status.h"
#include "kernels/kv.h"
#include "kernels/rope.h"

namespace quire {

/// Threads: one at a time (the engine thread); read-only views may be read by kernel threads meanwhile.
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

  /// Appends rows whose content is written later by place() or by the forward pass. Returns the first new row.
  /// Errors: kResourceExhausted (nothing changes).
  Result<std::int64_t> add_rows(std::int32_t layer, std::span<const std::int32_t> positions);
  /// Drops every row from `num_rows` on and returns their pages.
  void truncate(std::int32_t layer, std::int64_t num_rows);
  void truncate_all(std::int64_t num_rows);

  /// Copies raw rows (stored K before RoPE, V) into rows first_row.., rotating K to those rows' positions.
  Status place(std::int32_t layer, const RopeTable& rope, const RawKvView& raw, std::int64_t first_row);
  /// The same for scattered rows.
  Status place_rows(std::int32_t layer, const RopeTable& rope, const RawKvView& raw, std::span<const std::int32_t> rows);

  KvView view(std::int32_t layer) const;
  MutableKvView mutable_view(std::int32_t layer);
  /// The row of `position` in `layer`, or -1. O(log n) while positions ascend, else O(n).
  std::int64_t find_row(std::int32_t layer, std::int32_t position) const;

 private:
  struct Layer {
    std::vector<void*> pages;
    std::vector<std::int32_t> positions;
    bool sorted = true;
  };
  PagePool* pool_;
  std::vector<Layer> layers_;
};

}  // namespace quire
