/// The tiers that a simulated replica has to itself: memory and disk.
#pragma once

#include <cstdint>

#include "server/capacity/tier_cache.h"

namespace quire::capacity {

/// Bytes of a context in the tiers.
struct ContextBytes {
  double per_token = 0;  ///< KV, which is read
  /// All that is stored, sketches included.
  double stored_per_token = 0, stored_per_context = 0;
  std::uint64_t kv(std::uint64_t tokens) const {
    return static_cast<std::uint64_t>(per_token * static_cast<double>(tokens));
  }
  std::uint64_t stored(std::uint64_t tokens) const {
    return static_cast<std::uint64_t>(stored_per_context +
                                      stored_per_token * static_cast<double>(tokens));
  }
};

/// As in the service, a context lies on disk whole, and in memory by values, which are evicted one
/// by one. What the disk loses, memory loses too. What is written is in memory with its sketches,
/// which no question uses there. Threads: not shared.
class LocalStore {
 public:
  struct Options {
    std::uint64_t dram_bytes = 0, disk_bytes = 0;  ///< disk_bytes 0: no limit
    StorePolicy policy = StorePolicy::kLru;
    ContextBytes bytes;
    /// Parts of a context that memory holds and loses apart, 1 at least.
    std::uint32_t parts = 1;
  };
  /// Tokens of a context by the tier where they were found. All zero: it is in neither.
  struct Found {
    double dram = 0, disk = 0;
    bool any() const { return dram + disk > 0; }
  };

  explicit LocalStore(const Options& options);

  /// Looks a context up and reads it: what came from disk is in memory afterwards.
  Found read(std::uint64_t key, std::uint32_t tokens);
  /// Stores a context that was computed or came from a shared tier. Returns the bytes written to
  /// disk; 0: it is there already, or does not fit.
  std::uint64_t write(std::uint64_t key, std::uint32_t tokens);

  const TierCache& dram() const { return dram_; }
  const TierCache& disk() const { return disk_; }

 private:
  std::uint64_t part_key(std::uint64_t key, std::uint32_t part) const;
  /// Returns the bytes of one part; those of all parts are those of the context.
  std::uint64_t part_bytes(std::uint32_t tokens, std::uint32_t part) const;
  void drop_parts(std::uint64_t key);

  const Options options_;
  TierCache dram_, disk_;
};

}  // namespace quire::capacity
