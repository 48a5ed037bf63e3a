/// StoredRowsFeed uploads stored rows: the host packs them into pinned memory, the copy stream
/// copies them, and a kernel places or blends them.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "engine/compute/kv_ops.h"
#include "engine/device/device_memory.h"
#include "engine/device/side_thread.h"

namespace quire {

/// StoredRowsFeed has slots of pinned and device memory, used in turn. While a kernel reads the
/// rows of one, the next rows are packed and copied to another. A layer of a recomputing pass takes
/// up to three uploads, so with four slots those of the next layer never wait for kernels of this
/// one. Events alone keep the order; the host waits only before it overwrites a slot whose copy has
/// not run.
class StoredRowsFeed {
 public:
  explicit StoredRowsFeed(const std::shared_ptr<DeviceMemory>& memory)
      : memory_(memory), slots_{Slot(memory), Slot(memory), Slot(memory), Slot(memory)} {}

  /// Begins to pack, on another thread, the rows that the next upload() will get; a hint, as other
  /// rows are packed by that call. These must not change before it or end_packing(). Errors: as
  /// upload(); nothing is packed then.
  Status pack_ahead(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                    std::int32_t head_dim);
  /// Joins the thread and forgets what it packed: equal addresses may hold other rows from now on.
  void end_packing() {
    packer_.wait();
    packed_.clear();
  }
  /// Uploads all rows, in order, into one contiguous device buffer that later enqueued work sees,
  /// until the fourth call from now; then call placed(). Errors: kInvalidArgument (pieces of
  /// different shapes), kResourceExhausted, kDeviceLost, kInternal.
  Result<RawKvView> upload(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                           std::int32_t head_dim);
  /// Marks that the work that reads the rows is enqueued.
  Status placed();

 private:
  struct Slot {
    explicit Slot(const std::shared_ptr<DeviceMemory>& memory)
        : pinned(memory, cuda::MemoryKind::kPinned),
          device(memory, cuda::MemoryKind::kDevice),
          arrived(memory),
          used(memory) {}
    DeviceBuffer pinned, device;
    DeviceEvent arrived, used;  ///< events of the copy stream and of the computing one
  };
  /// Packing is where rows go in a slot.
  struct Packing {
    std::int64_t heads = 0, row_bytes = 0, total = 0, bytes = 0;
    std::vector<std::int64_t> first;  ///< [rows.size()]
  };
  static Result<Packing> packing_of(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                                    std::int32_t head_dim);
  Status make_room(Slot& slot, const Packing& packing);
  bool is_packed(std::span<const RawKvView> rows) const;

  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<RawKvView> packed_;  ///< what pack_ahead() packs into the next slot; empty: nothing
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
  SideThread packer_;  ///< the last member: a task that runs when this ends writes to a slot
};

}  // namespace quire
