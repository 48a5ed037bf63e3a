/// Shadow checks: a sampled share of approximate answers is computed once more in full, after the
/// reply was sent and while the engine has nothing else to do, and compared token by token.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace quire {

/// One answer to be checked: what was asked, and what the approximate strategy chose. Filled on the
/// engine thread.
struct ShadowSample {
  static constexpr std::size_t kKlPositions = 16;

  QueryRequest request;
  std::string strategy;  ///< what was really used
  /// The likeliest token at each position, also the one that ended the answer
  std::vector<std::int32_t> choices;
  std::vector<std::vector<float>> first_logits;
  void add(std::span<const float> logits);
};

/// What a check found.
struct ShadowResult {
  std::string strategy;
  /// Share of positions at which recompute, given the same beginning, says the same
  double agreement = 1;
  double kl = 0;  ///< mean over the first positions of KL(recompute || strategy), nats
};

/// Threads: every method may be called concurrently; results come on the checker's own thread.
class ShadowChecker {
 public:
  enum class Outcome : std::uint8_t { kChecked, kDropped, kFailed };
  using Report = std::function<void(Outcome, const ShadowResult&)>;
  struct Options {
    std::size_t max_queued = 4;  ///< more are dropped
    /// A sample that finds no idle moment for so long is dropped
    std::chrono::milliseconds patience{30000};
    /// How often it looks whether the engine is idle, while samples wait
    std::chrono::milliseconds look{20};
    std::uint64_t seed = std::random_device{}();
  };
  /// `engine` must outlive it, or stop() must come before the engine's end.
  ShadowChecker(Engine& engine, Options options, Report report);
  ShadowChecker(Engine& engine, Report report)
      : ShadowChecker(engine, Options(), std::move(report)) {}
  ~ShadowChecker() { stop(); }

  /// Whether the next query is to be checked.
  bool draw(double ratio);
  /// Never waits; drops when the queue is full.
  void submit(std::shared_ptr<ShadowSample> sample);
  /// A query of a client begins: a check at work makes room for it (and counts as dropped).
  void yield();
  void stop();

 private:
  struct Waiting {
    std::shared_ptr<ShadowSample> sample;
    std::chrono::steady_clock::time_point since;
  };
  void run();
  void check(ShadowSample& sample);

  Engine& engine_;
  const Options options_;
  const Report report_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Waiting> queue_;                // guarded by mu_
  std::optional<QueryHandle> at_work_;       // guarded by mu_
  bool yielded_ = false, stopping_ = false;  // guarded by mu_
  std::mt19937_64 random_;                   // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
