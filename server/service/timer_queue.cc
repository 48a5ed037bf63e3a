#include "server/service/timer_queue.h"

#include <algorithm>

#include "base/status.h"

namespace quire {

TimerQueue::TimerQueue() : thread_([this] { run(); }) {}

std::uint64_t TimerQueue::at(Clock::time_point when, std::function<void()> call) {
  std::uint64_t id;
  {
    std::lock_guard lock(mu_);
    id = next_++;
    calls_.emplace(when, std::pair(id, std::move(call)));
  }
  changed_.notify_one();
  return id;
}

void TimerQueue::cancel(std::uint64_t id) {
  std::function<void()> dropped;  // destroyed outside the lock
  std::lock_guard lock(mu_);
  const auto it = std::find_if(calls_.begin(), calls_.end(),
                               [&](const auto& c) { return c.second.first == id; });
  if (it == calls_.end()) return;
  dropped = std::move(it->second.second);
  calls_.erase(it);
}

void TimerQueue::run() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    if (calls_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const auto when = calls_.begin()->first;
    if (Clock::now() < when) {
      changed_.wait_until(lock, when);
      continue;
    }
    auto call = std::move(calls_.begin()->second.second);
    calls_.erase(calls_.begin());
    lock.unlock();
    try {
      call();
    } catch (...) {
      (void)exception_status("a call at a set time");
    }
    call = nullptr;
    lock.lock();
  }
}

void TimerQueue::stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace quire
