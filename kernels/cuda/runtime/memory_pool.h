/// Device or pinned memory, kept for reuse and counted byte by byte.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <utility>

#include "kernels/cuda/runtime/handles.h"

namespace quire::cuda {

class MemoryPool;

namespace internal {
/// One allocation of the driver. `released` is recorded on `stream` when a buffer gives it back.
struct PoolBlock {
  void* data = nullptr;
  std::int64_t bytes = 0;      // of the driver's allocation
  std::int64_t requested = 0;  // by the buffer that has it
  StreamHandle stream;
  Event released;
};
}  // namespace internal

/// Memory of a pool until it dies, aligned to 256 bytes, contents undefined. Move-only. The pool
/// must outlive it. What is enqueued on its stream when it dies may still use the memory; whoever
/// used it on another stream makes that stream's work an event that its own stream is held for,
/// first.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();
  void* data() const { return block_.data; }
  std::int64_t bytes() const { return block_.requested; }

 private:
  friend class MemoryPool;
  Buffer(MemoryPool& pool, internal::PoolBlock block) : pool_(&pool), block_(std::move(block)) {}
  MemoryPool* pool_ = nullptr;
  internal::PoolBlock block_;
};

struct PoolStats {
  std::int64_t requested_bytes = 0;  ///< by the buffers that live
  std::int64_t in_use_bytes = 0;     ///< of their blocks
  std::int64_t cached_bytes = 0;     ///< of blocks kept for reuse
  std::int64_t stranded_bytes = 0;   ///< of blocks that the driver refused to take back
  std::int64_t peak_bytes = 0;       ///< the most held_bytes() ever was
  std::int64_t driver_calls = 0;     ///< allocations asked of the driver
  std::int64_t reuses = 0;           ///< allocations served without it
  /// What the driver gave and has not back.
  std::int64_t held_bytes() const { return in_use_bytes + cached_bytes + stranded_bytes; }
};

/// Blocks are rounded up to eighths of a power of two, at least kLeastBlock and by less than
/// kMostRounding, and kept when they come back. A kept block serves the next allocation of its size
/// on its stream at once, since work on a stream runs in order, and others once what used it is
/// over. held_bytes() never exceeds max_bytes.
///
/// Threads: those of the driver.
class MemoryPool {
 public:
  static constexpr std::int64_t kLeastBlock = 512;
  /// What drivers give memory out by; weights and caches are hardly larger than asked for
  static constexpr std::int64_t kMostRounding = std::int64_t{2} << 20;
  /// `driver` must outlive it. max_bytes >= 0.
  MemoryPool(DeviceDriver& driver, MemoryKind kind, std::int64_t max_bytes);
  /// Every buffer must be dead.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// At most once the driver is out of memory or the limit is reached, kept blocks are given back
  /// to the driver and the allocation is tried again. Zero bytes give an empty buffer. Errors:
  /// kInvalidArgument (negative), kResourceExhausted (nothing changed but that kept blocks may have
  /// gone), kDeviceLost.
  Result<Buffer> allocate(std::int64_t bytes, StreamHandle stream);
  /// Gives every kept block back to the driver, after what uses it.
  Status trim();
  const PoolStats& stats() const { return stats_; }
  std::int64_t max_bytes() const { return max_bytes_; }
  /// What a request of so many bytes takes; the next larger size for every value but exact sizes.
  /// bytes > 0.
  static std::int64_t block_bytes(std::int64_t bytes);

 private:
  friend class Buffer;
  using Blocks = std::list<internal::PoolBlock>;
  void take_back(internal::PoolBlock block);
  Result<bool> take_kept(std::int64_t bytes, StreamHandle stream, internal::PoolBlock& block);
  Result<internal::PoolBlock> new_block(std::int64_t bytes);
  Status give_up(internal::PoolBlock block);

  DeviceDriver& driver_;
  const MemoryKind kind_;
  const std::int64_t max_bytes_;
  std::map<std::int64_t, Blocks> kept_;  // by size; oldest first
  PoolStats stats_;
};

/// How much of a device's memory a pool may have: `wanted`, or with 0 everything free but a reserve
/// for the context and libraries. Errors: kResourceExhausted (field `setting`: more than is free,
/// with what other processes hold).
Result<std::int64_t> pool_budget(const MemoryInfo& memory, std::int64_t wanted,
                                 const char* setting);
/// Left to the context, cuBLAS workspaces and fragmentation.
std::int64_t reserved_bytes(const MemoryInfo& memory);

}  // namespace quire::cuda
