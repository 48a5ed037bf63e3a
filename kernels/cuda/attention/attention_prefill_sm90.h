/// This file declares prefill attention for compute capability 9.0, which a build has where
/// CMAKE_CUDA_ARCHITECTURES has 90 (QUIRE_CUDA_SM90).
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/runtime/stream.h"

namespace quire::cuda {

/// Whether prefill_attention_sm90() takes KV of that type and head_dim.
inline bool has_prefill_sm90(DType dtype, std::int32_t head_dim) {
  return (dtype == DType::kF16 || dtype == DType::kBF16) && (head_dim == 64 || head_dim == 128);
}

/// Computes prefill_attention() on a device of compute capability 9.0, with `workers`, 1 or 2,
/// times 64 query lanes a block. Bits are the same for both; they are not those of other devices.
/// Errors: as prefill_attention(), kInvalidArgument (another type, head_dim or number of workers).
Status prefill_attention_sm90(const PrefillAttentionArgs& args, int workers, StreamHandle stream);

}  // namespace quire::cuda
