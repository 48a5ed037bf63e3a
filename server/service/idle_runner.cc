#include "server/service/idle_runner.h"

#include <condition_variable>
#include <utility>

namespace quire {
namespace {

/// Passes a query's events on, and lets a thread wait for the last.
class WaitingSink final : public QuerySink {
 public:
  explicit WaitingSink(std::shared_ptr<QuerySink> inner) : inner_(std::move(inner)) {}
  void on_plan(const Plan& plan) override { inner_->on_plan(plan); }
  bool on_token(std::int32_t id, std::string_view text) override {
    return inner_->on_token(id, text);
  }
  void on_logprobs(const TokenLogprobs& logprobs) override { inner_->on_logprobs(logprobs); }
  bool wants_logits() const override { return inner_->wants_logits(); }
  void on_logits(std::span<const float> logits) override { inner_->on_logits(logits); }
  void on_attribution(const Attribution& a) override { inner_->on_attribution(a); }
  void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
               FinishReason reason) override {
    inner_->on_done(status, plan, stats, reason);
    end(status);
  }
  void end(const Status& status) {
    std::lock_guard lock(mu_);
    status_ = status;
    done_ = true;
    changed_.notify_all();
  }
  Status wait() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return done_; });
    return status_;
  }

 private:
  const std::shared_ptr<QuerySink> inner_;
  std::mutex mu_;
  std::condition_variable changed_;
  Status status_;      // guarded by mu_
  bool done_ = false;  // guarded by mu_
};

}  // namespace

bool IdleRunner::idle() const {
  const EngineLoad load = engine_.load();
  return load.queries_running + load.queries_waiting == 0 && (!others_idle_ || others_idle_());
}

Status IdleRunner::run(QueryRequest request, const std::shared_ptr<QuerySink>& sink) {
  auto waiting = std::make_shared<WaitingSink>(sink);
  {
    std::lock_guard lock(mu_);
    if (stopping_) return Status::cancelled("the service is stopping");
    yielded_ = false;
    request.background = true;
    auto handle = engine_.query(std::move(request), waiting);
    if (!handle.ok()) return handle.status();
    at_work_ = std::move(*handle);
  }
  const Status status = waiting->wait();
  std::lock_guard lock(mu_);
  at_work_.reset();
  return yielded_ || stopping_ ? Status::cancelled("a client's query came first") : status;
}

void IdleRunner::yield() {
  std::lock_guard lock(mu_);
  if (!at_work_) return;
  yielded_ = true;
  at_work_->cancel();
}

void IdleRunner::stop() {
  std::lock_guard lock(mu_);
  stopping_ = true;
  if (at_work_) at_work_->cancel();
}

bool IdleRunner::yielded() const {
  std::lock_guard lock(mu_);
  return yielded_ || stopping_;
}

}  // namespace quire
