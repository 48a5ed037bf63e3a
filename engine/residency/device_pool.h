/// DevicePool counts the device memory that retrieved pages take, byte by byte, and bounds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "engine/cache/compute_memory.h"

namespace quire {

class DevicePool;

/// PoolMemory is memory of a pool, 64-byte aligned and zeroed if it is host memory. The destructor
/// returns it to the pool, which must outlive it.
class PoolMemory {
 public:
  PoolMemory() = default;
  PoolMemory(PoolMemory&& other) noexcept;
  PoolMemory& operator=(PoolMemory&& other) noexcept;
  ~PoolMemory();
  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  friend class DevicePool;
  DevicePool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// DeviceClaim counts bytes of a pool for rows that were not copied to the device but lie on it.
/// The destructor returns them to the pool, which must outlive the claim.
class DeviceClaim {
 public:
  DeviceClaim() = default;
  explicit DeviceClaim(DevicePool& pool) : pool_(&pool) {}
  DeviceClaim(DeviceClaim&& other) noexcept;
  DeviceClaim& operator=(DeviceClaim&& other) noexcept;
  ~DeviceClaim();
  /// Changes the number of bytes counted. Errors: kResourceExhausted (nothing changes).
  Status resize(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }

 private:
  DevicePool* pool_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// DevicePool bounds the memory of the decoding device. On the CPU backend this is host memory,
/// bounded and copied to like a device's, so that every policy, limit and counter is the same.
/// Threads: every method may be called concurrently; a PoolMemory of a device must be destroyed by
/// the computing thread.
class DevicePool {
 public:
  /// Makes a pool of at most max_bytes; 0: no limit. `memory` is that of the computing device;
  /// null: the host computes.
  explicit DevicePool(std::int64_t max_bytes, std::shared_ptr<ComputeMemory> memory = nullptr)
      : max_bytes_(max_bytes), memory_(std::move(memory)) {}
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// Allocates zeroed host memory or device memory. Errors: kResourceExhausted, which names the
  /// bytes in use and the limit (nothing changes).
  Result<PoolMemory> allocate(std::int64_t bytes);
  std::int64_t bytes_in_use() const;
  std::int64_t peak_bytes() const;
  std::int64_t max_bytes() const { return max_bytes_; }

 private:
  friend class PoolMemory;
  friend class DeviceClaim;
  Status take(std::int64_t bytes);
  void give_back(std::int64_t bytes);
  const std::int64_t max_bytes_;
  const std::shared_ptr<ComputeMemory> memory_;
  mutable std::mutex mu_;
  std::int64_t in_use_ = 0, peak_ = 0;  // guarded by mu_
};

}  // namespace quire
