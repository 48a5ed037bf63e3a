/// From logits to the next token.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/status.h"

namespace quire {

struct SamplingOptions {
  std::int32_t max_tokens = 128;
  float temperature = 0;            ///< 0: greedy
  float top_p = 1;
  std::int32_t top_k = 0;           ///< 0: off
  float min_p = 0;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;    ///< the text ends before the first of these
  std::vector<std::int32_t> stop_token_ids;  ///< besides the model's end-of-text ids
  bool ignore_eos = false;
  /// The first tokens of the answer are these whatever the logits say (teacher forcing); sampling goes on behind them.
  std::vector<std::int32_t> forced_tokens;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);

/// Checks ranges; field() of the error names the offending member as the API spells it.
Status validate(const SamplingOptions& options);

/// Picks tokens for one sequence; deterministic for a given seed. Not shared between threads.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  /// logits: [vocab_size] f32, not changed.
  std::int32_t sample(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::uint64_t state_[4];
  std::vector<std::pair<float, std::int32_t>> scratch_;
};

}  // namespace quire
