/// This file declares memory for kernels: 64-byte aligned buffers that know their size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/index.h"

namespace quire::cpu {

/// Owns aligned, uninitialized bytes. Buffers of 2 MiB and more request huge pages. Throws
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

/// Names one buffer per thread, grown as needed and kept. Its content is lost when it grows.
/// Kernels that call each other use different slots.
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
  return static_cast<T*>(thread_scratch(slot, to_size(count) * sizeof(T)));
}

}  // namespace quire::cpu
