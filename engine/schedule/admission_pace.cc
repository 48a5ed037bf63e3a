#include "engine/schedule/admission_pace.h"

namespace quire {
namespace {

/// Weight of the newest interval in the average: about the last ten admissions count.
constexpr double kNewest = 0.2;

}  // namespace

void AdmissionPace::admitted(Clock::time_point now, bool others_wait) {
  if (counting_) {
    const double sample = ms_between(last_, now),
                 old = interval_ms_.load(std::memory_order_relaxed);
    interval_ms_.store(old == 0 ? sample : old + kNewest * (sample - old),
                       std::memory_order_relaxed);
  }
  last_ = now;
  counting_ = others_wait;
}

std::chrono::milliseconds AdmissionPace::expected_wait(std::int64_t waiting) const {
  const double ms = interval_ms_.load(std::memory_order_relaxed) * static_cast<double>(waiting);
  return std::chrono::milliseconds(static_cast<std::int64_t>(ms));
}

}  // namespace quire
