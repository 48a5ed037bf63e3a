/// This file declares memory for weights: small matrices share huge pages.
#pragma once

#include <cstddef>
#include <memory>

namespace quire::cpu {

/// Owns uninitialized bytes, aligned to 64, that live as long as a model. All of them lie on huge
/// pages where the system grants these: weights are read from end to end at every step, and a small
/// model's matrices are each shorter than a huge page. Throws std::bad_alloc. Threads: any.
class WeightBuffer {
 public:
  WeightBuffer() = default;
  explicit WeightBuffer(std::size_t bytes);
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  std::size_t size_bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::byte> data_;  ///< with the mapping that it lies in
  std::size_t bytes_ = 0;
};

}  // namespace quire::cpu
