#include "kernels/cuda/matmul/bf16_gemv.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status bf16_gemv(const MatmulArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_bf16_gemv(launcher, args);
}

}  // namespace quire::cuda
