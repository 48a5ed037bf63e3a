/// Stored rows on their way to the device: packed into pinned memory by the host, copied on the
/// stream of copies, placed by a kernel.
#pragma once

#include <array>
#include <span>

#include "engine/device/device_memory.h"
#include "engine/model/compute.h"

namespace quire {

/// Two slots of pinned and device memory, used in turn: while a kernel places the rows of one, the
/// next ones are packed and copied to the other. The order is kept by marks alone; the host waits
/// only where it would overwrite a slot whose copy has not run.
class StoredRowsFeed {
 public:
  explicit StoredRowsFeed(const std::shared_ptr<DeviceMemory>& memory)
      : memory_(memory), slots_{Slot(memory), Slot(memory)} {}

  /// All rows in one piece on the device, in order; what is enqueued from now on finds them there,
  /// until the next call but one. Then call placed(). Errors: kInvalidArgument (pieces of other
  /// shapes), kResourceExhausted, kDeviceLost, kInternal.
  Result<RawKvView> bring(std::span<const StoredRows> rows, std::int32_t num_kv_heads,
                          std::int32_t head_dim);
  /// What reads the rows is enqueued.
  Status placed();

 private:
  struct Slot {
    explicit Slot(const std::shared_ptr<DeviceMemory>& memory)
        : pinned(memory, cuda::MemoryKind::kPinned),
          device(memory, cuda::MemoryKind::kDevice),
          arrived(memory->new_mark()),
          used(memory->new_mark()) {}
    DeviceBuffer pinned, device;
    std::int32_t arrived, used;  ///< marks of the copies' lane and of the computing one
  };
  const std::shared_ptr<DeviceMemory> memory_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
};

}  // namespace quire
