/// A CUDA stream, for headers that show no CUDA.
#pragma once

namespace quire::cuda {

/// A cudaStream_t. Null is the legacy default stream. Does not own it.
struct StreamHandle {
  void* stream = nullptr;
};

}  // namespace quire::cuda
