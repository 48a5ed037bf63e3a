/// Keeps the measured parts of one answer, and compares two answers forced to the same tokens.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "engine/engine.h"
#include "fidelity/measurement.h"
#include "kernels/choice/topk.h"

namespace quire {

/// Holds one answer: its greedy choices, the first logits, the text. Threads: the engine thread
/// until it is done, then the thread of wait().
class AnswerSink final : public QuerySink {
 public:
  /// Keeps the logits of the first `logits_kept` positions: vocabulary * 4 bytes each.
  explicit AnswerSink(std::size_t logits_kept) : logits_kept_(logits_kept) {}
  void on_plan(const Plan&) override {}
  bool wants_logits() const override { return true; }
  void on_logits(std::span<const float> logits) override {
    choices.push_back(static_cast<std::int32_t>(argmax(logits.data(), count_of(logits))));
    if (first_logits.size() < logits_kept_) first_logits.emplace_back(logits.begin(), logits.end());
  }
  bool on_token(std::int32_t token_id, std::string_view piece) override {
    tokens.push_back(token_id);
    text.append(piece);
    token_ends.push_back(text.size());
    return true;
  }
  void on_attribution(const Attribution& a) override { attribution = a; }
  void on_done(const Status& s, const Plan& p, const QueryStats& st, FinishReason) override {
    std::lock_guard lock(mu_);
    status = s;
    plan = p;
    stats = st;
    done_ = true;
    changed_.notify_all();
  }
  /// Waits for the end. It cancels the query once `stop` is set.
  void wait(QueryHandle& handle, const std::atomic<bool>* stop) {
    std::unique_lock lock(mu_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return done_; })) {
      if (stop != nullptr && *stop) handle.cancel();
    }
  }

  // Written by the engine thread until done:
  /// The likeliest token at each position, including the last, which ends the answer.
  std::vector<std::int32_t> choices;
  /// The tokens of the text; if nothing ends an answer, one for each of `choices`.
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<float>> first_logits;
  std::string text;
  std::vector<std::size_t> token_ends;  ///< bytes of the text after each token
  Attribution attribution;              ///< empty: not requested
  Status status;
  Plan plan;
  QueryStats stats;

 private:
  const std::size_t logits_kept_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool done_ = false;
};

/// Returns agreement and KL(reference
///
/// run) of every range of `span_tokens` positions whose logits both kept. `span_tokens` must be
/// above 0.
std::vector<AnswerSpan> spans_of(const AnswerSink& reference, const AnswerSink& run,
                                 std::int32_t span_tokens);

}  // namespace quire
