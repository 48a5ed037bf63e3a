#include "engine/device/side_thread.h"

#include <pthread.h>

#include <system_error>
#include <utility>

namespace quire {

SideThread::~SideThread() {
  {
    const std::lock_guard lock(mu_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void SideThread::run(std::function<void()> task) {
  wait();
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { work(); });
      pthread_setname_np(thread_.native_handle(), "quire-side");
    } catch (const std::system_error&) {
      return task();
    }
  }
  {
    const std::lock_guard lock(mu_);
    task_ = std::move(task);
  }
  changed_.notify_all();
}

void SideThread::wait() {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [this] { return !task_; });
}

void SideThread::work() {
  std::unique_lock lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return task_ || ends_; });
    if (!task_) return;
    lock.unlock();
    task_();
    lock.lock();
    task_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace quire
