/// The clock of everything that is measured.
#pragma once

#include <chrono>

namespace quire {

using Clock = std::chrono::steady_clock;
inline double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace quire
