/// StoredRowsFeed uploads stored rows: the host packs them into pinned memory, the copy stream
/// copies them, and a kernel places or blends them.
#pragma once

#include <array>
#include <span>

#include "engine/compute/kv_ops.h"
#include "engine/device/device_memory.h"

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
  const std::shared_ptr<DeviceMemory> memory_;
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
};

}  // namespace quire
