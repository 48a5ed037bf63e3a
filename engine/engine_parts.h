/// An engine out of parts already in memory: for measurements on random weights and for tests.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/model/model.h"

namespace quire {

struct EngineParts {
  std::unique_ptr<Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  PromptFormat format;
};

/// As create_engine(), but nothing is loaded: of `options` model_path, weights, kv_dtype and max_model_len are not used.
/// Errors: kInvalidArgument (tokenizer and model do not fit).
Result<std::unique_ptr<Engine>> create_engine_from_parts(EngineParts parts, const EngineOptions& options, Store& store);

}  // namespace quire
