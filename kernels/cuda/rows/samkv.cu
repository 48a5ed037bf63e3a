#include "kernels/cuda/rows/samkv.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status samkv_scores(const DeviceRopeTable& table, const SamkvScoresArgs& args,
                    StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_samkv_scores(launcher, table, args);
}

Status recomputed_rows(const DeviceRopeTable& table, const RecomputedRowsArgs& args,
                       StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_recomputed_rows(launcher, table, args);
}

}  // namespace quire::cuda
