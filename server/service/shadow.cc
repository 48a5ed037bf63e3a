#include "server/service/shadow.h"

#include "base/index.h"
#include "base/log.h"
#include "fidelity/score.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

/// Receives the full recomputation, which is forced to the answer's tokens.
class RecomputeSink final : public QuerySink {
 public:
  explicit RecomputeSink(const ShadowSample& sample) : sample_(sample) {}
  void on_plan(const Plan&) override {}
  bool wants_logits() const override { return true; }
  void on_logits(std::span<const float> logits) override {
    const std::size_t at = seen++;
    if (at >= sample_.choices.size()) return;
    same += argmax(logits.data(), count_of(logits)) == sample_.choices[at] ? 1 : 0;
    if (at >= sample_.first_logits.size()) return;
    log_softmax(logits, log_p_);
    log_softmax(sample_.first_logits[at], log_q_);
    kl += kl_divergence(log_p_, log_q_);
  }
  bool on_token(std::int32_t, std::string_view) override { return true; }
  void on_done(const Status& s, const Plan&, const QueryStats&, FinishReason) override {
    std::lock_guard lock(mu_);
    status = s;
    done_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return done_; });
  }
  // Written by the engine thread until done.
  std::size_t seen = 0, same = 0;
  double kl = 0;
  Status status;

 private:
  const ShadowSample& sample_;
  std::vector<float> log_p_, log_q_;
  std::mutex mu_;
  std::condition_variable changed_;
  bool done_ = false;
};

}  // namespace

void ShadowSample::add(std::span<const float> logits) {
  choices.push_back(static_cast<std::int32_t>(argmax(logits.data(), count_of(logits))));
  if (first_logits.size() < kKlPositions) first_logits.emplace_back(logits.begin(), logits.end());
}

ShadowChecker::ShadowChecker(Engine& engine, Options options, Report report)
    : engine_(engine),
      options_(options),
      report_(std::move(report)),
      random_(options.seed),
      thread_([this] { run(); }) {}

bool ShadowChecker::draw(double ratio) {
  if (ratio <= 0) return false;
  std::lock_guard lock(mu_);
  return std::uniform_real_distribution<double>(0, 1)(random_) < ratio;
}

void ShadowChecker::submit(std::shared_ptr<ShadowSample> sample) {
  {
    std::lock_guard lock(mu_);
    if (!stopping_ && queue_.size() < options_.max_queued) {
      queue_.push_back({std::move(sample), std::chrono::steady_clock::now()});
      changed_.notify_all();
      return;
    }
  }
  report_(Outcome::kDropped, {sample->strategy});
}

void ShadowChecker::yield() {
  std::lock_guard lock(mu_);
  if (!at_work_) return;
  yielded_ = true;
  at_work_->cancel();
}

void ShadowChecker::stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    queue_.clear();
    if (at_work_) at_work_->cancel();
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void ShadowChecker::run() {
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const EngineLoad load = engine_.load();
    if (load.queries_running + load.queries_waiting > 0) {
      if (std::chrono::steady_clock::now() - queue_.front().since > options_.patience) {
        const std::string strategy = queue_.front().sample->strategy;
        queue_.pop_front();
        lock.unlock();
        report_(Outcome::kDropped, {strategy});
        lock.lock();
      } else {
        changed_.wait_for(lock, options_.look, [this] { return stopping_; });
      }
      continue;
    }
    const auto sample = std::move(queue_.front().sample);
    queue_.pop_front();
    lock.unlock();
    check(*sample);
    lock.lock();
  }
}

void ShadowChecker::check(ShadowSample& sample) {
  QueryRequest request = std::move(sample.request);
  request.id += "-shadow";
  request.cache = CacheOptions();
  request.cache.strategy = "recompute";
  request.cache.write = false;
  request.sampling.forced_tokens = sample.choices;
  request.sampling.max_tokens = static_cast<std::int32_t>(
      std::max<std::size_t>(1, sample.choices.size()));
  request.deadline = std::chrono::steady_clock::time_point::max();
  auto sink = std::make_shared<RecomputeSink>(sample);
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
    yielded_ = false;
    auto handle = engine_.query(std::move(request), sink);
    if (handle.ok())
      at_work_ = *handle;
    else
      sink->on_done(handle.status(), {}, {}, FinishReason::kError);
  }
  sink->wait();
  bool yielded = false;
  {
    std::lock_guard lock(mu_);
    at_work_.reset();
    if (stopping_) return;
    yielded = yielded_;
  }
  ShadowResult result;
  result.strategy = sample.strategy;
  if (!sink->status.ok()) {
    if (!yielded)
      log_warning("a shadow check failed",
                  {{"strategy", sample.strategy}, {"reason", sink->status.to_string()}});
    return report_(yielded ? Outcome::kDropped : Outcome::kFailed, result);
  }
  if (sink->seen == 0 || sample.choices.empty()) return report_(Outcome::kFailed, result);
  result.agreement = static_cast<double>(sink->same) / static_cast<double>(sample.choices.size());
  const std::size_t positions = std::min(sink->seen, sample.first_logits.size());
  result.kl = positions > 0 ? sink->kl / static_cast<double>(positions) : 0;
  report_(Outcome::kChecked, result);
}

}  // namespace quire
