#include "kernels/cuda/attention/attention_by_dtype.h"
#include "kernels/cuda/attention/attention_decode.cuh"
#include "kernels/cuda/attention/attention_scores.cuh"
#include "kernels/cuda/hardware.cuh"
#include "kernels/cuda/kernels.h"

namespace quire::cuda {

Status decode_attention(const DecodeAttentionArgs& args, StreamHandle stream) {
  switch (args.attention.kv.dtype) {
    case DType::kF32:
      return decode_attention_f32(args, stream);
    case DType::kF16:
      return decode_attention_f16(args, stream);
    case DType::kBF16:
      return decode_attention_bf16(args, stream);
    case DType::kI8:
      break;
  }
  return Status::invalid("kv.dtype", "KV is f32, f16 or bf16");
}

std::int32_t decode_run_chunks(const DeviceProperties& device, const DecodeAttentionArgs& args) {
  return best_run_chunks(device, args);
}

Status prefill_attention(const AttentionArgs& args, StreamHandle stream) {
  switch (args.kv.dtype) {
    case DType::kF16:
      return prefill_attention_f16(args, stream);
    case DType::kBF16:
      return prefill_attention_bf16(args, stream);
    case DType::kF32:
    case DType::kI8:
      break;
  }
  return Status::invalid("kv.dtype",
                         "prefill attention takes f16 or bf16 KV; use decode_attention for f32");
}

Status attention_scores(const AttentionScoresArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_attention_scores(launcher, args);
}

Status merge_attention(const MergeAttentionArgs& args, StreamHandle stream) {
  HardwareLauncher launcher(stream);
  return launch_merge_attention(launcher, args);
}

}  // namespace quire::cuda
