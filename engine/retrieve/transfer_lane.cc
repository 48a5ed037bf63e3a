#include "engine/retrieve/transfer_lane.h"

#include <chrono>
#include <utility>

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point from) { return std::chrono::duration<double, std::milli>(Clock::now() - from).count(); }

}  // namespace

struct TransferLane::Transfer {
  std::function<Status()> copy;
  Status status;       // written before done
  double copy_ms = 0;  // written before done
  bool done = false;   // guarded by the lane's mu_
};

TransferLane::TransferLane(std::function<Status()> before_each) : before_each_(std::move(before_each)), thread_([this] { run(); }) {}

TransferLane::~TransferLane() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
    work_.notify_one();
  }
  thread_.join();
}

TransferLane::Ticket TransferLane::submit(std::function<Status()> copy) {
  auto ticket = std::make_shared<Transfer>();
  ticket->copy = std::move(copy);
  const std::lock_guard lock(mu_);
  queue_.push_back(ticket);
  work_.notify_one();
  return ticket;
}

TransferLane::Outcome TransferLane::wait(const Ticket& ticket) {
  Outcome outcome;
  {
    std::unique_lock lock(mu_);
    if (!ticket->done) {
      outcome.waited = true;
      const auto started = Clock::now();
      done_.wait(lock, [&] { return ticket->done; });
      outcome.wait_ms = ms_since(started);
    }
  }
  outcome.status = ticket->status;
  outcome.copy_ms = ticket->copy_ms;
  return outcome;
}

void TransferLane::run() {
  std::unique_lock lock(mu_);
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Ticket ticket = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    const auto started = Clock::now();
    if (before_each_) ticket->status = before_each_();
    if (ticket->status.ok()) ticket->status = ticket->copy();
    ticket->copy = nullptr;  // what it held goes before anybody goes on
    ticket->copy_ms = ms_since(started);
    lock.lock();
    ticket->done = true;
    done_.notify_all();
  }
}

}  // namespace quire
