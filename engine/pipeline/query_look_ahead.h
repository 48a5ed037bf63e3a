/// A query's look-ahead: asked of the draft when the query is planned, wanted when the question's last rows run.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/draft/draft.h"
#include "engine/pipeline/core.h"
#include "engine/pipeline/plan_builder.h"

namespace quire {

/// Threads: the engine thread.
class QueryLookAhead {
 public:
  /// Asks the draft for `num_tokens` tokens behind the whole prompt. Without a draft it is settled at once, with a reason.
  QueryLookAhead(EngineCore& core, const QueryRequest& request, const QueryPlan& plan, std::int32_t num_tokens);
  /// Settled: the draft wrote these tokens, of the target's vocabulary, when it read the prompt; it took so long.
  QueryLookAhead(std::vector<std::int32_t> token_ids, double draft_ms);
  ~QueryLookAhead();
  QueryLookAhead(const QueryLookAhead&) = delete;
  QueryLookAhead& operator=(const QueryLookAhead&) = delete;

  /// True: tokens() says what there is. The draft has until draft_wait_ms after the first call; then it is given up.
  bool settled(Clock::time_point now);
  /// What came, at most `most` tokens.
  std::span<const std::int32_t> tokens(std::int64_t most) const;
  /// Why there are none; empty if there are.
  const std::string& reason() const { return reason_; }
  /// From asking to settling.
  double draft_ms() const { return settled_ ? earlier_ms_ + ms_between(asked_, settled_at_) : 0; }

 private:
  void settle(Clock::time_point now, std::string reason);

  const std::chrono::milliseconds patience_;
  const Clock::time_point asked_;
  double earlier_ms_ = 0;
  std::shared_ptr<LookAhead> answer_;
  std::optional<Clock::time_point> waited_since_;
  bool settled_ = false;
  Clock::time_point settled_at_;
  std::string reason_;
};

}  // namespace quire
