#include "cachestore/disk/extents/io_pool.h"

#include <string>
#include <utility>

namespace quire {

IoPool::IoPool(int num_threads, std::size_t max_queued) : max_queued_(max_queued) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

Status IoPool::post_all(std::vector<Task> tasks) {
  std::size_t reads = 0;
  for (const Task& t : tasks) reads += t.num_reads;
  {
    std::lock_guard lock(mu_);
    if (stopping_) return Status::unavailable("the store is closing");
    if (num_reads_ + reads > max_queued_) {
      return Status::exhausted("the store's read queue is full: " + std::to_string(num_reads_) +
                               " reads wait, at most " + std::to_string(max_queued_) + " may");
    }
    num_reads_ += reads;
    for (auto& t : tasks) queue_.push_back(std::move(t));
  }
  wake_.notify_all();
  return {};
}

void IoPool::post_background(std::function<void()> work) {
  {
    std::lock_guard lock(mu_);
    if (stopping_) return;
    queue_.push_back({std::move(work), 0});
  }
  wake_.notify_one();
}

void IoPool::stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& t : threads_) {
    if (t.joinable()) t.join();
  }
}

void IoPool::run() {
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mu_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
      num_reads_ -= task.num_reads;
    }
    task.run();
  }
}

}  // namespace quire
