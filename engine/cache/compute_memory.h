/// ComputeMemory is memory that both the host and the computing device address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/index.h"
#include "base/status.h"

namespace quire {

/// MemoryPlace names one kind of a device's memory.
enum class MemoryPlace : std::uint8_t {
  kShared,  ///< device memory that the host addresses, too
  kDevice,  ///< device memory only
  kPinned,  ///< pinned host memory that the device addresses across a bus
};

/// ComputeMemory is the memory of a device whose work is enqueued and runs later. The host may read
/// and write it, too (except kDevice), but only while nothing enqueued uses it: after
/// synchronize(), until the next call that enqueues. Without one (a null pointer wherever one is
/// asked for) everything has run when a call returns, and any memory will do.
///
/// Threads: allocate() and release() from any; synchronize() from the computing thread.
class ComputeMemory {
 public:
  virtual ~ComputeMemory() = default;
  /// Allocates `bytes` > 0, aligned to at least 64, with undefined contents. Errors:
  /// kResourceExhausted (nothing changes), kDeviceLost.
  virtual Result<void*> allocate(std::int64_t bytes, MemoryPlace place = MemoryPlace::kShared) = 0;
  /// Releases memory that enqueued work may still use. `place` is the one it was allocated with.
  virtual void release(void* p, MemoryPlace place = MemoryPlace::kShared) = 0;
  /// Returns once everything enqueued has run. Errors: kDeviceLost, kInternal (also those of work
  /// enqueued earlier).
  virtual Status synchronize() = 0;
  /// Returns the bytes that a pool of this memory may have: `wanted`, or for 0 the free bytes less
  /// a reserve. Errors: kResourceExhausted (more than the memory has; field `setting`),
  /// kDeviceLost.
  virtual Result<std::int64_t> budget(std::int64_t wanted, const char* setting) = 0;
};

inline Status synchronize(ComputeMemory* memory) {
  return memory != nullptr ? memory->synchronize() : Status();
}

/// ComputeBuffer is a reusable array of plain values that grows, in a ComputeMemory or in ordinary
/// memory. Its contents are undefined after it grew.
template <class T>
class ComputeBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  ComputeBuffer() = default;
  ComputeBuffer(ComputeBuffer&& other) noexcept { swap(other); }
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
      host_.resize(to_size(n));
      data_ = host_.data();
    } else {
      QUIRE_ASSIGN_OR_RETURN(void* p, memory_->allocate(n * static_cast<std::int64_t>(sizeof(T))));
      data_ = static_cast<T*>(p);
    }
    size_ = n;
    return {};
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  void swap(ComputeBuffer& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(host_, other.host_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

 private:
  void drop() {
    if (memory_ != nullptr && data_ != nullptr) memory_->release(data_);
    host_ = {};
    data_ = nullptr;
    size_ = 0;
  }
  std::shared_ptr<ComputeMemory> memory_;
  std::vector<T> host_;
  T* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace quire
