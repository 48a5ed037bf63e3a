#include "server/support/worker_pool.h"

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "base/log.h"

namespace quire {

WorkerPool::WorkerPool(int threads, std::size_t max_queued) : max_queued_(max_queued) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

bool WorkerPool::post(std::function<void()> work) { return queue(std::move(work), max_queued_); }

bool WorkerPool::post_reply(std::function<void()> work) { return queue(std::move(work), SIZE_MAX); }

bool WorkerPool::queue(std::function<void()> work, std::size_t most) {
  std::lock_guard lock(mu_);
  if (stopping_ || queue_.size() >= most) return false;
  queue_.push_back(std::move(work));
  // Notifies under the lock, because the owner may wait for this work before it destroys the pool.
  changed_.notify_one();
  return true;
}

void WorkerPool::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    try {
      work();
    } catch (const std::exception& e) {
      log_error("work ended with an exception", {{"reason", e.what()}});
    }
  }
}

void WorkerPool::stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& t : threads_)
    if (t.joinable()) t.join();
  threads_.clear();
}

std::size_t WorkerPool::queued() const {
  std::lock_guard lock(mu_);
  return queue_.size();
}

}  // namespace quire
