/// The engine's part of the GPU benchmark. It is plain C++, so that no CUDA header meets the
/// engine's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/sections.h"

namespace quire::cuda::bench {

struct EngineCaseOptions {
  std::int64_t device_idx = 0;
  bool quick = false;     ///< Llama-3.2-1B's shape and shorter contexts
  std::string model_dir;  ///< possible folder of a tokenizer's files
};

/// Returns prefill, decode, questions over cached documents and decode steps over a part of the
/// rows, all of them on the device or not, on random bf16 weights of Llama-3.1-8B's shape, each
/// with its own model; and a product over two devices, which one device skips and says so. Cases
/// that do not fit the device are left out and reported. A failure ends the process with its
/// message. Making the list uses no device.
std::vector<Section> engine_sections(const EngineCaseOptions& options);

}  // namespace quire::cuda::bench
