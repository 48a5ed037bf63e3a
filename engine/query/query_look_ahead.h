/// A query's look-ahead: asked of the draft when the query is planned, wanted when the question's
/// last rows run.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/draft/draft.h"
#include "engine/plan/plan_builder.h"
#include "engine/query/query_resources.h"
#include "kernels/attention_mass.h"

namespace quire {

/// Threads: the engine thread.
class QueryLookAhead {
 public:
  /// What is wanted of the draft.
  struct Wish {
    std::int32_t tokens = 0;  ///< behind the whole prompt
    /// Last tokens whose rows score the prompt's tokens; 0: no scores
    std::int32_t score_window = 0;
  };
  /// Asks the draft. Without one everything is settled at once, with a reason. Once the plan is
  /// complete the draft writes from what the target attends to; before that, and for scores, from
  /// the whole prompt.
  QueryLookAhead(QueryResources& core, const QueryRequest& request, const QueryPlan& plan,
                 const Wish& wish);
  /// Settled: the draft wrote these tokens, of the target's vocabulary, when it read the prompt; it
  /// took so long.
  QueryLookAhead(std::vector<std::int32_t> token_ids, double draft_ms);
  ~QueryLookAhead();
  QueryLookAhead(const QueryLookAhead&) = delete;
  QueryLookAhead& operator=(const QueryLookAhead&) = delete;

  /// True: tokens() says what there is. The draft has until draft_wait_ms after the first call;
  /// then it is given up.
  bool settled(Clock::time_point now);
  /// True: scores() says what there is. Its patience is that of settled(), counted for itself.
  bool scored(Clock::time_point now);
  /// Of every token of a context that is in the prompt, as the request has it; empty: there are
  /// none.
  std::vector<std::span<const float>> scores() const;
  /// Why scores that were wanted did not come; empty if they did.
  const std::string& score_reason() const { return score_reason_; }
  /// What came, at most `most` tokens.
  std::span<const std::int32_t> tokens(std::int64_t most) const;
  /// Why there are none although they were wanted; empty if there are.
  const std::string& reason() const { return reason_; }
  /// From asking to settling.
  double draft_ms() const { return settled_ ? earlier_ms_ + ms_between(asked_, settled_at_) : 0; }

 private:
  void settle(Clock::time_point now, std::string reason);
  void give_up();

  const bool wants_tokens_;
  const std::chrono::milliseconds patience_;
  const Clock::time_point asked_;
  double earlier_ms_ = 0;
  std::shared_ptr<LookAhead> answer_;
  std::optional<Clock::time_point> waited_since_;
  bool settled_ = false;
  Clock::time_point settled_at_;
  std::string reason_;
  std::optional<Clock::time_point> waited_for_scores_since_;
  bool scores_settled_ = false, given_up_ = false;
  std::string score_reason_;
  /// [context] in the prompt that the draft reads; empty where it is a copy
  std::vector<KvStretch> contexts_;
};

}  // namespace quire
