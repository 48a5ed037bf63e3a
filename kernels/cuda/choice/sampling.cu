#include "kernels/cuda/choice/sampling.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status sample(const SampleArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_sample(launcher, args);
}

std::int32_t sample_parts(const DeviceProperties& device, std::int64_t rows, std::int64_t n) {
  return best_sample_parts(device, rows, n);
}

}  // namespace quire::cuda
