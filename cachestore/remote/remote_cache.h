/// This file declares what the store asks of all shared tiers together: recall a segment, and write
/// one behind. It is internal to cachestore.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "cachestore/format/tenant_quotas.h"
#include "cachestore/remote/circuit_breaker.h"
#include "cachestore/remote/hedged_reads.h"
#include "cachestore/remote/recalled_segment.h"
#include "cachestore/remote/remote_keys.h"
#include "cachestore/remote/remote_leases.h"
#include "cachestore/remote/remote_options.h"
#include "cachestore/remote/remote_tier.h"

namespace quire {

/// Which segment is wanted, and until when it is of use.
struct RemoteWanted {
  ContextKey key;
  std::string tenant, fingerprint;
  SegmentLayout layout;           ///< of the values; any number of sketches is taken
  std::uint64_t value_bytes = 0;  ///< payload bytes of all values
  Clock::time_point deadline;
  /// Asked on any thread until `done` is called: whether somebody still waits. Empty: yes.
  std::function<bool()> is_wanted;
};

/// A segment that no document here needs any more, and that the tiers shall not have either.
struct RemoteRemoval {
  ContextKey key;
  std::string name;    ///< in the tiers
  std::string tenant;  ///< whose account it counts for
};

/// Reads from the tiers in their order (hedged_reads.h), and writes to all. A tier that fails again
/// and again is left alone for a while. A wrong, short or missing value makes the segment a miss:
/// it is deleted there, counted and named in the log. Where a tenant has a quota, what it has
/// written is counted in the first tier that has accounts, and a segment that cannot be counted is
/// not written.
///
/// Threads: all methods concurrently; none waits on the network except wait_written().
class RemoteCache {
 public:
  /// What the tiers are, in the order of reading.
  using Tiers = std::vector<std::unique_ptr<RemoteTier>>;
  /// Called once, on a thread of the cache, or on the caller's if nothing was asked. Errors:
  /// kNotFound (no tier has it), kResourceExhausted (too many wait), kUnavailable,
  /// kDeadlineExceeded.
  using Done = std::function<void(Result<RecalledSegment>)>;
  /// Returns the payload of a value or sketch of a segment that is held.
  using ReadPayload = std::function<Result<PinnedBytes>(const record::ValueName& name)>;

  RemoteCache(const RemoteOptions& options, Tiers tiers, TenantQuotas quotas = {});
  ~RemoteCache() { stop(); }

  bool reads() const { return options_.mode != RemoteMode::kWrite; }
  bool writes() const { return options_.mode != RemoteMode::kRead; }

  void recall(RemoteWanted wanted, Done done);
  /// Queues a segment for writing. `read` is called on the writer's thread; the handle is released
  /// there. When the queue is full the segment is left out, and counted. A segment that the tiers
  /// are known to have is not written again.
  void write(SegmentHandle segment, ReadPayload read);
  /// Returns whether replicas take turns at computing contexts: this one reads and writes, and a
  /// tier has leases.
  bool takes_turns() const { return leases_ != nullptr; }
  /// Names a lease, and a segment that is computed under it (remote_leases.h).
  struct Turn {
    std::string lease, segment;
  };
  /// Takes a turn; it needs takes_turns().
  void take_turn(Turn turn, Clock::time_point until, RemoteLeases::Done done,
                 std::stop_token unwanted = {});
  bool has_turn(const Turn& turn) const;
  /// Ends the turn once all that was queued before is written or given up.
  void end_turn(Turn turn);
  /// Waits until all that was queued before to be written is written or given up.
  void wait_written();
  /// Queues a segment for deletion before any later write of it. Nobody waits for it, and a tier
  /// that is away keeps it.
  void remove(const SegmentInfo& segment);
  /// Returns what names the segment in the tiers, also for a later process.
  RemoteRemoval removal_of(const SegmentInfo& segment) const;
  /// Queues a segment for deletion, unless it is wanted. That is asked at once and, on the writer's
  /// thread, when its turn has come: what was written meanwhile stays. While a tier does not
  /// answer, it is tried again. `settled` is called, here or on the writer's thread, once the tiers
  /// have it no more, or it is wanted, or too many deletions wait; after stop() it is not called.
  void remove(RemoteRemoval segment, std::function<bool()> is_wanted,
              std::function<void()> settled);
  /// Returns whether a tier has, or had when it was asked last, this segment.
  bool knows(const ContextKey& key) const;
  RemoteStats stats() const;
  /// Ends: what is queued is given up, calls in flight end.
  void stop();

