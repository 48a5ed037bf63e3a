/// Shadow checks compute a sampled share of approximate answers once more in full and compare them
/// token by token. They run after the reply was sent, while the engine is idle.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "server/service/idle_runner.h"

namespace quire {

/// ShadowSample is one answer to check: its request, and the tokens that the approximate strategy
/// chose. It is filled on the engine thread.
struct ShadowSample {
  static constexpr std::size_t kKlPositions = 16;

  QueryRequest request;
  std::string strategy;  ///< the strategy actually used
  /// The likeliest token at each position, including the one that ended the answer.
  std::vector<std::int32_t> choices;
  std::vector<std::vector<float>> first_logits;
  void add(std::span<const float> logits);
};

/// ShadowResult is the outcome of a check.
struct ShadowResult {
  std::string strategy;
  /// Share of positions at which recompute, given the same preceding tokens, chooses the same
  /// token.
  double agreement = 1;
  double kl = 0;  ///< mean over the first positions of KL(recompute || strategy), nats
};

/// Threads: every method may be called concurrently. Results come on the checker's own thread; a
/// sample dropped by submit() is reported on its caller's thread.
class ShadowChecker {
 public:
  enum class Outcome : std::uint8_t { kChecked, kDropped, kFailed };
  using Report = std::function<void(Outcome, const ShadowResult&)>;
  struct Options {
    std::size_t max_queued = 4;  ///< further ones are dropped
    /// A sample for which the engine is not idle within this time is dropped.
    std::chrono::milliseconds patience{30000};
    /// Interval of checks whether the engine is idle, while samples wait.
    std::chrono::milliseconds look{20};
    std::uint64_t seed = std::random_device{}();
    std::function<bool()> others_idle;  ///< as of IdleRunner
  };
  /// `engine` must outlive the checker, or stop() must come before the engine's end.
  ShadowChecker(Engine& engine, Options options, Report report);
  ShadowChecker(Engine& engine, Report report)
      : ShadowChecker(engine, Options(), std::move(report)) {}
  ~ShadowChecker() { stop(); }

  /// Returns whether to check the next query, at random with probability `ratio`.
  bool draw(double ratio);
  /// Queues a sample without waiting. If the queue is full, the sample is dropped.
  void submit(std::shared_ptr<ShadowSample> sample);
  /// Cancels a running check, which then counts as dropped, because a client's query begins.
  void yield() { runner_.yield(); }
  void stop();

 private:
  struct Waiting {
    std::shared_ptr<ShadowSample> sample;
    std::chrono::steady_clock::time_point since;
  };
  void run();
  void check(ShadowSample& sample);

  IdleRunner runner_;
  const Options options_;
  const Report report_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Waiting> queue_;  // guarded by mu_
  bool stopping_ = false;      // guarded by mu_
  std::mt19937_64 random_;     // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
