/// SideThread runs one task at a time beside its caller.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace quire {

/// SideThread starts its thread with the first task and ends it when it is destroyed, after the
/// task that runs. Threads: one caller.
class SideThread {
 public:
  SideThread() = default;
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  /// Runs the task beside the caller, once the previous one has ended. It must not throw. Without a
  /// thread (the system gives none) the caller runs it.
  void run(std::function<void()> task);
  /// Returns once no task runs.
  void wait();

 private:
  void work();
  std::mutex mu_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: none runs; guarded by mu_
  bool ends_ = false;           // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
