/// TeamPages is memory for pages of KV whose heads are cut over several devices. Internal to
/// engine/device/team.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/cache/compute_memory.h"
#include "engine/cache/kv_table.h"
#include "engine/device/team/team_memory.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/kv_gather.h"

namespace quire {

/// HeadCut says which of the KV heads a rank has: neighbouring ones, the last ranks fewer or none.
struct HeadCut {
  std::int32_t heads = 0, each = 0;
  static HeadCut of(std::int32_t heads, std::int64_t ranks) {
    return {heads, static_cast<std::int32_t>((heads + ranks - 1) / ranks)};
  }
  std::int32_t begin(std::int64_t rank) const {
    return static_cast<std::int32_t>(std::min<std::int64_t>(heads, rank * each));
  }
  std::int32_t end(std::int64_t rank) const { return begin(rank + 1); }
  std::int32_t size(std::int64_t rank) const { return end(rank) - begin(rank); }
};

/// A page is [num_kv_heads][head_bytes], and each rank has its own heads of it. Its address is one
/// that nothing lies at: it stands for the parts (on_rank()). All other memory is the leader's.
///
/// Threads: allocate(), release() and what is const from any; the rest from the computing thread.
class TeamPages final : public ComputeMemory {
 public:
  explicit TeamPages(std::shared_ptr<TeamMemory> team);

  /// Sets the shape of all pages, before the first one. Errors: kInvalidArgument (another was set).
  Status set_shape(std::int32_t num_kv_heads, std::int64_t head_bytes);
  const HeadCut& heads() const { return heads_; }

  Result<void*> allocate(std::int64_t bytes, MemoryPlace place) override;
  void release(void* p, MemoryPlace place) override;
  /// Waits for the leader, which comes last in whatever the host reads.
  Status synchronize() override { return team_->rank(0)->synchronize(); }
  /// Pages on one side may also be whole pages in memory of the leader, of either place. Errors:
  /// also kInternal (pages that do not have their heads outermost).
  Status gather(const KvGatherArgs& rows) override;
  Status read(const void* from, std::int64_t bytes, void* to) override {
    return team_->rank(0)->read(from, bytes, to);
  }
  Status write(void* to, const void* from, std::int64_t bytes) override {
    return team_->rank(0)->write(to, from, bytes);
  }
  Result<std::int64_t> budget(std::int64_t wanted, const char* setting) override {
    return team_->rank(0)->budget(wanted, setting);
  }

  /// Returns whether the address stands for a page of this memory.
  bool holds(const void* page) const;
  bool holds(const KvView& kv) const { return kv.num_rows > 0 && holds(kv.pages[0]); }
  /// Returns the address of a rank's heads of a page. The rank has some.
  void* on_rank(std::int64_t rank, const void* page) const;

  /// Returns a rank's part of a view. `pages` gets the addresses of all pages, or of those that the
  /// view's table on that rank does not know; it must live as long as the view is used.
  KvView part(std::int64_t rank, const KvView& kv, std::vector<const void*>& pages) const;
  /// Returns a rank's part of pages to write to. `pages` gets the addresses of those of the rows
  /// from the first to the last of `rows`, which is not empty.
  MutableKvView part(std::int64_t rank, const MutableKvView& kv, std::span<const std::int32_t> rows,
                     std::vector<void*>& pages) const;
  /// Copies all pages of the view to memory of the leader, which the next call uses again, and
  /// returns their view. The view has no table.
  Result<KvView> on_leader(const KvView& kv);

 private:
  struct Slab {
    std::int64_t bytes = 0;
    std::vector<void*> parts;  ///< [ranks]; null: the rank has no heads
  };
  /// What a rank's copies of whole pages lie in on their way to the leader, or from it.
  struct Aside {
    explicit Aside(const std::shared_ptr<DeviceMemory>& memory)
        : pages(memory, cuda::MemoryKind::kDevice) {}
    DeviceBuffer pages;
  };
  void drop(Slab& slab) const;
  Result<void*> allocate_pages(std::int64_t bytes);
  Status check_layout(std::int64_t head_stride, std::int32_t num_kv_heads) const;
  Status gather_within(const KvGatherArgs& rows) const;
  Status gather_out(const KvGatherArgs& rows);
  Status gather_in(const KvGatherArgs& rows);
  /// Copies these pages to whole_, one behind the other.
  Status join(std::span<const void* const> pages, const KvView& shape);

  const std::shared_ptr<TeamMemory> team_;
  HeadCut heads_;
  std::int64_t head_bytes_ = 0;
  std::vector<std::unique_ptr<Aside>> aside_;  // [ranks]; on the leader the others' parts
  DeviceBuffer whole_;                         // whole pages on the leader
  std::vector<const void*> whole_pages_;
  mutable std::mutex mu_;
  std::map<const std::byte*, Slab> slabs_;  // by their first address; guarded by mu_
};

}  // namespace quire
