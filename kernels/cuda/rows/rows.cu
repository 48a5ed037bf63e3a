#include "kernels/cuda/rows/rows.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status rms_norm(const ResidualRmsNormArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_rms_norm(launcher, args);
}

Status swiglu(const RoundedSwigluArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_swiglu(launcher, args);
}

Status embedding(const EmbeddingArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_embedding(launcher, args);
}

Status convert(const ConvertArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_convert(launcher, args);
}

Status add_bias(const AddBiasArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_add_bias(launcher, args);
}

Status join_columns(const JoinColumnsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_join_columns(launcher, args);
}

Status column_sums(const ColumnSumsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_column_sums(launcher, args);
}

}  // namespace quire::cuda
