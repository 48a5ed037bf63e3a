#include "kernels/cuda/runtime/session_memory.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>

namespace quire::cuda {

SessionMemory::SessionMemory(DeviceDriver& driver, StreamHandle stream, std::int64_t device_bytes)
    : driver_(&driver), stream_(stream) {
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned}) {
    // Only the operating system knows how much host memory can be locked.
    const std::int64_t most = kind == MemoryKind::kPinned
                                  ? std::numeric_limits<std::int64_t>::max() / 2
                                  : device_bytes;
    pools_[static_cast<std::size_t>(kind)] = std::make_unique<MemoryPool>(driver, kind, most);
  }
}

Result<SessionMemory> SessionMemory::create(DeviceDriver& driver, StreamHandle stream) {
  QUIRE_ASSIGN_OR_RETURN(const MemoryInfo info, driver.memory());
  return SessionMemory(driver, stream, info.total_bytes);
}

Result<void*> SessionMemory::allocate(MemoryKind kind, std::int64_t bytes) {
  if (bytes <= 0) return Status::invalid("bytes", "must be positive, is " + std::to_string(bytes));
  QUIRE_ASSIGN_OR_RETURN(Buffer buffer, pool(kind).allocate(bytes, stream_));
  void* const p = buffer.data();
  given_.emplace(p, Given{kind, std::move(buffer)});
  return p;
}

Status SessionMemory::release(MemoryKind kind, void* p) {
  const auto found = given_.find(p);
  if (found == given_.end() || found->second.kind != kind)
    return Status::invalid(
        "p", std::string("no ") + memory_kind_name(kind) + " memory was given out there");
  given_.erase(found);
  return {};
}

Result<MemoryInfo> SessionMemory::memory() {
  for (const auto& pool : pools_) QUIRE_RETURN_IF_ERROR(pool->trim());
  return driver_->memory();
}

}  // namespace quire::cuda
