#include "kernels/cuda/rows/kv_gather.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status kv_gather(const KvGatherArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_kv_gather(launcher, args);
}

}  // namespace quire::cuda