 private:
  struct Tier {
    std::unique_ptr<RemoteTier> tier;
    Tier* first_way = nullptr;  // null: it is none; else the tier to which this is a second way
    CircuitBreaker breaker{};
    mutable std::mutex mu{};
    std::unordered_set<ContextKey, DigestHash> known{};  // guarded by mu
    /// Segments of which something was wrong, until they are written again; guarded by mu.
    std::unordered_set<ContextKey, DigestHash> distrusted{};
    double bytes_per_ms = 0;          // guarded by mu; 0: not measured
    Clock::time_point measured_at{};  // guarded by mu
    double silent_ms = 0;             // guarded by mu; waited in vain since the last answer
    std::atomic<std::uint64_t> hits{0}, misses{0}, failures{0}, timeouts{0}, bad{0}, too_slow{0},
        read_bytes{0}, written{0}, written_bytes{0}, write_failures{0};
  };
  struct Write {
    enum class Kind : std::uint8_t { kPut, kRemove, kEndTurn };
    Kind kind = Kind::kPut;
    SegmentHandle segment{};  ///< for kPut, with `read`
    ReadPayload read{};
    ContextKey key{};                   ///< for kPut and kRemove
    RemoteRemoval removal{};            ///< for kRemove
    std::function<bool()> is_wanted{};  ///< for kRemove; empty: it is not
    std::function<void()> settled{};    ///< for kRemove; empty: it is not tried again
    Turn turn{};                        ///< for kEndTurn
    std::uint64_t number = 0;           ///< of queued_ by then
  };

  std::optional<Result<RecalledSegment>> ask(Tier& tier, const RemoteWanted& wanted,
                                             const HedgedReads::Alive& alive);
  Result<RecalledSegment> read_from(Tier& tier, const RemoteWanted& wanted,
                                    const HedgedReads::Alive& alive);
  bool worth_reading(Tier& tier, std::uint64_t bytes, Clock::time_point deadline);
  /// Returns the key that encrypts the KV of a namespace; null: it is not encrypted.
  const RemoteKeys::Key* key_for(std::string_view tenant) const;
  std::string name_of(const ContextKey& key, std::string_view fingerprint,
                      std::string_view tenant) const;
  void distrust(Tier& tier, const std::string& name, const Status& why);
  void settle(Tier& tier, Clock::time_point begun, const Status& status);
  bool may_remove() const;
  Write take_next();
  void run_writer();
  bool carry_out_removal(const Write& write);
  void try_again(Write removal);
  void write_to(Tier& tier, const Write& write);
  bool has(Tier& tier, const std::string& name, const SegmentInfo& info, std::uint64_t key_id);
  bool remove_from(Tier& tier, const std::string& name);
  bool count_in(const Write& write);
  void count_out(const std::string& tenant, const std::string& name);
  void settle_account(Clock::time_point begun, const Status& status);
  static void remember(Tier& tier, const ContextKey& key, bool has);

  const RemoteOptions options_;
  std::vector<std::unique_ptr<Tier>> tiers_, second_ways_;
  std::vector<Tier*> sources_;  // tiers and second ways, in the order of reading
  const TenantQuotas quotas_;
  Tier* accounts_ = nullptr;              // null: no tier has accounts
  std::unique_ptr<RemoteLeases> leases_;  // null: replicas do not take turns
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> dropped_{0}, quota_refused_{0}, quota_removed_{0};
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Write> queue_;     // guarded by mu_
  std::deque<Write> removals_;  // guarded by mu_; those that may not be wanted
  bool removed_last_ = false;   // guarded by mu_; the last one was of removals_
  bool removals_lost_ = false;  // guarded by mu_; there were too many, and that was said
  /// After one of removals_ that failed the others wait, too, longer each time; guarded by mu_.
  Clock::time_point removals_rest_until_{};
  std::chrono::milliseconds removals_rest_{0};
  std::uint64_t queued_ = 0, settled_ = 0;  // guarded by mu_; of queue_, since start
  std::unique_ptr<HedgedReads> reads_;
  bool accounts_failed_ = false;  // and that was said; of the writer's thread
  std::thread writer_;
};

}  // namespace quire
