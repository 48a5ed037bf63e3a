/// FetchStream downloads results: kernels write them to a device buffer, a stream of their own
/// copies them to pinned memory, and callbacks receive them once all have run.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/compute/fetch_ops.h"
#include "engine/device/device_memory.h"

namespace quire {

/// FetchStream has two device buffers, used in turn: while one is copied the next one is written.
/// Events alone keep the order; the host waits in deliver(), and when kMostUnderWay bytes are
/// pending. Callbacks run in order, and the first ones while the device may still compute. Threads:
/// the computing thread.
class FetchStream final : public FetchOps {
 public:
  static constexpr std::int64_t kMostUnderWay = std::int64_t{128} << 20;

  explicit FetchStream(const std::shared_ptr<DeviceMemory>& memory)
      : memory_(memory), slots_{Slot(memory), Slot(memory)} {}

  Result<std::byte*> place(std::int64_t bytes) override;
  Status fetch(std::int64_t bytes, Fetched then) override;
  Status deliver() override;
  std::uint64_t discarded() const override { return discarded_; }

 private:
  struct Slot {
    explicit Slot(const std::shared_ptr<DeviceMemory>& memory)
        : device(memory, cuda::MemoryKind::kDevice), copied(memory), written(memory) {}
    DeviceBuffer device;
    DeviceEvent copied, written;  ///< events of the downloads and of the computing stream
    std::uint64_t copies = 0;     ///< how often `copied` was recorded
  };
  struct UnderWay {
    const std::byte* at;
    Fetched then;
    const Slot* slot;
    std::uint64_t copy;  ///< the copy of `slot`; a later one has taken its event
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
  std::uint64_t discarded_ = 0;
};

}  // namespace quire
