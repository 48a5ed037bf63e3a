#include "kernels/cuda/attention/attention_statistics.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status attention_mass(const AttentionMassArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_attention_mass(launcher, args);
}

Status attention_stats(const AttentionStatsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_attention_stats(launcher, args);
}

}  // namespace quire::cuda
