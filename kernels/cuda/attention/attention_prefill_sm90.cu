#include "kernels/cuda/attention/attention_prefill_sm90.cuh"

#include "kernels/cuda/attention/attention_prefill_sm90.h"

namespace quire::cuda {

Status prefill_attention_sm90(const PrefillAttentionArgs& args, int workers, StreamHandle stream) {
  const KvView& kv = args.attention.kv;
  HardwareLauncher launcher(stream);
  if (!has_prefill_sm90(kv.dtype, kv.head_dim))
    return Status::invalid("kv", "the kernel for sm_90a takes f16 or bf16 of 64 or 128 channels");
  if (workers != 1 && workers != 2)
    return Status::invalid("workers", "a block has one or two workers");
  const auto launch = [&]<class E>(E) {
    return workers == 1 ? launch_prefill_sm90<E, 1>(launcher, args)
                        : launch_prefill_sm90<E, 2>(launcher, args);
  };
  return kv.dtype == DType::kF16 ? launch(F16{}) : launch(BF16{});
}

}  // namespace quire::cuda
