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

void TaskPool::loop() {
  std::unique_lock lock(mu_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
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
