/// This file implements the decode stage of one query, from the question's logits to the last
/// token.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "engine/answer/answer_text.h"
#include "engine/answer/decode_batch.h"
#include "engine/api/query_sink.h"
#include "engine/query/query_run.h"
#include "engine/sample/token_mask.h"

namespace quire {

/// Generates the answer of one query. Threads: the engine thread.
class Answer {
 public:
  /// How the answer ended.
  struct End {
    Status status;
    FinishReason reason = FinishReason::kStop;
  };

  Answer(QueryRun& run, QuerySink& sink, std::int32_t next_position);

  /// Samples the next token from these logits (or takes the forced one) and passes its text to the
  /// sink. Returns nothing while the answer continues.
  std::optional<End> advance(std::span<const float> logits);
  /// row() returns the row of the next decode step, behind which at most `ahead` may follow;
  /// decoded() takes its result, and followed() the token of a step that followed, one by one.
  /// The row is valid until the next call.
  DecodeRow row(std::size_t ahead);
  std::optional<End> decoded(const DecodeRow& row);
  std::optional<End> followed(std::int32_t token_id);

  /// Returns the tokens emitted so far, in order, without the id that ended the answer. They are
  /// kept only for a request with `attribute`.
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

 private:
  std::int32_t choose(std::span<const float> logits);
  /// Returns the ids that end the answer.
  std::vector<std::int32_t> ending_ids() const;
  bool may_stop() const;
  /// Returns how the compute device may sample the next token, if nobody else needs its logits.
  std::optional<SampleRule> rule();
  std::size_t make_rules_ahead(const SampleRule& first, std::size_t most);
  void pass_rule();
  std::int64_t room() const;
  bool prefers_withheld(std::span<const float> logits) const;
  std::optional<End> accept(std::int32_t token_id, std::span<const float> logits);

  QueryRun& run_;
  QuerySink& sink_;
  Sampler sampler_;
  AnswerText text_;
  std::vector<std::int32_t> tokens_;
  std::vector<SampleRule> ahead_;  ///< rules of the tokens after the next one, so far
  /// A copy of sampler_, made once, that is as many tokens further as ahead_ has rules.
  std::optional<Sampler> later_;
  std::optional<GrammarMatcher> matcher_;  ///< set if there is a grammar
  std::vector<std::uint64_t> allowed_;     ///< tokens that the matcher and the end rules allow
  bool cut_short_ = false;                 ///< the model preferred a longer answer than fits
  std::int32_t next_token_ = 0, next_position_ = 0;
};

}  // namespace quire
