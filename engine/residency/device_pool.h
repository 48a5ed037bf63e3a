/// Memory of the device that decodes: what retrieved pages take, counted byte by byte and bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "engine/cache/compute_memory.h"

namespace quire {

class DevicePool;

/// Memory of a pool, 64-byte aligned, zeroed where it is the host's; goes back with the object. The
/// pool must outlive it.
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

/// Bytes of a pool counted for rows that lie on the device without having been brought there; go
/// back with the object. The pool must outlive it.
class DeviceClaim {
 public:
  DeviceClaim() = default;
  explicit DeviceClaim(DevicePool& pool) : pool_(&pool) {}
  DeviceClaim(DeviceClaim&& other) noexcept;
  DeviceClaim& operator=(DeviceClaim&& other) noexcept;
  ~DeviceClaim();
  /// Errors: kResourceExhausted (nothing changes).
  Status resize(std::int64_t bytes);
  std::int64_t bytes() const { return bytes_; }

 private:
  DevicePool* pool_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// On the CPU backend the device is the same memory, but bounded and copied to as a device's would
/// be, so that every policy, limit and counter is what it is elsewhere. Threads: every method may
/// be called concurrently, the end of a PoolMemory of a device from the thread that computes.
class DevicePool {
 public:
  /// max_bytes 0: no limit. `memory`: of the device that computes; null: the host does.
  explicit DevicePool(std::int64_t max_bytes, std::shared_ptr<ComputeMemory> memory = nullptr)
      : max_bytes_(max_bytes), memory_(std::move(memory)) {}
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  /// Errors: kResourceExhausted, naming what is in use and the limit (nothing changes).
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
