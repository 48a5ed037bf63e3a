/// This file declares reads that are sent to a further source where one keeps them waiting. It is
/// internal to cachestore.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cachestore/disk/extents/io_pool.h"
#include "cachestore/remote/recalled_segment.h"

namespace quire {

/// How long a source usually takes to answer. Threads: all methods concurrently.
class AnswerTimes {
 public:
  /// The wait before a second source is asked: at least kLeastMs, and kUnknownMs at the start.
  static constexpr double kLeastMs = 20, kUnknownMs = 50;

  void add(double ms);
  /// Returns three times the 95th percentile of the last answers, in milliseconds.
  double patience_ms() const;

 private:
  static constexpr std::size_t kKept = 128, kEnough = 16;
  mutable std::mutex mu_;
  std::array<float, kKept> last_{};  // guarded by mu_; a ring
  std::size_t added_ = 0;            // guarded by mu_
};

/// Reads segments from sources in their order. A source that fails, or does not have it, is
/// followed by the next one. One that is silent for longer than its answers take keeps its read,
/// and the next one is asked besides: a hedged request (Dean and Barroso, "The Tail at Scale", CACM
/// 2013). What arrives first is the result. Threads: all methods concurrently; none waits.
class HedgedReads {
 public:
  using Found = Result<RecalledSegment>;
  /// Reports a sign of life of the source: the answer to a request, or more of one. Returns false
  /// where the read is over.
  using Alive = std::function<bool(bool answer)>;
  /// Asks a source, on a thread of this object. None: it was not asked.
  using Ask = std::function<std::optional<Found>(std::size_t source, const Alive& alive)>;
  /// Called once, on a thread of this object. Errors: that of the last source that was asked and is
  /// no second way; kNotFound if none was; kDeadlineExceeded.
  using Done = std::function<void(Found)>;
  struct Counts {
    /// Reads for which a second source that knows the segment was asked while one was silent
    std::uint64_t hedged = 0;
    std::uint64_t won = 0;  ///< of those: the second source was first
  };

  /// `second_way[i]`: source i is a further way to source i - 1. It is not asked once that one has
  /// said that it has no such segment, or a wrong one.
  explicit HedgedReads(std::vector<bool> second_way, bool hedges = true);
  ~HedgedReads() { stop(); }

  /// Errors, without a call of `done`: kResourceExhausted (too many wait), kUnavailable (stopped).
  Status start(Clock::time_point deadline, Ask ask, Done done);
  Counts counts() const { return {hedged_, won_}; }
  /// Refuses further reads and waits for those that were taken.
  void stop();

 private:
  struct Read;
  void run(const std::shared_ptr<Read>& read, bool hedge);
  std::optional<std::size_t> take_source(Read& read);
  /// Returns the next source that may be asked; read.mu must be held.
  std::optional<std::size_t> next_source(const Read& read) const;
  /// Ends an asker, and the read with the last one, or once every source has said that it has none.
  void leave(Read& read);
  void watch();
  /// Returns when a second source is due; none: as things are, never. read.mu must be held.
  std::optional<Clock::time_point> due(const Read& read) const;

  const std::vector<bool> second_way_;
  const bool watches_;
  std::vector<AnswerTimes> times_;  // of the sources
  std::atomic<std::uint64_t> hedged_{0}, won_{0};
  std::mutex mu_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Read>> watched_;  // guarded by mu_; reads without a second source
  int hedges_under_way_ = 0;                  // guarded by mu_
  bool stopping_ = false;                     // guarded by mu_
  IoPool readers_, hedges_;
  std::thread watcher_;
};

}  // namespace quire
