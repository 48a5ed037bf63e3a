/// Memory for kernels: 64-byte aligned buffers that remember their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace quire::cpu {

/// Aligned, uninitialised bytes. Buffers of 4 MiB and more ask for huge pages. Throws
/// std::bad_alloc.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes);
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  std::size_t size_bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t bytes_ = 0;
};

/// One buffer per thread and slot, grown as needed and kept. The content is lost when it grows.
/// Slots keep kernels that call each other apart.
enum class ScratchSlot : unsigned char {
  kMatmulInput = 0,
  kMatmulPanel,
  kAttention,
  kAttentionSplit,
  kAttentionRows,
  kRowValues,
  kRowScores,
  kTopMarks,
  kCount
};
void* thread_scratch(ScratchSlot slot, std::size_t bytes);

template <class T>
T* thread_scratch(ScratchSlot slot, std::int64_t count) {
  return static_cast<T*>(thread_scratch(slot, static_cast<std::size_t>(count) * sizeof(T)));
}

}  // namespace quire::cpu
