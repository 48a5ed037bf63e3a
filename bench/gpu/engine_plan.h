/// The cases of the engine in the GPU benchmark.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/model/config.h"

namespace quire::cuda::bench {

/// The engine's cases.
struct EngineCases {
  ModelConfig config;
  std::vector<std::int64_t> prefills;  ///< tokens
  /// Sequences, and tokens of the first; decode_tokens() says those of the others.
  std::vector<std::pair<std::int64_t, std::int64_t>> decodes;
  /// Sequences that decode over a part of their rows, on the device or not, and their tokens.
  std::int64_t retrieve_sequences = 0, retrieve_tokens = 0;
  std::int64_t documents = 0, document_tokens = 0;
  /// One sequence whose KV does not fit a device of that many bytes beside the weights.
  std::int64_t offload_tokens = 0, offload_device_bytes = 0;
  int prefill_rounds = 0, decode_steps = 0, retrieve_steps = 0, question_rounds = 0;
};
/// Returns cases of Llama-3.1-8B's shape; quick: Llama-3.2-1B's, and shorter contexts.
EngineCases engine_cases(bool quick);

/// Returns the tokens of a sequence before the first step. They differ, so that the sequences cross
/// borders of pages and of chunks of attention in different steps.
inline std::int64_t decode_tokens(std::int64_t first, std::int64_t sequence) {
  return first + 37 * sequence;
}

/// Counts the products of every layer, and attention to the tokens that each token sees.
double prefill_flops(const ModelConfig& config, std::int64_t tokens);

}  // namespace quire::cuda::bench
