/// This file declares attention per element type of the KV; each type is instantiated in its own
/// file.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/runtime/stream.h"

namespace quire::cuda {

Status decode_attention_f32(const DecodeAttentionArgs& args, StreamHandle stream);
Status decode_attention_f16(const DecodeAttentionArgs& args, StreamHandle stream);
Status decode_attention_bf16(const DecodeAttentionArgs& args, StreamHandle stream);
Status decode_attention_f8(const DecodeAttentionArgs& args, StreamHandle stream);
Status prefill_attention_f16(const PrefillAttentionArgs& args, StreamHandle stream);
Status prefill_attention_bf16(const PrefillAttentionArgs& args, StreamHandle stream);
Status prefill_attention_f8(const PrefillAttentionArgs& args, StreamHandle stream);

}  // namespace quire::cuda
