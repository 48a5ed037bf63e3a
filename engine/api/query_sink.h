/// How a query's events reach whoever asked it.
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

/// Which blocks the answer looked at: a pointer to evidence, not a proof
/// (engine/answer/attribution.h says what is counted).
struct Attribution {
  /// Tokens given to on_token, in order, without the id that ended the answer
  std::int64_t num_tokens = 0;
  std::int64_t num_blocks = 0;  ///< blocks of Plan::contexts, in order
  /// [num_tokens, num_blocks], not negative. A token's row sums to at most 1: what is missing went
  /// to no document. Blocks that no layer kept have 0.
  std::vector<float> share;
};

/// Receives one query's events on the engine thread, in order: on_plan, (on_logprobs, on_token)*,
/// on_attribution at most once, then on_done exactly once. Must not block. Cancel by returning
/// false from on_token or through QueryHandle.
class QuerySink {
 public:
  virtual ~QuerySink() = default;
  virtual void on_plan(const Plan& plan) = 0;
  /// `text` is the piece that became final with this token (may be empty). False cancels. An id
  /// that ends the answer comes only if text was held back until then.
  virtual bool on_token(std::int32_t token_id, std::string_view text) = 0;
  /// With SamplingOptions::top_logprobs: before the on_token of every token but the id that ends
  /// the answer.
  virtual void on_logprobs(const TokenLogprobs& /*logprobs*/) {}
  /// Whether on_logits() is wanted.
  virtual bool wants_logits() const { return false; }
  /// [vocab_size] f32 from which the next token (also the one that ends the answer) is taken,
  /// before its on_token; valid during the call only.
  virtual void on_logits(std::span<const float> /*logits*/) {}
  /// Only for a request with `attribute`, right before an on_done with OK status; not called when
  /// the engine cannot attribute (no documents, no tokens, out of memory).
  virtual void on_attribution(const Attribution& /*attribution*/) {}
  /// status not OK: the answer is incomplete. `plan` carries final fates, tiers and misses.
  virtual void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
                       FinishReason reason) = 0;
};

/// Lets the caller cancel; safe to drop.
class QueryHandle {
 public:
  explicit QueryHandle(std::shared_ptr<std::atomic<bool>> cancelled)
      : cancelled_(std::move(cancelled)) {}
  void cancel() { cancelled_->store(true); }

 private:
  std::shared_ptr<std::atomic<bool>> cancelled_;
};

}  // namespace quire
