/// The decode stage of one query: from the question's logits to the last token.
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

/// Threads: the engine thread.
class Answer {
 public:
  /// How the answer ended; nothing: it goes on.
  struct End {
    Status status;
    FinishReason reason = FinishReason::kStop;
  };

  Answer(QueryRun& run, QuerySink& sink, std::int32_t next_position);

  /// Takes the next token from these logits (or the forced one) and gives its text to the sink.
  std::optional<End> advance(std::span<const float> logits);
  /// The row of the next decode step, and what came of it.
  DecodeRow row();
  std::optional<End> decoded(const DecodeRow& row);

  /// Given out so far, in order, without the id that ended the answer. Only for a request with
  /// `attribute`.
  const std::vector<std::int32_t>& tokens() const { return tokens_; }

 private:
  std::int32_t choose(std::span<const float> logits);
  /// The next token may be drawn by whoever has the logits: nobody else looks at them.
  std::optional<DrawRule> rule();
  std::int64_t room() const;
  bool prefers_withheld(std::span<const float> logits) const;
  std::optional<End> accept(std::int32_t token_id, std::span<const float> logits);

  QueryRun& run_;
  QuerySink& sink_;
  Sampler sampler_;
  AnswerText text_;
  std::vector<std::int32_t> tokens_;
  std::optional<GrammarMatcher> matcher_;  ///< with a grammar
  std::vector<std::uint64_t> allowed_;     ///< what the matcher and the ends of the answer allow
  bool cut_short_ = false;  ///< the model wanted a longer answer than there was room to end
  std::int32_t next_token_ = 0, next_position_ = 0;
};

}  // namespace quire
