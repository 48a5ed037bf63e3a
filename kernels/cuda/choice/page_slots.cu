#include "kernels/cuda/choice/page_slots.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status fill_slots(const FillSlotsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_fill_slots(launcher, args);
}

}  // namespace quire::cuda
