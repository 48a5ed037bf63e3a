#include "kernels/cuda/matmul/few_rows.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status grouped_product(const GroupedProductArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_grouped_product(launcher, args);
}

Status int8_product(const Int8ProductArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_int8_product(launcher, args);
}

std::int32_t few_rows_splits(const DeviceProperties& device, std::int64_t n, std::int64_t k) {
  constexpr std::int32_t kResident = 1;  // blocks of a multiprocessor; two waves are two of each
  const auto most = static_cast<std::int32_t>(few_rows_most_splits(n, k));
  return split_parts(device, kResident, (n + kFewRowsOutputs - 1) / kFewRowsOutputs, k, 512, most);
}

}  // namespace quire::cuda
