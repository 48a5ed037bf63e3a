/// This file manages a query's look-ahead, which is requested from the draft when the query is
/// planned and used when the question's last rows run.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/api/plan.h"
#include "engine/api/requests.h"
#include "engine/draft/draft.h"
#include "engine/query/query_resources.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

/// The look-ahead of one query. Threads: the engine thread.
class QueryLookAhead {
 public:
  /// The request to the draft.
  struct Wanted {
    std::int32_t tokens = 0;  ///< tokens after the whole prompt
    /// Number of last prompt tokens whose rows score the prompt's tokens; 0: no scores.
    std::int32_t score_window = 0;
  };
  /// Requests the look-ahead; without a draft it settles at once, with a reason. Once the plan is
  /// complete, the draft writes from what the target attends to; before that, and for scores, from
  /// the whole prompt.
  QueryLookAhead(QueryResources& core, const QueryRequest& request, const Plan& plan,
                 const Wanted& wanted);
  /// Creates a settled look-ahead from tokens, in the target's vocabulary, that the draft wrote
  /// while reading the prompt; `draft_ms` is the time it took.
  QueryLookAhead(std::vector<std::int32_t> token_ids, double draft_ms);
  ~QueryLookAhead();
  QueryLookAhead(const QueryLookAhead&) = delete;
  QueryLookAhead& operator=(const QueryLookAhead&) = delete;

  /// Returns true once tokens() is final. The draft has draft_wait_ms from the first call on; then
  /// the look-ahead is abandoned.
  bool settled(Clock::time_point now);
  /// Returns true once scores() is final. Its time limit is that of settled(), counted separately.
  bool scored(Clock::time_point now);
  /// Returns the scores of every token of each context in the prompt, in the request's order;
  /// empty: there are none.
  std::vector<std::span<const float>> scores() const;
  /// Returns why requested scores did not come; empty if they did.
  const std::string& score_reason() const { return score_reason_; }
  /// Returns the tokens that came, at most `most`.
  std::span<const std::int32_t> tokens(std::int64_t most) const;
  /// Returns why requested tokens did not come; empty if they did.
  const std::string& reason() const { return reason_; }
  /// Returns the time from the request to settling.
  double draft_ms() const { return settled_ ? earlier_ms_ + ms_between(asked_, settled_at_) : 0; }

 private:
  void synchronize(Clock::time_point now, std::string reason);
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
  /// Range of each context in the prompt that the draft reads; empty for copies.
  std::vector<RowRange> contexts_;
};

}  // namespace quire
