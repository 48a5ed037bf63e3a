#include "server/commands/files/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/support/second_signal.h"

namespace quire {

namespace {

SecondSignal signals;

/// Blocking the signals would not do: libraries start threads before main() that do not block them.
void on_signal(int) {
  if (signals.take()) ::_exit(130);
}

}  // namespace

Interrupt::Interrupt() {
  signals.clear();
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &before_[0]);
  ::sigaction(SIGTERM, &action, &before_[1]);
  thread_ = std::thread([this] { watch(); });
}

Interrupt::~Interrupt() {
  stop_ = true;
  thread_.join();
  ::sigaction(SIGINT, &before_[0], nullptr);
  ::sigaction(SIGTERM, &before_[1], nullptr);
}

void Interrupt::watch() {
  while (!stop_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (!signals.any() || requested_.exchange(true)) continue;
    std::function<void()> action;
    {
      std::lock_guard lock(mu_);
      action = std::exchange(action_, {});
    }
    if (action) action();
  }
}

void Interrupt::set_action(std::function<void()> action) {
  {
    std::lock_guard lock(mu_);
    action_ = std::move(action);
    if (!requested_ || !action_) return;
    action = std::exchange(action_, {});
  }
  action();
}

bool Interrupt::wait(int milliseconds) const {
  for (int left = milliseconds; left > 0 && !requested_; left -= 100)
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(left, 100)));
  return requested_;
}

}  // namespace quire
