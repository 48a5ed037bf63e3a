/// This file checks engine options and model files before the engine starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/chat/chat_template.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/matmul/matmul.h"

namespace quire {

/// Parses a weight format. "auto" means w4 for a model whose weights are stored in blocks
/// (`quantised`), else bf16 if the CPU multiplies bf16, else f32. Errors: kInvalidArgument, field
/// model.weights.
Result<WeightFormat> parse_weights(const std::string& name, bool quantised);

/// Checks the range of each numeric option. Errors: kInvalidArgument, naming the setting.
Status check_engine_options(const EngineOptions& options);

/// Checks that nothing is asked for what retrievers keep, who have nothing to do where KV is cut
/// over several devices (Compute::splits_kv()). Errors: kInvalidArgument, naming the setting.
Status check_split_caches(const EngineOptions& options);

/// Checks whether KV may have the dtype that the options ask for. Errors: kInvalidArgument (field
/// model.device_kv_dtype).
Status check_device_kv(const EngineOptions& options, std::int32_t head_dim, bool on_device);

/// Checks that the model's vocabulary has every id that may begin a prompt or end an answer.
/// Errors: kInvalidArgument, field tokenizer.
Status check_tokenizer(const ModelConfig& config, const Tokenizer& tokenizer,
                       const PromptFormat& format);

/// Returns one BOS token if prompts of this model begin with it (ingest_prefix = bos), else
/// nothing.
std::vector<std::int32_t> ingest_prefix_of(const Tokenizer& tokenizer, const PromptFormat& format);

}  // namespace quire
