#include "kernels/cuda/choice/sampling.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status sample(const SampleArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_sample(launcher, args);
}

}  // namespace quire::cuda
