/// This file declares a CUDA stream handle for headers that include no CUDA.
#pragma once

namespace quire::cuda {

/// A cudaStream_t, not owned. Null is the legacy default stream.
struct StreamHandle {
  void* stream = nullptr;
};

}  // namespace quire::cuda
