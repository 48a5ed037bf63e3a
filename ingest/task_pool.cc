#include "ingest/task_pool.h"

#include <exception>

#include "base/log.h"

namespace quire {

TaskPool::TaskPool(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { loop(); });
}

bool TaskPool::post(std::function<void()> task) {
  const std::lock_guard lock(mu_);
  if (stopping_) return false;
  tasks_.push_back(std::move(task));
  // Notifies under the lock, because the owner may wait for this task before it destroys the pool.
  wake_.notify_one();
  return true;
}

bool TaskPool::post_after(std::chrono::milliseconds delay, std::function<void()> task) {
  const std::lock_guard lock(mu_);
  if (stopping_) return false;
  later_.emplace(Clock::now() + delay, std::move(task));
  wake_.notify_one();  // it waits for the first of them from now on
  return true;
}

void TaskPool::stop() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
}

/// mu_ is held.
void TaskPool::queue_what_is_due() {
  const Clock::time_point now = Clock::now();
  while (!later_.empty() && (stopping_ || later_.begin()->first <= now)) {
    tasks_.push_back(std::move(later_.begin()->second));
    later_.erase(later_.begin());
    wake_.notify_one();
  }
}

void TaskPool::loop() {
  std::unique_lock lock(mu_);
  while (true) {
    queue_what_is_due();
    if (tasks_.empty()) {
      if (stopping_) return;
      later_.empty() ? wake_.wait(lock)
                     : static_cast<void>(wake_.wait_until(lock, later_.begin()->first));
      continue;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      task();
    } catch (const std::exception& e) {
      log_error("a task of the document service was ended by an exception", {{"error", e.what()}});
    }
    task = nullptr;
    lock.lock();
  }
}

}  // namespace quire
