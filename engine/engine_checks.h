/// What an engine asks of its options and of a model's files before it starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/chat/chat_template.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/matmul.h"

namespace quire {

/// "auto" is w4 for a model whose weights are stored in blocks (`quantised`), else bf16 where the
/// CPU multiplies it, else f32. Errors: kInvalidArgument, field model.weights.
Result<WeightFormat> parse_weights(const std::string& name, bool quantised);

/// Each number on its own. Errors: kInvalidArgument, naming the setting.
Status check_engine_options(const EngineOptions& options);

/// Every id that a prompt may begin or an answer end with is one of the model's. Errors:
/// kInvalidArgument, field tokenizer.
Status check_tokenizer(const ModelConfig& config, const Tokenizer& tokenizer,
                       const PromptFormat& format);

/// One BOS where prompts of this model begin with one (ingest_prefix = bos).
std::vector<std::int32_t> ingest_prefix_of(const Tokenizer& tokenizer, const PromptFormat& format);

}  // namespace quire
