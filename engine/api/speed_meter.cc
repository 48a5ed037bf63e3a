#include "engine/api/speed_meter.h"

namespace quire {

void SpeedMeter::blend(std::atomic<double>& average, double sample, double weight) {
  const double old = average.load(std::memory_order_relaxed);
  average.store(old == 0 ? sample : old + weight * (sample - old), std::memory_order_relaxed);
}

void SpeedMeter::add_prefill(std::int64_t tokens, double ms) {
  // Short passes measure the overhead, not the speed.
  if (tokens >= 32 && ms > 0) blend(prefill_, static_cast<double>(tokens) / ms, 0.2);
}

void SpeedMeter::add_decode(std::int64_t tokens, double ms) {
  if (tokens > 0 && ms > 0) blend(decode_, static_cast<double>(tokens) / ms, 0.1);
}

void SpeedMeter::add_load(Tier tier, std::int64_t bytes, double ms) {
  if (bytes <= 0 || ms <= 0) return;
  blend(tier == Tier::kDram ? dram_ : disk_, static_cast<double>(bytes) / ms, 0.2);
}

Speeds SpeedMeter::speeds() const {
  return {dram_.load(std::memory_order_relaxed), disk_.load(std::memory_order_relaxed),
          prefill_.load(std::memory_order_relaxed)};
}

}  // namespace quire
