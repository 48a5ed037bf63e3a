/// The engine of a simulated replica: prompts that are computed and answers that are decoded.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

#include "server/capacity/rates.h"

namespace quire::capacity {

/// Advances what runs as a fluid. The engine's turn is one chunk of the next prompt in the round
/// and beside it one decode step of all answers (engine/schedule/scheduler.h). So prompts share
/// evenly what decoding leaves of the time, and all answers go on alike. Threads: not shared.
class EngineQueue {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  /// At most `max_running` prompts and answers run at once; more prompts wait in order. The rates
  /// must outlive it.
  EngineQueue(const Rates& rates, std::uint32_t max_running)
      : rates_(&rates), max_running_(max_running) {}

  /// Goes on to this time, which must not be before that of an earlier call.
  void advance(double now);
  /// Sets the share of an unshared machine's speed, from the time of the last advance() on.
  void set_speed(double speed) { speed_ = speed; }
  /// Adds a prompt of so many seconds of work on an unshared machine, at the time of the last
  /// advance().
  void add(std::uint64_t id, double work_seconds, std::uint32_t answer_tokens);
  /// Returns when a prompt or an answer will be complete if nothing is added; kNever: none runs.
  double next_event() const;
  /// Calls back with the prompts that are complete at the time of the last advance(). The first
  /// token of their answers is there then. Prompts that waited begin.
  void collect(const std::function<void(std::uint64_t id)>& prompt_done);

  bool busy() const { return !prompts_.empty() || !answers_.empty(); }
  /// Returns for how long nothing has run, at the time of the last advance().
  double idle_seconds() const { return busy() ? 0 : now_ - idle_since_; }
  std::size_t waiting() const { return waiting_.size(); }
  double busy_seconds() const { return busy_seconds_; }

 private:
  struct Running {
    double target;  ///< of progress, where it is complete
    std::uint64_t id;
    std::uint32_t answer_tokens;
    bool operator>(const Running& other) const {
      return target != other.target ? target > other.target : id > other.id;
    }
  };
  struct Waiting {
    std::uint64_t id;
    double work_seconds;
    std::uint32_t answer_tokens;
  };
  using Heap = std::priority_queue<Running, std::vector<Running>, std::greater<>>;
  struct Pace {
    double prompt = 0, answer = 0;  ///< progress a second: of each prompt in seconds, in steps
  };
  Pace pace() const;
  void admit();

  const Rates* rates_;
  std::uint32_t max_running_;
  double now_ = 0, speed_ = 1, busy_seconds_ = 0, idle_since_ = -kNever;
  double prompt_progress_ = 0, answer_progress_ = 0;
  Heap prompts_, answers_;
  std::deque<Waiting> waiting_;
};

}  // namespace quire::capacity
