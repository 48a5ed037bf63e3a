/// Results on their way from the device: written to a place by kernels, copied to pinned memory on
/// the stream of copies, handed out once all has run.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine/device/device_memory.h"
#include "engine/model/hook_compute.h"

namespace quire {

/// Two places, used in turn: while one is copied the next one is written. The order is kept by
/// marks alone; the host waits in deliver(), and where kMostUnderWay bytes are. Threads: the one
/// that computes.
class FetchLane {
 public:
  static constexpr std::int64_t kMostUnderWay = std::int64_t{128} << 20;

  explicit FetchLane(const std::shared_ptr<DeviceMemory>& memory)
      : memory_(memory), slots_{Slot(memory), Slot(memory)} {}

  /// See HookCompute.
  Result<std::byte*> place(std::int64_t bytes);
  Status fetch(std::int64_t bytes, HookCompute::Fetched then);
  Status deliver();

 private:
  struct Slot {
    explicit Slot(const std::shared_ptr<DeviceMemory>& memory)
        : device(memory, cuda::MemoryKind::kDevice),
          copied(memory->new_mark()),
          written(memory->new_mark()) {}
    DeviceBuffer device;
    std::int32_t copied, written;  ///< marks of the copies' lane and of the computing one
  };
  struct UnderWay {
    const std::byte* at;
    HookCompute::Fetched then;
  };
  struct Chunk {
    explicit Chunk(const std::shared_ptr<DeviceMemory>& memory)
        : pinned(memory, cuda::MemoryKind::kPinned) {}
    DeviceBuffer pinned;
    std::int64_t used = 0;
  };
  Result<std::byte*> pinned(std::int64_t bytes);

  const std::shared_ptr<DeviceMemory> memory_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<UnderWay> under_way_;
  std::int64_t bytes_under_way_ = 0;
};

}  // namespace quire
