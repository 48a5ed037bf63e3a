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
  void on_done(const Status&, const Plan&, const QueryStats&, FinishReason) override {}
  // Written by the engine thread until done.
  std::size_t seen = 0, same = 0;
  double kl = 0;

 private:
  const ShadowSample& sample_;
  std::vector<float> log_p_, log_q_;
};

}  // namespace

void ShadowSample::add(std::span<const float> logits) {
  choices.push_back(static_cast<std::int32_t>(argmax(logits.data(), count_of(logits))));
  if (first_logits.size() < kKlPositions) first_logits.emplace_back(logits.begin(), logits.end());
}

ShadowChecker::ShadowChecker(Engine& engine, Options options, Report report)
    : runner_(engine, options.others_idle),
      options_(std::move(options)),
      report_(std::move(report)),
      random_(options_.seed),
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

void ShadowChecker::stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    queue_.clear();
    changed_.notify_all();
  }
  runner_.stop();
  if (thread_.joinable()) thread_.join();
}

void ShadowChecker::run() {
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    if (!runner_.idle()) {
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
  request.sampling.max_tokens_asked = true;
  request.deadline = std::chrono::steady_clock::time_point::max();
  auto sink = std::make_shared<RecomputeSink>(sample);
  const Status status = runner_.run(std::move(request), sink);
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
  }
  const bool yielded = runner_.yielded();
  ShadowResult result;
  result.strategy = sample.strategy;
  if (!status.ok()) {
    if (!yielded)
      log_warning("a shadow check failed",
                  {{"strategy", sample.strategy}, {"reason", status.to_string()}});
    return report_(yielded ? Outcome::kDropped : Outcome::kFailed, result);
  }
  if (sink->seen == 0 || sample.choices.empty()) return report_(Outcome::kFailed, result);
  result.agreement = static_cast<double>(sink->same) / static_cast<double>(sample.choices.size());
  const std::size_t positions = std::min(sink->seen, sample.first_logits.size());
  result.kl = positions > 0 ? sink->kl / static_cast<double>(positions) : 0;
  report_(Outcome::kChecked, result);
}

}  // namespace quire
