#include "kernels/cuda/choice/candidates.cuh"

#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status key_products(const KeyProductsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_key_products(launcher, args);
}

Status candidate_votes(const CandidateVotesArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_candidate_votes(launcher, args);
}

Status candidate_rows(const CandidateRowsArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_candidate_rows(launcher, args);
}

Status list_union(const ListUnionArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_list_union(launcher, args);
}

}  // namespace quire::cuda
