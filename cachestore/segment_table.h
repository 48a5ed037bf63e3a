/// Which segments exist, who references and reads them, and who goes next. Memory only; the store
/// does the disk work.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cachestore/eviction.h"
#include "cachestore/segment.h"
#include "cachestore/store.h"

namespace quire {

/// Why a segment was freed.
enum class FreeReason : std::uint8_t {
  kUnreferenced = 0,
  kBudget,
  kQuarantine,
  kOutdated,
  kRequested
};

/// A segment lives while a document references its key or a handle pins it; it can be found by its
/// key from publish() until it is doomed. A doomed segment waits for its last pin, then
/// take_reapable() gives it to the store, which deletes record and files. Threads: all methods
/// concurrently; none waits or calls out, but for `on_reapable`, called without locks.
class SegmentTable : public std::enable_shared_from_this<SegmentTable> {
 public:
  struct Reapable {
    std::shared_ptr<const SegmentInfo> info;
    FreeReason reason;
    bool committed;  ///< has a record in the catalog
  };

  explicit SegmentTable(StorePolicy policy);
  /// Called (on any thread) when take_reapable() will give something. Set once, before handles
  /// exist; clear_callback() ends it and waits for a call in progress.
  void set_callback(std::function<void()> on_reapable);
  void clear_callback();

  // ---- references by documents ----
  /// `used_ms`: the document's last use, Unix milliseconds; 0: none.
  void add_refs(std::span<const ContextKey> keys, bool pinned, std::int64_t used_ms = 0);
  void release_refs(std::span<const ContextKey> keys, bool pinned);
  bool is_referenced(const ContextKey& key) const;

  // ---- life of a segment ----
  /// Marks the key as being written and gives a new id. Errors: kAlreadyExists, kUnavailable.
  Result<SegmentId> begin(const ContextKey& key);
  void abandon(const ContextKey& key);
  /// The written segment can be found now; pinned by the handle. Ends begin().
  SegmentHandle publish(SegmentInfo info);
  /// A segment found in the catalog at open. False: the key has one already.
  bool restore(SegmentInfo info);
  void set_next_id(SegmentId next) { next_id_ = next; }
  bool is_known(SegmentId id) const;  ///< live, doomed or being written

  /// With `used_ms` it counts as a use at that time.
  std::optional<SegmentHandle> find(const ContextKey& key, std::optional<std::int64_t> used_ms);
  /// Live segments of these keys that have no record yet.
  std::vector<std::shared_ptr<const SegmentInfo>> uncommitted(
      std::span<const ContextKey> keys) const;
  void set_committed(SegmentId id);

  /// Dooms the next victim that no handle and no pinned document holds. False: there is none.
  bool evict_one();
  /// Doomed for bad bytes; false when it was doomed before.
  bool quarantine(SegmentId id) { return doom_one(id, FreeReason::kQuarantine); }
  /// Doomed because its content is out of date.
  bool discard(SegmentId id) { return doom_one(id, FreeReason::kOutdated); }
  struct Candidate {
    std::shared_ptr<const SegmentInfo> info;
    std::int64_t used_ms = 0;  ///< written or used last
    bool pinned = false, in_use = false;
  };
  /// Every live segment.
  std::vector<Candidate> candidates() const;
  /// Dooms it on request unless a handle holds it or, without `force`, a document pins it. False:
  /// it stays, or is gone already.
  bool evict(SegmentId id, bool force);
  /// Dooms segments nobody references or pins (after open and for gc); returns how many.
  std::uint64_t doom_unreferenced();
  std::vector<Reapable> take_reapable();

  bool is_pinned_by_document(SegmentId id) const;
  std::vector<std::shared_ptr<const SegmentInfo>> all() const;
  std::uint64_t size() const;

 private:
  struct KeyState {
    std::uint32_t refs = 0, pinned_refs = 0;
    std::int64_t used_ms = 0;
    SegmentId live = 0;  ///< 0: none
    bool writing = false;
    bool empty() const { return refs == 0 && live == 0 && !writing; }
  };
  struct Entry {
    std::shared_ptr<const SegmentInfo> info;
    std::uint32_t pins = 0;
    bool committed = false;
    std::optional<FreeReason> doomed;
  };

  SegmentHandle pin(Entry& entry);  // mu_ held
  void unpin(SegmentId id);
  bool doom_one(SegmentId id, FreeReason reason);
  bool doom(Entry& entry, FreeReason reason);  // mu_ held; true: reapable now
  bool synchronize(const ContextKey& key);  // mu_ held; frees what nobody wants; true: reapable now
  void drop_if_empty(const ContextKey& key);  // mu_ held
  void notify();                              // no lock held

  mutable std::mutex mu_;
  std::unordered_map<ContextKey, KeyState, DigestHash> keys_;  // guarded by mu_
  std::unordered_map<SegmentId, Entry> entries_;               // guarded by mu_; live and doomed
  std::unordered_set<SegmentId> writing_;                      // guarded by mu_
  std::unordered_map<ContextKey, SegmentId, DigestHash> writing_ids_;  // guarded by mu_
  std::vector<SegmentId> reapable_;                                    // guarded by mu_
  std::unique_ptr<EvictionPolicy<ContextKey>> policy_;  // guarded by mu_; live segments
  std::uint64_t num_live_ = 0;                          // guarded by mu_
  SegmentId next_id_ = 1;                               // guarded by mu_ once threads run
  std::mutex callback_mu_;                              // held while calling on_reapable_
  std::function<void()> on_reapable_;                   // guarded by callback_mu_
};

}  // namespace quire
