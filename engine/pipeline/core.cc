#include "engine/pipeline/core.h"

#include <algorithm>

namespace quire {

void Waker::wake() {
  {
    std::lock_guard lock(mu_);
    woken_ = true;
  }
  cv_.notify_one();
}

void Waker::wait_until(Clock::time_point until) {
  std::unique_lock lock(mu_);
  cv_.wait_until(lock, until, [this] { return woken_; });
  woken_ = false;
}

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
  return {dram_.load(std::memory_order_relaxed), disk_.load(std::memory_order_relaxed), prefill_.load(std::memory_order_relaxed)};
}

LookupContext store_lookup(Store& store, LookupKind kind) {
  return [&store, kind](const ContextKey& key, const KvLayout& layout) {
    ContextLookup found;
    std::optional<SegmentHandle> segment = kind == LookupKind::kUse ? store.find_segment(key) : store.peek_segment(key);
    if (!segment) return found;
    found.segment = std::move(*segment);
    if (!layout.fits(found.segment->layout)) return found;
    for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
      Tier slowest = Tier::kNone;
      for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
        slowest = std::max(slowest, store.tier_of(found.segment, static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(g)));
      }
      found.block_tiers.push_back(slowest);
    }
    return found;
  };
}

}  // namespace quire
