/// Fetches the stored values of one query's contexts while the engine thread does other work.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <vector>

#include "cachestore/store.h"
#include "engine/pipeline/core.h"

namespace quire {

/// One value wanted.
struct FetchItem {
  std::int32_t context = 0, block = 0, group = 0;
};

/// Threads: the engine thread; answers arrive on the store's threads. Dropping it stops reads that have not begun.
class Fetch {
 public:
  enum class State : std::uint8_t { kPending, kReady, kFailed };

  explicit Fetch(std::int32_t num_contexts);
  ~Fetch();

  /// Once. `segments[i]` belongs to context i. Items of one context should stand together, in prompt order.
  void start(Store& store, std::shared_ptr<Waker> waker, std::span<const SegmentHandle> segments, std::vector<FetchItem> items);

  /// Ready when all its values are here; kFailed as soon as one cannot come.
  State state(std::int32_t context) const;
  MissReason failure(std::int32_t context) const;

  struct Arrived {
    FetchItem item;
    PinnedBytes bytes;
    Tier tier = Tier::kNone;
    double ms = 0;         ///< since start()
  };
  /// The values of a ready context, in the order they were asked for; once.
  std::vector<Arrived> take(std::int32_t context);
  Clock::time_point started() const { return started_; }

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::stop_source stop_;
  Clock::time_point started_;
};

}  // namespace quire
