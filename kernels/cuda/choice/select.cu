#include "kernels/cuda/choice/select.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status top_k(const TopKArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_top_k(launcher, args);
}

Status argmax(const ArgmaxArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_argmax(launcher, args);
}

}  // namespace quire::cuda
