#include "cachestore/redis/redis_loops.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace quire {
namespace {

/// Before a thread sleeps it lets others run for this time, which costs less than to sleep and be
/// woken where bytes are about to come.
constexpr auto kYieldTime = std::chrono::microseconds(50);
/// Longest wait between two looks at whether the caller stops.
constexpr auto kLook = std::chrono::milliseconds(50);

/// A file descriptor that is closed with this object.
class Descriptor {
 public:
  /// Throws std::system_error where `fd` says that there is none.
  explicit Descriptor(int fd) : fd_(fd) {
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "epoll");
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Status late(const RedisConnection& connection) {
  return Status::deadline(connection.peer() + " did not answer in time");
}

}  // namespace

class RedisLoops::Loop {
 public:
  explicit Loop(const std::atomic<bool>& stopping)
      : stopping_(stopping),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup_.get(), &event) != 0)
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    thread_ = std::thread([this] { run(); });
  }
  ~Loop() {
    {
      const std::lock_guard lock(mu_);
      ends_ = true;
    }
    wake();
    thread_.join();
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  std::size_t load() const { return load_; }

  Status run(const RedisConnection& connection, Clock::time_point deadline, const Work& work) {
    Job job{.connection = connection, .deadline = deadline, .work = work};
    ++load_;
    std::unique_lock lock(mu_);
    new_.push_back(&job);
    lock.unlock();
    wake();
    lock.lock();
    job.changed.wait(lock, [&] { return job.ended; });
    --load_;
    if (job.thrown) std::rethrow_exception(job.thrown);
    return std::move(job.status);
  }

 private:
  /// Lives with its caller, until it has ended.
  struct Job {
    const RedisConnection& connection;
    Clock::time_point deadline;
    const Work& work;
    bool ready = true;  ///< has something to do
    std::condition_variable changed{};
    bool ended = false;  // guarded by mu_, as what follows
    Status status{};
    std::exception_ptr thrown{};
  };

  void wake() const {
    const std::uint64_t one = 1;
    // It fails only where the counter is full, and the loop wakes then, too.
    [[maybe_unused]] const ssize_t ignored = ::write(wakeup_.get(), &one, sizeof one);
  }

  void run() {
    std::vector<Job*> jobs;
    for (;;) {
      std::vector<Job*> come;
      {
        const std::lock_guard lock(mu_);
        if (ends_) return;
        come = std::exchange(new_, {});
      }
      for (Job* const job : come) add(*job, jobs);
      wait(jobs);
      const auto now = Clock::now();
      std::erase_if(jobs, [&](Job* job) { return ended(*job, now); });
    }
  }

  void add(Job& job, std::vector<Job*>& jobs) {
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &job}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, job.connection.socket(), &event) == 0)
      jobs.push_back(&job);
    else
      end(job, Status::exhausted("cannot wait for " + job.connection.peer()));
  }

  /// Waits until a job has something to do, or it is time to look whether one has to end.
  void wait(std::span<Job* const> jobs) {
    if (poll(0) || std::ranges::any_of(jobs, &Job::ready)) return;
    if (jobs.empty()) {
      poll(-1);
      return;
    }
    for (const auto until = Clock::now() + kYieldTime; Clock::now() < until;) {
      ::sched_yield();
      if (poll(0)) return;
    }
    auto end = Clock::now() + kLook;
    for (const Job* job : jobs) end = std::min(end, job->deadline);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    poll(static_cast<int>(std::max<std::int64_t>(0, left.count())));
  }

  /// Marks the jobs whose connections have bytes; returns whether anything happened.
  bool poll(int timeout_ms) {
    std::array<epoll_event, 32> events;
    const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               timeout_ms);
    for (int i = 0; i < n; ++i) {
      if (auto* const job = static_cast<Job*>(events[static_cast<std::size_t>(i)].data.ptr)) {
        job->ready = true;
        continue;
      }
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t ignored = ::read(wakeup_.get(), &count, sizeof count);
    }
    return n > 0;
  }

  /// Goes on with a job and returns whether it has ended; it is gone then.
  bool ended(Job& job, Clock::time_point now) {
    Status status;
    std::exception_ptr thrown;
    if (stopping_) {
      status = Status::unavailable("the store is closing");
    } else if (job.deadline <= now) {
      status = late(job.connection);
    } else if (!job.ready) {
      return false;
    } else {
      try {
        const Result<Step> step = job.work();
        if (step.ok() && *step != Step::kDone) {
          job.ready = *step == Step::kGoesOn;
          return false;
        }
        status = step.status();
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, job.connection.socket(), nullptr);
    end(job, std::move(status), thrown);
    return true;
  }

  void end(Job& job, Status status, const std::exception_ptr& thrown = {}) {
    const std::lock_guard lock(mu_);  // its caller leaves with the job once it is free
    job.status = std::move(status);
    job.thrown = thrown;
    job.ended = true;
    job.changed.notify_all();
  }

  const std::atomic<bool>& stopping_;
  const Descriptor epoll_, wakeup_;
  std::atomic<std::size_t> load_{0};  // calls under way
  std::mutex mu_;
  std::vector<Job*> new_;  // guarded by mu_
  bool ends_ = false;      // guarded by mu_
  std::thread thread_;
};

RedisLoops::RedisLoops(int threads, const std::atomic<bool>& stopping) : stopping_(stopping) {
  try {
    for (int i = 0; i < threads; ++i) loops_.push_back(std::make_unique<Loop>(stopping_));
  } catch (const std::system_error&) {  // fewer will do
  }
}
RedisLoops::~RedisLoops() = default;

Status RedisLoops::run(RedisConnection& connection, Clock::time_point deadline, const Work& work) {
  if (loops_.empty()) return run_here(connection, deadline, work);
  return (*std::ranges::min_element(loops_, {}, [](const auto& l) { return l->load(); }))
      ->run(connection, deadline, work);
}

Status RedisLoops::run_here(RedisConnection& connection, Clock::time_point deadline,
                            const Work& work) {
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const Step step, work());
    if (step == Step::kDone) return {};
    if (deadline <= Clock::now()) return late(connection);
    if (step == Step::kWaits) QUIRE_RETURN_IF_ERROR(connection.wait(deadline));
  }
}

}  // namespace quire
