/// The memory of a session, handed out by address: a pool for each kind, and which block lies
/// where.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "kernels/cuda/runtime/memory_pool.h"

namespace quire::cuda {

/// What requests give back stays for the next ones, so that in the long run none of them asks the
/// driver, which would wait for the whole device. Device and shared memory come out of the same
/// card: where one kind has no room, blocks that other kinds keep make way first.
///
/// Threads: those of the driver.
class SessionMemory {
 public:
  /// `driver` must outlive it; `stream` is the one that reuse is ordered by. Errors: those of
  /// DeviceDriver::memory().
  static Result<SessionMemory> create(DeviceDriver& driver, StreamHandle stream);
  SessionMemory(SessionMemory&&) noexcept = default;
  SessionMemory& operator=(SessionMemory&&) = delete;

  /// `bytes` > 0, aligned to 256. Errors: kInvalidArgument, kResourceExhausted (says how much of
  /// the kind is in use; nothing changed but that kept blocks may have gone), kDeviceLost.
  Result<void*> allocate(MemoryKind kind, std::int64_t bytes);
  /// Nothing enqueued may use it any more, on any stream. Errors: kInvalidArgument (nothing of that
  /// kind was given out there; nothing changed).
  Status release(MemoryKind kind, void* p);
  /// What could be allocated: blocks kept for reuse go back to the driver first, so that what is
  /// free is exact. Errors: those of DeviceDriver::memory() and release().
  Result<MemoryInfo> memory();
  const PoolStats& stats(MemoryKind kind) const { return pool(kind).stats(); }

 private:
  static constexpr std::size_t kKinds = 3;
  SessionMemory(DeviceDriver& driver, StreamHandle stream, std::int64_t device_bytes);
  MemoryPool& pool(MemoryKind kind) const { return *pools_[static_cast<std::size_t>(kind)]; }
  Status trim_others(MemoryKind kind, bool& some);

  DeviceDriver* driver_;
  StreamHandle stream_;
  std::array<std::unique_ptr<MemoryPool>, kKinds> pools_;  // by kind
  struct Given {
    MemoryKind kind;
    Buffer buffer;
  };
  std::unordered_map<void*, Given> given_;  // before the pools goes what lies in them
};

}  // namespace quire::cuda
