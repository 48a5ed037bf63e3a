/// From logits to the next token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/sample/draw.h"

namespace quire {

class Grammar;

inline constexpr std::int32_t kMaxTopLogprobs = 20;

struct SamplingOptions {
  std::int32_t max_tokens = 128;
  float temperature = 0;  ///< 0: greedy
  float top_p = 1;
  std::int32_t top_k = 0;  ///< 0: off
  float min_p = 0;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;             ///< the text ends before the first of these
  std::vector<std::int32_t> stop_token_ids;  ///< besides the model's end-of-text ids
  bool ignore_eos = false;
  /// Each in [-2, 2], taken off the logits of tokens the answer has already: frequency per
  /// occurrence, presence once.
  float frequency_penalty = 0, presence_penalty = 0;
  /// Token id (each once) and what its logit gets added, [-100, 100]
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  /// QuerySink::on_logprobs with this many alternatives, 0 .. kMaxTopLogprobs; none: off
  std::optional<std::int32_t> top_logprobs;
  /// Every text of the answer is a beginning of one of its texts; null: any text
  std::shared_ptr<const Grammar> grammar;
  /// The first tokens of the answer are these whatever the logits say (teacher forcing); sampling
  /// goes on behind them.
  std::vector<std::int32_t> forced_tokens;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);

/// Checks ranges; field() of the error names the offending member as the API spells it. Ids must
/// lie below `vocab_size`.
Status validate(const SamplingOptions& options, std::int32_t vocab_size);

/// A token and the natural logarithm of its probability.
struct TokenLogprob {
  std::int32_t token_id = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< the most likely tokens, first the likeliest, equal ones by id
};
/// Under the model's own distribution, the softmax of `logits` [vocab_size]: no temperature,
/// penalty or bias. A logit that is no number has probability 0.
TokenLogprobs token_logprobs(std::span<const float> logits, std::int32_t token_id,
                             std::int32_t num_top);

/// Picks tokens for one sequence; deterministic for a given seed. Not shared between threads.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  /// logits: [vocab_size] f32, not changed.
  std::int32_t sample(std::span<const float> logits);
  /// Of the tokens in `allowed` (token t is bit t % 64 of word t / 64; those behind its end are
  /// not) only. -1: there is none.
  std::int32_t sample(std::span<const float> logits, std::span<const std::uint64_t> allowed);
  /// How sample() would draw the next token, for somebody who has its logits elsewhere; the same
  /// until a token is sampled or recorded. Nothing: the logits are changed first (penalties, bias).
  std::optional<DrawRule> next_rule();
  /// The answer goes on with this token: what penalties count.
  void record(std::int32_t token_id);

 private:
  /// The logits after penalties and bias; the argument itself where there are none.
  std::span<const float> adjusted(std::span<const float> logits);
  std::int32_t draw(std::span<const float> logits);
  DrawRule rule();

  SamplingOptions options_;
  std::uint64_t state_[4];
  std::optional<double> uniform_;  ///< drawn for the next token
  DrawScratch scratch_;
  std::vector<float> adjusted_;
  /// Of the answer's tokens, where penalties want them
  std::unordered_map<std::int32_t, std::int32_t> counts_;
};

}  // namespace quire
