#include "kernels/cuda/matmul/projections.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status qkv_split(const QkvSplitArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_qkv_split(launcher, args);
}

Status int8_gemv(const Int8GemvArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_int8_gemv(launcher, args);
}

Status int8_expand(const Int8ExpandArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_int8_expand(launcher, args);
}

std::int32_t int8_gemv_warps(const DeviceProperties& device, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kRange = 512;  // inputs per warp and step
  const std::int32_t resident = resident_blocks(device, Int8GemvKernel::kThreads,
                                                Int8GemvKernel::kSharedBytes);
  const std::int32_t parts = split_parts(device, resident,
                                         (n + Int8GemvKernel::kWarps - 1) / Int8GemvKernel::kWarps,
                                         k, kRange, Int8GemvKernel::kWarps);
  return parts >= 4 ? 4 : parts >= 2 ? 2 : 1;
}

}  // namespace quire::cuda
