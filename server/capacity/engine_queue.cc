#include "server/capacity/engine_queue.h"

#include <algorithm>

namespace quire::capacity {
namespace {

/// While answers are decoded, a chunk of a prompt takes as long as a decode step, or this long
/// where steps are shorter (engine/schedule/scheduler.cc); ChunkSizer keeps it between half of that
/// and all of it.
constexpr double kShortestChunk = 0.010, kMeanChunk = 0.75;
/// What is left of a prompt, in seconds, or of an answer, in steps, when it is as good as complete.
/// Both are above what the sums of many terms may be off by, so an event always completes
/// something.
constexpr double kPromptEnough = 1e-8, kAnswerEnough = 1e-4;
/// Shortest decode step, so that progress stays finite.
constexpr double kShortestStep = 1e-6;

}  // namespace

EngineQueue::Pace EngineQueue::pace() const {
  Pace out;
  const double prompts = static_cast<double>(prompts_.size());
  const double step = answers_.empty()
                          ? 0
                          : std::max(rates_->decode_ms(static_cast<double>(answers_.size())) / 1000,
                                     kShortestStep);
  if (answers_.empty()) {
    if (prompts > 0) out.prompt = speed_ / prompts;
    return out;
  }
  const double chunk = prompts_.empty() ? 0 : kMeanChunk * std::max(step, kShortestChunk);
  const double turn = chunk + step * (prompts_.empty() ? 1 : rates_->step_beside);
  out.answer = speed_ / turn;
  if (prompts > 0) out.prompt = speed_ * chunk / turn / prompts;
  return out;
}

void EngineQueue::advance(double now) {
  const double passed = now - now_;
  now_ = now;
  if (passed <= 0 || !busy()) return;
  const Pace p = pace();
  prompt_progress_ += p.prompt * passed;
  answer_progress_ += p.answer * passed;
  busy_seconds_ += passed;
}

void EngineQueue::add(std::uint64_t id, double work_seconds, std::uint32_t answer_tokens) {
  waiting_.push_back({id, work_seconds, answer_tokens});
  admit();
}

void EngineQueue::admit() {
  while (!waiting_.empty() && prompts_.size() + answers_.size() < max_running_) {
    const Waiting& w = waiting_.front();
    prompts_.push({prompt_progress_ + w.work_seconds, w.id, w.answer_tokens});
    waiting_.pop_front();
  }
}

double EngineQueue::next_event() const {
  const Pace p = pace();
  double left = kNever;
  if (!prompts_.empty() && p.prompt > 0)
    left = std::min(left, (prompts_.top().target - prompt_progress_) / p.prompt);
  if (!answers_.empty() && p.answer > 0)
    left = std::min(left, (answers_.top().target - answer_progress_) / p.answer);
  return now_ + std::max(left, 0.0);
}

void EngineQueue::collect(const std::function<void(std::uint64_t id)>& prompt_done) {
  while (!answers_.empty() && answers_.top().target <= answer_progress_ + kAnswerEnough)
    answers_.pop();
  while (!prompts_.empty() && prompts_.top().target <= prompt_progress_ + kPromptEnough) {
    const Running done = prompts_.top();
    prompts_.pop();
    if (done.answer_tokens > 1)
      answers_.push({answer_progress_ + done.answer_tokens - 1, done.id, 0});
    prompt_done(done.id);
  }
  admit();
  if (!busy()) idle_since_ = now_;
  // Sums stay small, so that they stay exact.
  if (prompts_.empty()) prompt_progress_ = 0;
  if (answers_.empty()) answer_progress_ = 0;
}

}  // namespace quire::capacity
