#include "kernels/cuda/attention/attention_by_dtype.h"
#include "kernels/cuda/attention/attention_prefill.cuh"
#include "kernels/cuda/hardware.cuh"

namespace quire::cuda {

Status prefill_attention_f8(const PrefillAttentionArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_prefill_attention<F8>(launcher, args);
}

}  // namespace quire::cuda
