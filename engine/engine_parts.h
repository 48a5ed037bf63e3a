/// An engine out of parts already in memory, for measurements on random weights and for tests, or
/// one that something else than the CPU computes for.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/model/model.h"

namespace quire {

struct EngineParts {
  std::unique_ptr<Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  PromptFormat format;
  std::unique_ptr<Model> draft = nullptr;  ///< null: options.draft_path; else with its tokenizer
  std::unique_ptr<Tokenizer> draft_tokenizer = nullptr;
};

/// As create_engine(), but nothing is loaded: of `options` model_path, weights, kv_dtype and
/// max_model_len are not used. Errors: kInvalidArgument (tokenizer and model do not fit).
Result<std::unique_ptr<Engine>> create_engine_from_parts(EngineParts parts,
                                                         const EngineOptions& options,
                                                         Store& store);

/// As create_engine(), with a model that `compute` runs; null: the CPU. Errors: those of
/// create_engine() and of the Compute; kResourceExhausted (weights or working caches are larger
/// than its memory).
Result<std::unique_ptr<Engine>> create_engine_on(std::shared_ptr<Compute> compute,
                                                 const EngineOptions& options, Store& store);

}  // namespace quire
