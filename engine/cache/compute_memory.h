/// ComputeMemory is the memory of a computing device, and host memory that it addresses, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "base/index.h"
#include "base/status.h"
#include "engine/cache/host_buffer.h"
#include "kernels/rows/kv_gather.h"

namespace quire {

/// MemoryPlace names one kind of a device's memory.
enum class MemoryPlace : std::uint8_t {
  kDevice,  ///< device memory, which the host does not address
  kPinned,  ///< pinned host memory that the device addresses across a bus
  kPages,   ///< device memory for whole pages of KV (Compute::page_memory()), read as such only
};

/// ComputeMemory is the memory of a device whose work is enqueued and runs later. The host may read
/// and write kPinned memory, but only while nothing enqueued uses it: after synchronize(), until
/// the next call that enqueues. Without one (a null pointer wherever one is asked for) everything
/// has run when a call returns, and any memory will do.
///
/// Threads: allocate() and release() from any; the rest from the computing thread. Errors: also
/// kDeviceLost.
class ComputeMemory {
 public:
  virtual ~ComputeMemory() = default;
  /// Allocates `bytes` > 0, aligned to at least 64, with undefined contents. Errors:
  /// kResourceExhausted (nothing changes), kDeviceLost.
  virtual Result<void*> allocate(std::int64_t bytes, MemoryPlace place) = 0;
  /// Releases memory that enqueued work may still use. `place` is the one it was allocated with.
  virtual void release(void* p, MemoryPlace place) = 0;
  /// Returns once everything enqueued has run. Errors: kDeviceLost, kInternal (also those of work
  /// enqueued earlier).
  virtual Status synchronize() = 0;
  /// Enqueues copies of rows between caches of this memory, of either place. The lists of `rows`
  /// lie in ordinary memory and are read before the call returns. Errors: those of kv_gather(),
  /// kResourceExhausted.
  virtual Status gather(const KvGatherArgs& rows) = 0;
  /// Copies bytes of this memory to ordinary memory, after everything enqueued, and waits for it.
  /// Errors: kResourceExhausted, those of work enqueued earlier.
  virtual Status read(const void* from, std::int64_t bytes, void* to) = 0;
  /// Enqueues a copy of ordinary memory, which is read before the call returns. Errors:
  /// kResourceExhausted.
  virtual Status write(void* to, const void* from, std::int64_t bytes) = 0;
  /// Returns the bytes that a pool of this memory may have: `wanted`, or for 0 the free bytes less
  /// a reserve. Errors: kResourceExhausted (more than the memory has; field `setting`),
  /// kDeviceLost.
  virtual Result<std::int64_t> budget(std::int64_t wanted, const char* setting) = 0;
};

inline Status synchronize(ComputeMemory* memory) {
  return memory != nullptr ? memory->synchronize() : Status();
}

/// Copies bytes of `memory`, or of ordinary memory if it is null, to ordinary memory; see
/// ComputeMemory::read().
inline Status read_memory(ComputeMemory* memory, const void* from, std::int64_t bytes, void* to) {
  if (memory != nullptr) return memory->read(from, bytes, to);
  if (bytes > 0) std::memcpy(to, from, to_size(bytes));
  return {};
}
/// Copies bytes the other way; see ComputeMemory::write().
inline Status write_memory(ComputeMemory* memory, void* to, const void* from, std::int64_t bytes) {
  if (memory != nullptr) return memory->write(to, from, bytes);
  if (bytes > 0) std::memcpy(to, from, to_size(bytes));
  return {};
}

/// ComputeBuffer is a reusable array of plain values that grows, in a ComputeMemory or in ordinary
/// memory, aligned to 64 bytes. Its contents are undefined after it grew. One that the host reads
/// or writes in place lies in pinned memory, which kernels reach across the bus: it is for small
/// values.
template <class T>
class ComputeBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit ComputeBuffer(MemoryPlace place = MemoryPlace::kDevice) : place_(place) {}
  ComputeBuffer(ComputeBuffer&& other) noexcept : place_(other.place_) { swap(other); }
  ComputeBuffer& operator=(ComputeBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ComputeBuffer(const ComputeBuffer&) = delete;
  ComputeBuffer& operator=(const ComputeBuffer&) = delete;
  ~ComputeBuffer() { drop(); }

  /// Reserves at least n values in `memory`, which the buffer keeps alive. Errors:
  /// kResourceExhausted (the buffer is empty then), those of the memory.
  Status reserve(const std::shared_ptr<ComputeMemory>& memory, std::int64_t n) {
    if (n <= size_ && memory == memory_) return {};
    drop();
    memory_ = memory;
    if (memory_ == nullptr) {
      host_ = HostBuffer(to_size(n) * sizeof(T));
      data_ = reinterpret_cast<T*>(host_.data());
    } else {
      QUIRE_ASSIGN_OR_RETURN(void* p,
                             memory_->allocate(n * static_cast<std::int64_t>(sizeof(T)), place_));
      data_ = static_cast<T*>(p);
    }
    size_ = n;
    return {};
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  void swap(ComputeBuffer& other) noexcept {
    std::swap(place_, other.place_);
    std::swap(memory_, other.memory_);
    std::swap(host_, other.host_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

 private:
  void drop() {
    if (memory_ != nullptr && data_ != nullptr) memory_->release(data_, place_);
    host_ = HostBuffer();
    data_ = nullptr;
    size_ = 0;
  }
  MemoryPlace place_;
  std::shared_ptr<ComputeMemory> memory_;
  HostBuffer host_;
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace quire
