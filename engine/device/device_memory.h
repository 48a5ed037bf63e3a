/// These classes provide device memory to the engine: shared buffers, weights, and arguments that
/// the host passes to kernels.
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
#include "engine/device/pinned_values.h"
#include "engine/device/step_recording.h"
#include "kernels/cuda/backend/ops.h"

namespace quire {

struct CopyRoom;

/// DeviceMemory is the memory of an opened device. It counts what was enqueued, so that
/// synchronizing an idle device costs nothing. Threads: see ComputeMemory; synchronize() from any
/// thread, where it covers what other threads have enqueued, but no step that one still records.
class DeviceMemory final : public ComputeMemory {
 public:
  /// `values` is pinned memory of the same device, whose values it reads where they lie; null:
  /// there is none.
  explicit DeviceMemory(std::shared_ptr<cuda::DeviceOps> ops,
                        std::shared_ptr<PinnedValues> values = nullptr);
  ~DeviceMemory() override;

  Result<void*> allocate(std::int64_t bytes, MemoryPlace place) override {
    return ops_->allocate(kind_of(place), bytes);
  }
  void release(void* p, MemoryPlace place) override { give_back(kind_of(place), p); }
  Status synchronize() override;
  Status gather(const KvGatherArgs& rows) override;
  Status read(const void* from, std::int64_t bytes, void* to) override;
  Status write(void* to, const void* from, std::int64_t bytes) override;
  Result<std::int64_t> budget(std::int64_t wanted, const char* setting) override;

  cuda::DeviceOps& ops() { return *ops_; }
  const std::shared_ptr<PinnedValues>& values() const { return values_; }
  /// Says that something was enqueued on the device by other ways than run().
  void note_enqueued() { count_enqueued(); }
  /// Takes one of the device's events that no one has; -1: there is none, and operations with it
  /// are refused. See DeviceEvent.
  std::int32_t take_event();
  void give_event(std::int32_t event);
  /// Returns whether anything was recorded or enqueued that no synchronize() covered.
  bool pending() const {
    const std::uint64_t settled = settled_.load(std::memory_order_acquire);
    return recorded_.load(std::memory_order_acquire) ||
           settled < enqueued_.load(std::memory_order_acquire);
  }
  /// Returns whether the calling thread records a step.
  bool within_step() const {
    return stepping_.load(std::memory_order_acquire) == std::this_thread::get_id();
  }
  /// Enqueues the operation, or records it if the calling thread is within a step.
  template <class Args>
  Status run(const Args& args) {
    if (!within_step()) {
      const Status status = ops_->run(args);
      count_enqueued();
      return status;
    }
    recorded_.store(true, std::memory_order_release);
    Args whole = args;
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&whole);  // undefined bytes would make equal operations differ
#endif
#endif
    step_.add(cuda::op_code(&args), &whole, static_cast<std::int64_t>(sizeof whole));
    return {};
  }
  /// Copies arguments from pinned memory; within a step before all of its operations, none of which
  /// may have read their place before this call.
  Status upload(const cuda::CopyArgs& arguments);
  /// Begins a step (Compute::begin_step()). Only one thread at a time has a step; another thread's
  /// operations run as they come.
  void begin_step(std::int64_t rows, std::int64_t ahead = 0);
  /// Ends the step. Errors: those of its operations, and of a leave_step() within it, whoever
  /// called that.
  Status end_step();
  /// Enqueues what the step recorded so far, and the rest of the step as it comes. It is for what a
  /// graph cannot hold: a wait of the host, and work of other streams that began before the step or
  /// goes on after it.
  Status leave_step();
  const StepStats& step_stats() const { return step_.stats(); }
  /// Frees the memory after everything enqueued, and after a step that another thread records. A
  /// failure is logged, and the memory stays allocated.
  void give_back(cuda::MemoryKind kind, void* p);

 private:
  static cuda::MemoryKind kind_of(MemoryPlace place) {
    return place == MemoryPlace::kPinned ? cuda::MemoryKind::kPinned : cuda::MemoryKind::kDevice;
  }
  struct Freed {
    cuda::MemoryKind kind;
    void* p;
  };
  /// Counts after the call that enqueued, so that a concurrent synchronize() never covers too much.
  void count_enqueued() { enqueued_.fetch_add(1, std::memory_order_acq_rel); }
  /// Does what synchronize() does, but enqueues no step of the calling thread.
  Status settle();
  void release_now(const Freed& freed, Status settled);

