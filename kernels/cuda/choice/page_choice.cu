#include "kernels/cuda/choice/page_choice.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status choose_pages(const ChoosePagesArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_choose_pages(launcher, args);
}

}  // namespace quire::cuda
