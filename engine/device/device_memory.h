/// Memory of a device for the engine: shared buffers, weights, and arguments that the host hands to
/// kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/device/step_recording.h"
#include "kernels/cuda/backend/ops.h"

namespace quire {

/// The device's memory that the host addresses, too. Knows whether anything is enqueued, so that
/// settling an idle device costs nothing. Threads: see ComputeMemory; settle() from any thread
/// while nothing is enqueued.
class DeviceMemory final : public ComputeMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<cuda::DeviceOps> ops) : ops_(std::move(ops)) {}

  Result<void*> allocate(std::int64_t bytes, MemoryPlace place) override {
    return ops_->allocate(kind_of(place), bytes);
  }
  void release(void* p, MemoryPlace place) override { give_back(kind_of(place), p); }
  Status settle() override;
  Result<std::int64_t> budget(std::int64_t wanted, const char* setting) override;

  cuda::DeviceOps& ops() { return *ops_; }
  /// One of the device's marks for as long as the device is open; they are shared when they run
  /// out, which costs waiting and nothing else.
  std::int32_t new_mark() { return marks_.fetch_add(1) % cuda::kMarks; }
  bool pending() const { return pending_.load(std::memory_order_acquire); }
  /// Enqueued, or collected where the calling thread is within a step.
  template <class Args>
  Status run(const Args& args) {
    pending_.store(true, std::memory_order_release);
    if (!steps()) return ops_->run(args);
    Args whole = args;
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&whole);  // undefined bytes would make equal operations differ
#endif
#endif
    step_.add(cuda::op_code(&args), &whole, static_cast<std::int64_t>(sizeof whole));
    return {};
  }
  /// See Compute::begin_step(). One thread at a time has a step; another's is run as it comes.
  void begin_step(std::int64_t rows);
  Status end_step();
  /// Within a step: what was collected is enqueued, and the rest of the step as it comes. For what
  /// a graph cannot hold: other lanes and their marks.
  Status leave_step();
  const StepStats& step_stats() const { return step_.stats(); }
  /// After what is enqueued. A failure is logged: the memory stays with the device.
  void give_back(cuda::MemoryKind kind, void* p);

 private:
  static cuda::MemoryKind kind_of(MemoryPlace place) {
    return place == MemoryPlace::kShared   ? cuda::MemoryKind::kShared
           : place == MemoryPlace::kDevice ? cuda::MemoryKind::kDevice
                                           : cuda::MemoryKind::kPinned;
  }
  bool steps() const {
    return stepping_.load(std::memory_order_acquire) == std::this_thread::get_id();
  }

  const std::shared_ptr<cuda::DeviceOps> ops_;
  StepRecording step_;                       // of the thread that steps
  std::atomic<std::thread::id> stepping_{};  // none: nobody does
  std::atomic<bool> pending_{false};
  std::atomic<std::int32_t> marks_{0};
};

/// A buffer of one kind of memory that grows; contents are undefined after it grew.
class DeviceBuffer {
 public:
  DeviceBuffer(std::shared_ptr<DeviceMemory> memory, cuda::MemoryKind kind)
      : memory_(std::move(memory)), kind_(kind) {}
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

/// Small arrays on their way to kernels: written to pinned memory, copied to the same place of a
/// device buffer in front of the next operation. What was put stays until the next begin() that
/// finds the device settled.
class ArgumentStage {
 public:
  explicit ArgumentStage(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}

  /// Before the arrays of an operation: makes room for the next ones, waiting for the device when
  /// much has been put since it was last settled.
  Status begin();
  /// The values' address for kernels. What is put behind them begins at a multiple of `room` bytes:
  /// arrays that grow a little from call to call leave it where it was. Errors: kResourceExhausted,
  /// kDeviceLost.
  template <class T>
  Result<const T*> put(std::span<const T> values, std::int64_t room = kAlignment) {
    QUIRE_ASSIGN_OR_RETURN(
        void* at, put_bytes(values.data(), static_cast<std::int64_t>(values.size_bytes()), room));
    return static_cast<const T*>(at);
  }
  /// Enqueues the copies of what was put. Call before the operation that reads it.
  Status send();

 private:
  struct Chunk {
    Chunk(const std::shared_ptr<DeviceMemory>& memory)
        : pinned(memory, cuda::MemoryKind::kPinned), device(memory, cuda::MemoryKind::kDevice) {}
    DeviceBuffer pinned, device;
    std::int64_t used = 0, sent = 0;
  };
  static constexpr std::int64_t kAlignment = 64;
  Result<void*> put_bytes(const void* values, std::int64_t bytes, std::int64_t room);
  Status add_chunk(std::int64_t bytes);

  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // the last one takes what is put
};

}  // namespace quire
