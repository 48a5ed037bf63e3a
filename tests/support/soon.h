/// Waits in a test for what other threads or processes bring about.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace quire::testing {

/// Asks until it is true, for four minutes at most. Returns whether it became true.
inline bool soon(const std::function<bool()>& is_true) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(4);
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace quire::testing
