/// This file creates an engine from parts already in memory (for benchmarks on random weights and
/// for tests), or on a Compute other than the CPU.
#pragma once

#include <memory>

#include "engine/api/facts.h"
#include "engine/engine.h"
#include "engine/model/model.h"

namespace quire {

struct EngineParts {
  std::unique_ptr<Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  PromptFormat format;
  /// The draft model, with draft_tokenizer; null: options.draft_path is loaded.
  std::unique_ptr<Model> draft = nullptr;
  std::unique_ptr<Tokenizer> draft_tokenizer = nullptr;
};

/// Loads the model, its tokenizer and its prompt format as create_engine() does. The model runs on
/// `compute`; null: the CPU. Errors: those of create_engine_on().
Result<EngineParts> load_engine_parts(std::shared_ptr<Compute> compute,
                                      const EngineOptions& options);

/// Returns what the parts alone say: shapes, window, ingest prefix and names.
EngineFacts facts_of(const Model& model, const Tokenizer& tokenizer, const PromptFormat& format,
                     std::int32_t block_tokens, std::int32_t layers_per_value = 0);

/// Creates an engine like create_engine(), but loads no files. The options model_path, weights,
/// kv_dtype and max_model_len are ignored. Errors: kInvalidArgument (tokenizer and model do not
/// match).
Result<std::unique_ptr<Engine>> create_engine_from_parts(EngineParts parts,
                                                         const EngineOptions& options,
                                                         Store& store);

/// Creates an engine like create_engine() whose model runs on `compute`; null: the CPU. Errors:
/// those of create_engine() and of the Compute; kResourceExhausted (weights or working caches
/// exceed its memory).
Result<std::unique_ptr<Engine>> create_engine_on(std::shared_ptr<Compute> compute,
                                                 const EngineOptions& options, Store& store);

}  // namespace quire
