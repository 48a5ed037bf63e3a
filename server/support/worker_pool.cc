#include "server/support/worker_pool.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "base/log.h"

namespace quire {

WorkerPool::WorkerPool(int threads, std::size_t max_queued, int spare_threads)
    : max_queued_(max_queued), most_of_one_(spare_threads > 0 ? threads - spare_threads : 0) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

bool WorkerPool::post(std::function<void()> work, const std::string& tenant) {
  return queue({std::move(work), most_of_one_ > 0 ? tenant : std::string()}, max_queued_);
}

bool WorkerPool::post_reply(std::function<void()> work) {
  return queue({std::move(work), {}}, SIZE_MAX);
}

bool WorkerPool::queue(Work work, std::size_t most) {
  std::lock_guard lock(mu_);
  if (stopping_ || queue_.size() >= most) return false;
  if (!work.tenant.empty()) {
    Tenant& tenant = tenants_[work.tenant];
    if (tenant.waiting >= most - most / 4) return false;
    ++tenant.waiting;
  }
  queue_.push_back(std::move(work));
  // Notifies under the lock, because the owner may wait for this work before it destroys the pool.
  changed_.notify_one();
  return true;
}

/// Returns the first work whose tenant may have another thread. Needs mu_.
std::deque<WorkerPool::Work>::iterator WorkerPool::next() {
  return std::ranges::find_if(queue_, [this](const Work& work) {
    return work.tenant.empty() || tenants_.at(work.tenant).running < most_of_one_;
  });
}

void WorkerPool::run() {
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return (stopping_ && queue_.empty()) || next() != queue_.end(); });
    if (queue_.empty()) return;
    const auto at = next();
    Work work = std::move(*at);
    queue_.erase(at);
    if (!work.tenant.empty()) {
      Tenant& tenant = tenants_.at(work.tenant);
      --tenant.waiting;
      ++tenant.running;
    }
    lock.unlock();
    try {
      work.run();
    } catch (const std::exception& e) {
      log_error("work ended with an exception", {{"reason", e.what()}});
    }
    work.run = nullptr;  // what it holds goes without the lock
    lock.lock();
    if (work.tenant.empty()) continue;
    const auto tenant = tenants_.find(work.tenant);
    if (--tenant->second.running == 0 && tenant->second.waiting == 0) tenants_.erase(tenant);
    changed_.notify_all();  // its next work may begin, or the queue is empty at the end
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
