/// Memory of a device for the engine: shared buffers, weights, and arguments that the host hands to kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "kernels/base/status.h"
#include "kernels/cuda/backend/ops.h"

namespace quire {

/// The device's memory that the host addresses, too. Knows whether anything is enqueued, so that settling an idle device costs nothing.
/// Threads: see ComputeMemory; settle() from any thread while nothing is enqueued.
class DeviceMemory final : public ComputeMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<cuda::DeviceOps> ops) : ops_(std::move(ops)) {}

  Result<void*> allocate(std::int64_t bytes) override { return ops_->allocate(cuda::MemoryKind::kShared, bytes); }
  void release(void* p) override { give_back(cuda::MemoryKind::kShared, p); }
  Status settle() override;
  Result<std::int64_t> budget(std::int64_t wanted, const char* setting) override;

  cuda::DeviceOps& ops() { return *ops_; }
  bool pending() const { return pending_.load(std::memory_order_acquire); }
  template <class Args>
  Status run(const Args& args) {
    pending_.store(true, std::memory_order_release);
    return ops_->run(args);
  }
  /// After what is enqueued. A failure is logged: the memory stays with the device.
  void give_back(cuda::MemoryKind kind, void* p);

 private:
  const std::shared_ptr<cuda::DeviceOps> ops_;
  std::atomic<bool> pending_{false};
};

/// A buffer of one kind of memory that grows; contents are undefined after it grew.
class DeviceBuffer {
 public:
  DeviceBuffer(std::shared_ptr<DeviceMemory> memory, cuda::MemoryKind kind) : memory_(std::move(memory)), kind_(kind) {}
  ~DeviceBuffer() { drop(); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  /// Errors: kResourceExhausted (it is empty then), kDeviceLost.
  Status reserve(std::int64_t bytes);
  std::byte* data() { return static_cast<std::byte*>(data_); }
  std::int64_t bytes() const { return bytes_; }

 private:
  void drop();
  const std::shared_ptr<DeviceMemory> memory_;
  const cuda::MemoryKind kind_;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Small arrays on their way to kernels: written to pinned memory, copied to the same place of a device buffer in front of the next operation. What was put stays until the
/// next begin() that finds the device settled.
class ArgumentStage {
 public:
  explicit ArgumentStage(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}

  /// Before the arrays of an operation: makes room for the next ones, waiting for the device when much has been put since it was last settled.
  Status begin();
  /// The values' address for kernels. Errors: kResourceExhausted, kDeviceLost.
  template <class T>
  Result<const T*> put(std::span<const T> values) {
    QUIRE_ASSIGN_OR_RETURN(void* at, put_bytes(values.data(), static_cast<std::int64_t>(values.size_bytes())));
    return static_cast<const T*>(at);
  }
  /// Enqueues the copies of what was put. Call before the operation that reads it.
  Status send();

 private:
  struct Chunk {
    Chunk(const std::shared_ptr<DeviceMemory>& memory) : pinned(memory, cuda::MemoryKind::kPinned), device(memory, cuda::MemoryKind::kDevice) {}
    DeviceBuffer pinned, device;
    std::int64_t used = 0, sent = 0;
  };
  Result<void*> put_bytes(const void* values, std::int64_t bytes);
  Status add_chunk(std::int64_t bytes);

  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // the last one takes what is put
};

}  // namespace quire
