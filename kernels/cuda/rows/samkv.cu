#include "kernels/cuda/rows/samkv.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status samkv_scores(const DeviceRopeTable& table, const SamkvScoresArgs& args,
                    StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_samkv_scores(launcher, table, args);
}

Status blend_rows(const BlendRowsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_blend_rows(launcher, args);
}

}  // namespace quire::cuda
