#include "kernels/cuda/rows/kv_tables.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status write_tables(const WriteTablesArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_write_tables(launcher, args);
}

}  // namespace quire::cuda
