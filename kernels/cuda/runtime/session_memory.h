/// This file declares the memory of a session: one pool per kind, and the block at each address.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "kernels/cuda/runtime/memory_pool.h"

namespace quire::cuda {

/// Allocates a session's memory by address. Released memory stays in the pools for later requests,
/// because freeing it in the driver would synchronize the whole device. Where one has no room, its
/// kept blocks are freed first.
///
/// Threads: those of the driver.
class SessionMemory {
 public:
  /// Creates the pools. `driver` must outlive them; `stream` is the one that orders reuse. Errors:
  /// those of DeviceDriver::memory().
  static Result<SessionMemory> create(DeviceDriver& driver, StreamHandle stream);
  SessionMemory(SessionMemory&&) noexcept = default;
  SessionMemory& operator=(SessionMemory&&) = delete;

  /// Allocates `bytes` > 0, aligned to 256. Errors: kInvalidArgument, kResourceExhausted (says how
  /// much of the kind is in use; kept blocks may be gone, nothing else changed), kDeviceLost.
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes);
  /// Returns memory to its pool. No enqueued work on any stream may still use it. Errors:
  /// kInvalidArgument (no allocation of that kind has this address; nothing changed).
  Status release(MemoryKind kind, void* p);
  /// Returns the memory that could be allocated. Kept blocks go back to the driver first, so that
  /// the free size is exact. Errors: those of DeviceDriver::memory() and release().
  Result<MemoryInfo> memory();
  const PoolStats& stats(MemoryKind kind) const { return pool(kind).stats(); }

 private:
  static constexpr std::size_t kKinds = 2;
  SessionMemory(DeviceDriver& driver, StreamHandle stream, std::int64_t device_bytes);
  MemoryPool& pool(MemoryKind kind) const { return *pools_[static_cast<std::size_t>(kind)]; }

  DeviceDriver* driver_;
  StreamHandle stream_;
  std::array<std::unique_ptr<MemoryPool>, kKinds> pools_;  // by kind
  struct Given {
    MemoryKind kind;
    Buffer buffer;
  };
  std::unordered_map<void*, Given> given_;  // destroyed before the pools that own its memory
};

}  // namespace quire::cuda
