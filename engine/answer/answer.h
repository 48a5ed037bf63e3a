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
  /// row() returns the row of the next decode step; decoded() takes its result.
  DecodeRow row();
  std::optional<End> decoded(const DecodeRow& row);

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
  std::int64_t room() const;
  bool prefers_withheld(std::span<const float> logits) const;
  std::optional<End> accept(std::int32_t token_id, std::span<const float> logits);

  QueryRun& run_;
  QuerySink& sink_;
  Sampler sampler_;
  AnswerText text_;
  std::vector<std::int32_t> tokens_;
  std::optional<GrammarMatcher> matcher_;  ///< set if there is a grammar
  std::vector<std::uint64_t> allowed_;     ///< tokens that the matcher and the end rules allow
  bool cut_short_ = false;                 ///< the model preferred a longer answer than fits
  std::int32_t next_token_ = 0, next_position_ = 0;
};

}  // namespace quire