  const std::shared_ptr<cuda::DeviceOps> ops_;
  const std::shared_ptr<PinnedValues> values_;
  std::unique_ptr<CopyRoom> copies_;         // of gather(), read() and write()
  StepRecording step_;                       // of the thread within a step
  std::atomic<std::thread::id> stepping_{};  // default: no thread
  std::atomic<bool> recorded_{false};        // the step holds operations
  std::atomic<std::uint64_t> enqueued_{0};   // calls so far
  std::atomic<std::uint64_t> settled_{0};    // of them, those that have run
  std::mutex mu_;
  std::vector<Freed> freed_;               // waits for the end of a step; guarded by mu_
  std::vector<std::int32_t> free_events_;  // guarded by mu_
  /// Why leave_step() failed, and whose step it was; guarded by mu_.
  Status left_;
  std::thread::id left_by_{};
};

/// DeviceEvent owns one of the device's events (ops.h) as long as it lives.
class DeviceEvent {
 public:
  explicit DeviceEvent(std::shared_ptr<DeviceMemory> memory)
      : memory_(std::move(memory)), event_(memory_->take_event()) {}
  ~DeviceEvent() { memory_->give_event(event_); }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  std::int32_t number() const { return event_; }

 private:
  const std::shared_ptr<DeviceMemory> memory_;
  const std::int32_t event_;
};

/// DeviceBuffer is a growing buffer of one kind of memory. Its contents are undefined after it
/// grew.
class DeviceBuffer {
 public:
  DeviceBuffer(std::shared_ptr<DeviceMemory> memory, cuda::MemoryKind kind)
      : memory_(std::move(memory)), kind_(kind) {}
  ~DeviceBuffer() { drop(); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  /// Reserves at least `bytes`. Errors: kResourceExhausted (the buffer is empty then), kDeviceLost.
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

/// ArgumentStage uploads small arrays for kernels: they are written to pinned memory and copied to
/// the same offset of a device buffer before the next operation. They stay valid until the next
/// begin() that finds the device idle.
class ArgumentStage {
 public:
  explicit ArgumentStage(std::shared_ptr<DeviceMemory> memory) : memory_(std::move(memory)) {}

  /// Prepares for the arrays of an operation. Outside a step it synchronizes if much was put since
  /// the device was last idle; within one that would undo the step, however much it needs.
  Status begin();
  /// Copies the values and returns their address for kernels. The next array begins at a multiple
  /// of `room` bytes, so arrays that grow a little between calls do not move it. Errors:
  /// kResourceExhausted, kDeviceLost.
  template <class T>
  Result<const T*> put(std::span<const T> values, std::int64_t room = kAlignment) {
    QUIRE_ASSIGN_OR_RETURN(
        void* at, put_bytes(values.data(), static_cast<std::int64_t>(values.size_bytes()), room));
    return static_cast<const T*>(at);
  }
  /// Room is memory for the host to write before send(), and its address for kernels.
  struct Room {
    std::byte* write;
    std::byte* address;
  };
  /// Returns room as put() takes it, for values that the caller writes itself. Errors: as put().
  Result<Room> room(std::int64_t bytes, std::int64_t room = kAlignment);
  /// Enqueues the copies of the arrays. Call it before the operation that reads them.
  Status send();
  /// Enqueues a copy of the values to memory of the device that earlier operations may use. Call it
  /// after begin(). Errors: kResourceExhausted, kDeviceLost.
  template <class T>
  Status write(T* to, std::span<const T> values) {
    return write_bytes(to, values.data(), static_cast<std::int64_t>(values.size_bytes()));
  }

 private:
  struct Chunk {
    Chunk(const std::shared_ptr<DeviceMemory>& memory)
        : pinned(memory, cuda::MemoryKind::kPinned), device(memory, cuda::MemoryKind::kDevice) {}
    DeviceBuffer pinned, device;
    std::int64_t used = 0, sent = 0;
  };
  static constexpr std::int64_t kAlignment = 64;
  Result<void*> put_bytes(const void* values, std::int64_t bytes, std::int64_t room);
  Status write_bytes(void* to, const void* values, std::int64_t bytes);
  Status add_chunk(std::int64_t bytes);

  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<std::unique_ptr<Chunk>> chunks_;  // the last one receives new arrays
};

}  // namespace quire
