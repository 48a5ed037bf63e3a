#include "kernels/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/system/control_groups.h"

namespace quire {
namespace {

using Task = std::function<void(std::int64_t)>;

int allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) cores = CPU_COUNT(&set);
  // More threads than a container's share of time use it up at once, and then all of them stand
  // still.
  return static_cast<int>(std::min(cores, cores_in_groups(own_control_groups(), "/sys/fs/cgroup")));
}

/// Spins until `ready` for a limited time; returns false on timeout. Between the parts of a pass
/// the next job comes within microseconds, and waking a sleeping thread takes longer than many
/// jobs.
template <class Ready>
bool spin(Ready&& ready) {
  constexpr auto kLongest = std::chrono::microseconds(60);
  constexpr int kPausesPerLook = 16;  // pauses between reads of the clock
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
  } while (std::chrono::steady_clock::now() - start < kLongest);
  return false;
}

thread_local bool t_in_task = false;
thread_local int t_num_threads = 0;  // 0: all

/// The thread pool: helpers and the job that they may join. There is one per process.
class Team {
 public:
  explicit Team(int helpers) {
    for (int i = 0; i < helpers; ++i) {
      try {
        threads_.emplace_back([this] { help(); });
        pthread_setname_np(threads_.back().native_handle(), "quire-kernel");
      } catch (const std::system_error&) {
        break;  // fewer helpers are slower but correct
      }
    }
  }
  ~Team() {
    stop_.store(true, std::memory_order_relaxed);
    signal_.fetch_add(1, std::memory_order_release);
    signal_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  /// Runs a job; returns false if another thread owns the pool. Throws what a task threw first.
  bool run(std::int64_t n, int helpers, const Task& task) {
    if (owned_.exchange(true, std::memory_order_acquire)) return false;
    task_ = &task;
    end_ = n;
    next_.store(0, std::memory_order_relaxed);
    most_helpers_ = static_cast<std::uint32_t>(helpers);
    state_.store(kOpen, std::memory_order_release);
    signal_.fetch_add(1, std::memory_order_release);
    signal_.notify_all();
    work();
    // No helper may join any more; those inside still use the job.
    std::uint32_t state = state_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    if (state != 0 && !spin([this] { return state_.load(std::memory_order_acquire) == 0; })) {
      while ((state = state_.load(std::memory_order_acquire)) != 0)
        state_.wait(state, std::memory_order_acquire);
    }
    const std::exception_ptr thrown = std::exchange(thrown_, nullptr);
    threw_.store(false, std::memory_order_relaxed);
    owned_.store(false, std::memory_order_release);
    if (thrown) std::rethrow_exception(thrown);
    return true;
  }

 private:
  static constexpr std::uint32_t kOpen = 1u << 31;  // the other bits count helpers inside

  void work() noexcept {
    t_in_task = true;
    try {
      for (std::int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < end_;
           i = next_.fetch_add(1, std::memory_order_relaxed))
        (*task_)(i);
    } catch (...) {
      next_.store(end_, std::memory_order_relaxed);
      if (!threw_.exchange(true, std::memory_order_relaxed)) thrown_ = std::current_exception();
    }
    t_in_task = false;
  }

  bool join() {
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    while ((state & kOpen) != 0 &&
           (state & ~kOpen) < most_helpers_.load(std::memory_order_relaxed)) {
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                       std::memory_order_relaxed))
        return true;
    }
    return false;
  }

  void help() {
    std::uint32_t seen = 0;
    while (true) {
      if (!spin([&] { return signal_.load(std::memory_order_acquire) != seen; }))
        signal_.wait(seen, std::memory_order_acquire);
      seen = signal_.load(std::memory_order_acquire);
      if (stop_.load(std::memory_order_relaxed)) return;
      if (!join()) continue;
      work();
      if (state_.fetch_sub(1, std::memory_order_acq_rel) == 1) state_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false}, owned_{false};
  std::atomic<std::uint32_t> signal_{0};  // counts jobs; helpers sleep on it
  // The job is written by the owner while state_ is 0 and read by threads that joined through
  // state_.
  std::atomic<std::uint32_t> state_{0}, most_helpers_{0};
  const Task* task_ = nullptr;
  std::int64_t end_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> threw_{false};
  std::exception_ptr thrown_;  // written by the thread that set threw_, read by the owner
};

}  // namespace

int num_threads() {
  if (t_in_task) return 1;
  static const int cores = allowed_cores();
  return t_num_threads > 0 ? t_num_threads : cores;
}

void set_num_threads(int n) { t_num_threads = std::max(0, n); }

void parallel_tasks(std::int64_t n, const std::function<void(std::int64_t)>& fn) {
  if (n <= 0) return;
  const std::int64_t threads = std::min<std::int64_t>(num_threads(), n);
  if (threads > 1) {
    // There is at least one helper even on one core, so that tests cover concurrency.
    static Team team(std::max(1, allowed_cores() - 1));
    if (team.run(n, static_cast<int>(threads - 1), fn)) return;
  }
  for (std::int64_t i = 0; i < n; ++i) fn(i);
}

void parallel_for(std::int64_t n, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& fn) {
  if (n <= 0) return;
  const std::int64_t ranges = std::min<std::int64_t>(num_threads(),
                                                     n / std::max<std::int64_t>(1, grain));
  if (ranges <= 1) return fn(0, n);
  parallel_tasks(ranges, [&](std::int64_t r) { fn(n * r / ranges, n * (r + 1) / ranges); });
}

}  // namespace quire
