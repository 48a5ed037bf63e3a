/// This file samples tokens from logits.
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
/// Tokens that an answer is counted with before it is known how long it gets, where the client gave
/// no number; as many again whenever it has come near them.
inline constexpr std::int32_t kUnaskedAnswerTokens = 256;

struct SamplingOptions {
  std::int32_t max_tokens = 128;
  /// The client asked for max_tokens. If false, it is the default of the protocol, often the whole
  /// window: few answers get that long, and one may end earlier where memory is too small for it.
  bool max_tokens_asked = true;
  /// The answer goes on in the text that the prompt ends with, so that a space before its first
  /// word is part of it. Else a vocabulary's own space at the start of every text is not.
  bool continues = false;
  float temperature = 0;  ///< 0: greedy
  float top_p = 1;
  std::int32_t top_k = 0;  ///< 0: off
  float min_p = 0;
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;  ///< stop strings; the text ends before the first of these
  std::vector<std::int32_t> stop_token_ids;  ///< stop tokens besides the model's end-of-text ids
  bool ignore_eos = false;
  /// Neither a stop token nor a stop string ends the answer before it has this many tokens.
  std::int32_t min_tokens = 0;
  /// Penalties in [-2, 2] that are subtracted from the logits of tokens already in the answer:
  /// frequency per occurrence, presence once.
  float frequency_penalty = 0, presence_penalty = 0;
  /// Divides the positive logits, and multiplies the negative ones, of tokens that are in the
  /// prompt or the answer, (0, 10]; 1: off.
  float repetition_penalty = 1;
  /// Tokens that the answer may consist of, and those that end it; empty: any.
  std::vector<std::int32_t> allowed_tokens;
  /// Special tokens whose spelling is part of the answer's text, ascending. Others have no text.
  std::vector<std::int32_t> shown_tokens;
  /// Token ids, each at most once, and the bias added to their logits, [-100, 100].
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  /// Number of alternatives in QuerySink::on_logprobs, 0 .. kMaxTopLogprobs; none: off.
  std::optional<std::int32_t> top_logprobs;
  /// Grammar that the answer must belong to; a partial answer is a prefix of one of its texts.
  /// Null: any text.
  std::shared_ptr<const Grammar> grammar;
  /// Forced first tokens of the answer, whatever the logits are (teacher forcing); sampling
  /// continues after them.
  std::vector<std::int32_t> forced_tokens;
};

enum class FinishReason : std::uint8_t { kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);

/// Returns the tokens with which an answer is counted before it has any: those that were asked for,
/// else kUnaskedAnswerTokens or as many as it must have, but never more than it may have.
std::int32_t counted_answer_tokens(const SamplingOptions& options);

/// Returns the ids that end an answer: those of the options, and `stop_ids`, those of the model.
std::vector<std::int32_t> ending_ids(const SamplingOptions& options,
                                     std::span<const std::int32_t> stop_ids);

/// Checks ranges, and that some token may begin the answer; ids must lie below `vocab_size`.
/// `stop_ids` are those of the model. Errors: kInvalidArgument; field() names the offending member
/// as the API spells it.
Status validate(const SamplingOptions& options, std::int32_t vocab_size,
                std::span<const std::int32_t> stop_ids);

/// A token and the natural logarithm of its probability.
struct TokenLogprob {
  std::int32_t token_id = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  ///< most likely tokens, descending; ties by id
};
/// Returns log probabilities under the model's own distribution: the softmax of `logits`,
/// [vocab_size], without temperature, penalties or bias. A NaN logit has probability 0.
TokenLogprobs token_logprobs(std::span<const float> logits, std::int32_t token_id,
                             std::int32_t num_top);

/// Samples tokens for one sequence; deterministic for a given seed. Not shared between threads.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);
  /// Samples a token from logits, [vocab_size] f32, which are not changed.
  std::int32_t sample(std::span<const float> logits);
  /// Samples only from `allowed`: token t is bit t % 64 of word t / 64, and tokens after its end
  /// are not allowed. Returns -1 if no token is allowed.
  std::int32_t sample(std::span<const float> logits, std::span<const std::uint64_t> allowed);
  /// Returns the rule by which sample() would sample the next token, for a caller whose logits are
  /// elsewhere; it is constant until a token is sampled or recorded. Nothing: the logits are
  /// changed first (penalties, bias).
  std::optional<SampleRule> next_rule();
  /// Records a token of the answer, for the penalties.
  void record(std::int32_t token_id);
  /// Records tokens of the prompt, for the repetition penalty. Ids below zero are none.
  void record_prompt(std::span<const std::int32_t> token_ids);
  /// Sets the tokens that end the answer, which allowed_tokens never excludes.
  void end_with(std::span<const std::int32_t> token_ids);
  /// Sets the tokens that are never sampled from now on; empty: none.
  void ban(std::span<const std::int32_t> token_ids);

 private:
  /// Returns the logits after penalties and bias; the argument itself if there are none.
  std::span<const float> adjusted(std::span<const float> logits);
  /// Returns whether penalties, bias or forbidden tokens change logits.
  bool changes_logits() const;
  std::int32_t draw(std::span<const float> logits);
  SampleRule rule();

  SamplingOptions options_;
  std::uint64_t state_[4];
  std::optional<double> uniform_;  ///< random number for the next token
  SampleScratch scratch_;
  std::vector<float> adjusted_;
  /// Counts of the answer's tokens, if penalties need them. A token of the prompt has at least 0.
  std::unordered_map<std::int32_t, std::int32_t> counts_;
  std::vector<std::int32_t> banned_, ending_;
  std::vector<bool> permitted_;  ///< by id, if allowed_tokens restricts them
};

}  // namespace quire
