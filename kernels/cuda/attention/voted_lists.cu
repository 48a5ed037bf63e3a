#include "kernels/cuda/attention/voted_lists.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status voted_lists(const VotedListsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_voted_lists(launcher, args);
}

}  // namespace quire::cuda
