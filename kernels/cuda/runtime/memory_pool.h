/// This file declares a pool of device or pinned memory, kept for reuse and counted byte by byte.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <utility>

#include "kernels/cuda/runtime/handles.h"

namespace quire::cuda {

class MemoryPool;

namespace internal {
/// One allocation of the driver. `released` is recorded on `stream` when a buffer returns it.
struct PoolBlock {
  void* data = nullptr;
  std::int64_t bytes = 0;      // size of the driver's allocation
  std::int64_t requested = 0;  // size that the owning buffer asked for
  StreamHandle stream;
  Event released;
};
}  // namespace internal

/// Owns memory of a pool, aligned to 256 bytes, contents undefined. Move-only. The pool must
/// outlive it. Work enqueued on its stream before the destructor may still use the memory. A caller
/// that used it on another stream must first make the buffer's stream wait for an event of that
/// stream.
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
  std::int64_t requested_bytes = 0;  ///< sum over live buffers, as requested
  std::int64_t in_use_bytes = 0;     ///< sum over blocks of live buffers
  std::int64_t cached_bytes = 0;     ///< sum over blocks kept for reuse
  std::int64_t stranded_bytes = 0;   ///< sum over blocks that the driver failed to release
  std::int64_t peak_bytes = 0;       ///< largest held_bytes() so far
  std::int64_t driver_calls = 0;     ///< allocations requested from the driver
  std::int64_t reuses = 0;           ///< allocations served from kept blocks
  /// Returns the bytes that the driver allocated and has not released.
  std::int64_t held_bytes() const { return in_use_bytes + cached_bytes + stranded_bytes; }
};

/// Keeps returned blocks for reuse; held_bytes() never exceeds max_bytes. Block sizes are rounded
/// up to eighths of a power of two, to at least kLeastBlock and by less than kMostRounding. A kept
/// block serves the next allocation of its size on its stream at once, because a stream runs in
/// order. It serves another stream once the work that used it has completed.
///
/// Threads: those of the driver.
class MemoryPool {
 public:
  static constexpr std::int64_t kLeastBlock = 512;
  /// Granularity of driver allocations; limits the excess of weights and caches over their size
  static constexpr std::int64_t kMostRounding = std::int64_t{2} << 20;
  /// Creates an empty pool. `driver` must outlive it. max_bytes >= 0.
  MemoryPool(DeviceDriver& driver, MemoryKind kind, std::int64_t max_bytes);
  /// Every buffer must have been destroyed.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Allocates a buffer; zero bytes give an empty one. If the driver is out of memory or the limit
  /// is reached, it returns kept blocks to the driver and tries once more. Errors: kInvalidArgument
  /// (negative), kResourceExhausted (kept blocks may be gone; nothing else changed), kDeviceLost.
  Result<Buffer> allocate(std::int64_t bytes, StreamHandle stream);
  /// Returns every kept block to the driver, which synchronizes with the work that uses it.
  Status trim();
  const PoolStats& stats() const { return stats_; }
  std::int64_t max_bytes() const { return max_bytes_; }
  /// Returns the block size for a request of `bytes` > 0: the next size class at or above it.
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

/// Returns how much of a device's memory a pool may have: `wanted`, or if 0 all free memory minus a
/// reserve for the context and libraries. Errors: kResourceExhausted (field `setting`: more than is
/// free; the message says what other processes hold).
Result<std::int64_t> pool_budget(const MemoryInfo& memory, std::int64_t wanted,
                                 const char* setting);
/// Returns the bytes reserved for the context, cuBLAS workspaces and fragmentation.
std::int64_t reserved_bytes(const MemoryInfo& memory);

}  // namespace quire::cuda
