#include "engine/residency/transfer_streams.h"

#include <chrono>
#include <utility>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

}  // namespace

struct TransferStreams::Transfer {
  std::function<Status()> copy;
  Status status;       // written before done
  double copy_ms = 0;  // written before done
  bool done = false;   // guarded by the stream's mu_
};

TransferStreams::TransferStreams(std::function<Status()> before_each, std::int32_t num_streams)
    : before_each_(std::move(before_each)) {
  for (std::int32_t i = 0; i < num_streams; ++i) streams_.push_back(std::make_unique<Stream>());
  for (const auto& stream : streams_)
    stream->thread = std::thread([this, &stream = *stream] { run(stream); });
}

TransferStreams::~TransferStreams() {
  {
    const std::lock_guard lock(mu_);
    stopping_ = true;
    for (const auto& stream : streams_) stream->work.notify_one();
  }
  for (const auto& stream : streams_) stream->thread.join();
}

TransferStreams::Ticket TransferStreams::submit(std::function<Status()> copy, std::int32_t stream) {
  auto ticket = std::make_shared<Transfer>();
  ticket->copy = std::move(copy);
  Stream& to = *streams_[at(stream)];
  const std::lock_guard lock(mu_);
  to.queue.push_back(ticket);
  to.work.notify_one();
  return ticket;
}

TransferStreams::Outcome TransferStreams::wait(const Ticket& ticket) {
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

void TransferStreams::run(Stream& stream) {
  set_num_threads(1);  // the cores and the thread pool belong to the computation
  std::unique_lock lock(mu_);
  while (true) {
    stream.work.wait(lock, [&] { return stopping_ || !stream.queue.empty(); });
    if (stream.queue.empty()) return;
    const Ticket ticket = std::move(stream.queue.front());
    stream.queue.pop_front();
    lock.unlock();
    const auto started = Clock::now();
    if (before_each_) ticket->status = before_each_();
    if (ticket->status.ok()) ticket->status = ticket->copy();
    ticket->copy = nullptr;  // frees the captures before any waiter continues
    ticket->copy_ms = ms_since(started);
    lock.lock();
    ticket->done = true;
    done_.notify_all();
  }
}

}  // namespace quire
