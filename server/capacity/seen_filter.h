/// Which contexts were asked over before, in a few bits for each: a Bloom filter.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "server/capacity/trace.h"

namespace quire::capacity {

/// Takes 16 bits and four probes a key, so that about 1 key in 400 counts as seen although it was
/// not. Threads: not shared.
class SeenFilter {
 public:
  explicit SeenFilter(std::uint64_t keys) : words_(std::max<std::uint64_t>(1, keys / 4)) {}

  /// Returns whether the key was added before, and adds it.
  bool add(std::uint64_t key) {
    bool seen = true;
    std::uint64_t bits = key;
    for (int probe = 0; probe < 4; ++probe) {
      bits = mix(bits);
      std::uint64_t& word = words_[bits / 64 % words_.size()];
      const std::uint64_t bit = std::uint64_t{1} << (bits % 64);
      seen = seen && (word & bit) != 0;
      word |= bit;
    }
    return seen;
  }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace quire::capacity
