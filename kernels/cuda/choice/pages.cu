#include "kernels/cuda/choice/pages.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status page_bounds(const PageBoundsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_page_bounds(launcher, args);
}

Status page_scores(const PageScoresArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_page_scores(launcher, args);
}

}  // namespace quire::cuda
