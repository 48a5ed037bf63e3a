#include "kernels/cuda/attention/attention_by_dtype.h"
#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/attention/attention_prefill_sm90.h"
#include "kernels/cuda/attention/attention_scores.cuh"
#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

#ifdef QUIRE_CUDA_SM90
namespace {

/// Returns how many workers the blocks of prefill_attention_sm90() shall have on the current
/// device; 0 where it does not apply. That it applies depends on neither rows nor keys, because its
/// bits differ from those of the portable kernel.
int prefill_workers(const AttentionArgs& a) {
  int device = 0, major = 0, minor = 0, multiprocessors = 0;
  if (!has_prefill_sm90(a.kv.dtype, a.kv.head_dim) || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess ||
      major != 9 || minor != 0)
    return 0;
  // A multiprocessor holds one block. Two workers share keys and overlap their work; one worker
  // spreads few lanes over the device
  const std::int64_t small_blocks = (a.rows * a.num_heads + 63) / 64;
  return small_blocks <= multiprocessors ? 1 : 2;
}

}  // namespace
#endif

Status decode_attention(const DecodeAttentionArgs& args, StreamHandle stream) {
  switch (args.attention.kv.dtype) {
    case DType::kF32:
      return decode_attention_f32(args, stream);
    case DType::kF16:
      return decode_attention_f16(args, stream);
    case DType::kBF16:
      return decode_attention_bf16(args, stream);
    case DType::kF8:
      return decode_attention_f8(args, stream);
    case DType::kI8:
      break;
  }
  return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
}

std::int32_t decode_run_chunks(const DeviceProperties& device, const DecodeAttentionArgs& args) {
  return best_run_chunks(device, args);
}

Status prefill_attention(const PrefillAttentionArgs& args, StreamHandle stream) {
#ifdef QUIRE_CUDA_SM90
  if (const int workers = prefill_workers(args.attention); workers != 0)
    return prefill_attention_sm90(args, workers, stream);
#endif
  switch (args.attention.kv.dtype) {
    case DType::kF16:
      return prefill_attention_f16(args, stream);
    case DType::kBF16:
      return prefill_attention_bf16(args, stream);
    case DType::kF8:
      return prefill_attention_f8(args, stream);
    case DType::kF32:
    case DType::kI8:
      break;
  }
  return Status::invalid("kv.dtype",
                         "prefill attention takes f16, bf16 or f8 KV; use decode_attention for "
                         "f32");
}

Status attention_scores(const AttentionScoresArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_attention_scores(launcher, args);
}

}  // namespace quire::cuda
