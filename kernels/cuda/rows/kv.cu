#include "kernels/cuda/rows/kv.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status rope_rotate(const DeviceRopeTable& table, const RopeRotateArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_rope_rotate(launcher, table, args);
}

Status kv_place(const DeviceRopeTable& table, const KvPlaceArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_kv_place(launcher, table, args);
}

Status write_new_rows(const DeviceRopeTable& table, const NewRowsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_write_new_rows(launcher, table, args);
}

Status kv_pack(const KvPackArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_kv_pack(launcher, args);
}

Status block_summaries(const DeviceRopeTable& table, const BlockSummariesArgs& args,
                       StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_block_summaries(launcher, table, args);
}

}  // namespace quire::cuda
