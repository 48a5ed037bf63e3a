/// The engine's part of the GPU benchmark: plain C++, so that no CUDA header meets the engine's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/sections.h"

namespace quire::cuda::bench {

struct EngineCaseOptions {
  std::string library;  ///< libquire_cuda.so
  std::int64_t device_idx = 0;
  bool quick = false;     ///< Llama-3.2-1B's shape and shorter contexts
  std::string model_dir;  ///< where a tokenizer's files may lie
};

/// Prefill, decode and questions over cached documents on random bf16 weights of Llama-3.1-8B's
/// shape, each with a model of its own. What does not fit the device is left out, and said so. A
/// failure ends the process with its message. Making the list touches no device.
std::vector<Section> engine_sections(const EngineCaseOptions& options);

}  // namespace quire::cuda::bench
