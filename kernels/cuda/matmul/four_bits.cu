#include <algorithm>

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/matmul/four_bits.cuh"

namespace quire::cuda {

Status grouped_gemv(const GroupedGemvArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_grouped_gemv(launcher, args);
}

Status grouped_expand(const GroupedExpandArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_grouped_expand(launcher, args);
}

std::int32_t grouped_gemv_warps(const DeviceProperties& device, GroupKind kind, std::int64_t n,
                                std::int64_t k) {
  using Kernel = GroupedGemvKernel<GroupKind::kFour, 1>;
  constexpr std::int64_t kMostResident = 4;  // thread blocks that a multiprocessor's registers hold
  const std::int64_t range = 4 * segment_groups(kind) * kGroupInputs;  // inputs per warp and step
  const std::int64_t resident = std::min<std::int64_t>(
      kMostResident, resident_blocks(device, Kernel::kThreads, Kernel::kSharedBytes));
  constexpr std::int64_t kPerBlock = Kernel::kWarps * Kernel::kOutputs;
  const std::int32_t parts = split_parts(device, static_cast<std::int32_t>(resident),
                                         (n + kPerBlock - 1) / kPerBlock, k, range, Kernel::kWarps);
  return parts >= 4 ? 4 : parts >= 2 ? 2 : 1;
}

}  // namespace quire::cuda
