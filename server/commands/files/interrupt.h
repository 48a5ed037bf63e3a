/// Ctrl-C while a job runs: the first cancels it, the second ends the program.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

namespace quire {

/// While an object lives, SIGINT and SIGTERM do not end the program. The first one calls the action
/// of set_action() on a thread of the object, and the second (SecondSignal) ends the program with
/// code 130. There is one at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  /// Whether a signal came. Any thread.
  bool requested() const { return requested_.load(); }
  /// Sets what the first signal calls; empty: nothing. Called at once if the signal has come.
  void set_action(std::function<void()> action);
  /// Waits until a signal comes, at most `milliseconds`. Returns requested().
  bool wait(int milliseconds) const;

 private:
  void watch();

  struct sigaction before_[2] = {};
  std::atomic<bool> requested_ = false, stop_ = false;
  std::mutex mu_;
  std::function<void()> action_;  // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
