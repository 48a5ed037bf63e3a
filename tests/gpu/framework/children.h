/// Child processes of the test programs: each with a limit of its own, its output captured, several
/// at once. Plain C++ for Linux.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace testing::internal {

/// What a child left behind.
struct Ended {
  std::string status;   ///< "passed", "failed" (exit status 1), "exit 3", "signal 11", "timeout"
  double seconds = 0;   ///< from its start to its end
  std::string output;   ///< the first bytes of stdout and stderr together
  std::string records;  ///< what it wrote to kRecords
};

/// Work of a child. `run` is called in the forked child, whose stdout and stderr are captured; it
/// returns the exit status, or replaces the program. `done` is called in the parent.
struct Work {
  double limit_s = 0;
  std::function<int()> run;
  std::function<void(const Ended&)> done;
};

/// The file descriptor of a child to which it writes lines for Ended::records.
inline constexpr int kRecords = 200;

/// Runs works in their order, at most `jobs` at once, until none is left; `done` may add more. A
/// child gets at most what is left of budget_s, and none begins without any rest: then `done` sees
/// the status "not begun". The parent must have no threads and no state that a child may not
/// inherit (no CUDA). Threads: one.
class Children {
 public:
  Children(int jobs, double budget_s) : jobs_(jobs), budget_s_(budget_s) {}
  void add(Work work) { waiting_.push_back(std::move(work)); }
  void run();
  /// Returns the seconds left of the budget.
  double left_s() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    Work work;
    pid_t pid;
    int output, records;  ///< anonymous files
    Clock::time_point began, end;
    bool killed;
  };
  void begin(Work work);
  /// Collects the child if it ended; kills it if its time is up.
  bool ended(Running& child);

  const int jobs_;
  const double budget_s_;
  const Clock::time_point began_ = Clock::now();
  std::vector<Work> waiting_;
  std::size_t next_ = 0;
  std::vector<Running> running_;
};

}  // namespace testing::internal
