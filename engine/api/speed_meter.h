/// This file measures how fast this machine loads and computes.
#pragma once

#include <atomic>
#include <cstdint>

#include "cachestore/format/segment.h"

namespace quire {

/// Measured speeds; 0: not measured yet.
struct Speeds {
  double dram_bytes_per_ms = 0, disk_bytes_per_ms = 0, prefill_tokens_per_ms = 0;
};

/// Keeps moving averages of measured speeds. Threads: any.
class SpeedMeter {
 public:
  void add_prefill(std::int64_t tokens, double ms);
  void add_decode(std::int64_t tokens, double ms);
  void add_load(Tier tier, std::int64_t bytes, double ms);
  Speeds speeds() const;
  double decode_tokens_per_ms() const { return decode_.load(std::memory_order_relaxed); }

 private:
  static void blend(std::atomic<double>& average, double sample, double weight);
  std::atomic<double> prefill_{0}, decode_{0}, dram_{0}, disk_{0};
};

}  // namespace quire
