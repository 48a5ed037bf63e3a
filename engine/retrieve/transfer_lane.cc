#include "engine/retrieve/transfer_lane.h"

#include <utility>

namespace quire {

TransferLane::TransferLane(std::function<void()> before_each) : before_each_(std::move(before_each)), thread_([this] { run(); }) {}

TransferLane::~TransferLane() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
    work_.notify_one();
  }
  thread_.join();
}

TransferLane::Ticket TransferLane::submit(std::function<void()> copy) {
  const std::lock_guard lock(mu_);
  queue_.push_back(std::move(copy));
  work_.notify_one();
  return ++submitted_;
}

bool TransferLane::wait(Ticket ticket) {
  std::unique_lock lock(mu_);
  if (done_ >= ticket) return false;
  done_cv_.wait(lock, [&] { return done_ >= ticket; });
  return true;
}

void TransferLane::run() {
  std::unique_lock lock(mu_);
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto copy = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (before_each_) before_each_();
    copy();
    lock.lock();
    ++done_;
    done_cv_.notify_all();
  }
}

}  // namespace quire
