#include "kernels/cuda/attention/attention_by_dtype.h"
#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/hardware.cuh"

namespace quire::cuda {

Status decode_attention_f8(const DecodeAttentionArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_decode_attention<F8>(launcher, args);
}

}  // namespace quire::cuda
