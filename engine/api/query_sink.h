/// This file declares how a caller receives a query's events.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/api/plan.h"
#include "engine/api/query_stats.h"
#include "engine/sample/sampler.h"

namespace quire {

/// Share of attention that each answer token gives to each document block; it points to evidence
/// but proves nothing. engine/answer/attribution.h defines what is counted.
struct Attribution {
  /// Number of tokens passed to on_token, in order, without the id that ended the answer.
  std::int64_t num_tokens = 0;
  std::int64_t num_blocks = 0;  ///< blocks of Plan::contexts, in order
  /// [num_tokens, num_blocks], not negative. A token's row sums to at most 1, as the rest of its
  /// attention went to no document. Blocks that no layer kept have 0.
  std::vector<float> share;
};

/// Receives one query's events on the engine thread, in order: on_plan, (on_logprobs, on_token)*,
/// on_attribution at most once, on_done exactly once. Methods must not block. Cancel by returning
/// false from on_token or through QueryHandle.
class QuerySink {
 public:
  virtual ~QuerySink() = default;
  virtual void on_plan(const Plan& plan) = 0;
  /// Receives a token and the text that became final with it (may be empty); returning false
  /// cancels the query. An id that ends the answer is passed only if text was held back until then.
  virtual bool on_token(std::int32_t token_id, std::string_view text) = 0;
  /// Is called with SamplingOptions::top_logprobs, before the on_token of every token except the id
  /// that ends the answer.
  virtual void on_logprobs(const TokenLogprobs& /*logprobs*/) {}
  /// Returns whether on_logits() should be called.
  virtual bool wants_logits() const { return false; }
  /// Receives the logits, [vocab_size] f32, of each next token before its on_token, also of the
  /// token that ends the answer. They are valid during the call only.
  virtual void on_logits(std::span<const float> /*logits*/) {}
  /// Is called only for a request with `attribute`, right before an on_done with an OK status. It
  /// is skipped if the engine cannot attribute (no documents, no tokens, out of memory).
  virtual void on_attribution(const Attribution& /*attribution*/) {}
  /// Ends the query; if `status` is not OK, the answer is incomplete. `plan` carries the final
  /// fates, tiers and misses.
  virtual void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
                       FinishReason reason) = 0;
};

/// Lets the caller cancel a query; dropping the handle does not cancel it.
class QueryHandle {
 public:
  explicit QueryHandle(std::shared_ptr<std::atomic<bool>> cancelled)
      : cancelled_(std::move(cancelled)) {}
  void cancel() { cancelled_->store(true); }

 private:
  std::shared_ptr<std::atomic<bool>> cancelled_;
};

}  // namespace quire
