/// This file declares whose turn it is to compute a context, so that replicas that get the same
/// document at once compute it once. It is internal to cachestore.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "cachestore/remote/circuit_breaker.h"
#include "cachestore/remote/remote_options.h"
#include "cachestore/remote/remote_tier.h"

namespace quire {

/// What take() found.
enum class RemoteTurn : std::uint8_t {
  kOwn,     ///< the lease is held: compute the segment, then end() it
  kStored,  ///< another replica has written the segment meanwhile
  kNone     ///< there was no lease to be had: compute without one
};

/// Leases of one tier. A lease is for segments that are computed one after the other, each going on
/// from the one before; it is held until all that were taken under it have ended. Whatever goes
/// wrong with a lease costs time, as two replicas then compute the same bytes. Threads: all methods
/// concurrently; none waits on the network but stop().
class RemoteLeases {
 public:
  /// Called once, on the thread of the leases or on the caller's. It must be quick.
  using Done = std::function<void(RemoteTurn turn)>;

  RemoteLeases(const RemoteOptions& options, RemoteTier& tier);
  ~RemoteLeases() { stop(); }

  /// Takes a segment under a lease. While another replica has the lease and not yet written the
  /// segment, this waits until `until`. A segment that was taken here already gives kNone, and so
  /// does, soon, a stop request of `unwanted` while it waits.
  void take(std::string lease, std::string segment, Clock::time_point until, Done done,
            std::stop_token unwanted = {});
  /// Returns whether the segment was taken here, and has not ended.
  bool holds(const std::string& lease, const std::string& segment) const;
  /// Ends a segment; after the last one its lease is given back soon. One that was not taken is
  /// ignored.
  void end(const std::string& lease, const std::string& segment);
  RemoteLeaseStats stats() const;
  /// Ends: who waits gets kNone, and what is held is given back, within the time of an exchange.
  void stop();

 private:
  struct Held {
    Clock::time_point renew_at, end_at;
    std::set<std::string> segments;  ///< empty: it is being given back
  };
  struct Waiting {
    std::string lease, segment;
    Clock::time_point until, next;
    std::chrono::milliseconds pause{0};
    Done done;
    std::stop_token unwanted;
  };

  void run();
  void renew(const std::string& lease);
  void give_back(const std::string& lease, Clock::time_point deadline);
  /// Takes the segment under a lease that is held here. None: the lease is not.
  std::optional<RemoteTurn> take_held(const std::string& lease, const std::string& segment);
  /// Returns false if another replica has the lease and there is time left to wait.
  bool attempt(const Waiting& waiting);
  void failed(const Status& why);
  Clock::time_point soon() const { return Clock::now() + options_.timeout; }

  const RemoteOptions options_;
  RemoteTier& tier_;
  const std::string token_;
  CircuitBreaker breaker_;
  std::atomic<std::uint64_t> own_{0}, spared_{0}, given_up_{0}, unavailable_{0}, lost_{0};
  mutable std::mutex mu_;
  std::condition_variable changed_;
  bool stopping_ = false;             // guarded by mu_
  std::map<std::string, Held> held_;  // guarded by mu_
  std::deque<Waiting> waiting_;       // guarded by mu_
  bool attempting_ = false;           // guarded by mu_; one more waits, which is in no list
  std::thread thread_;
};

}  // namespace quire
