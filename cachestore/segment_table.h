/// This file declares which segments exist, what references and reads them, and the eviction order.
/// It works in memory; the store does the disk work.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cachestore/format/document.h"
#include "cachestore/format/segment.h"
#include "cachestore/store.h"
#include "cachestore/tenant_orders.h"

namespace quire {

/// The reason why a segment was freed.
enum class FreeReason : std::uint8_t {
  kUnreferenced = 0,
  kBudget,
  kQuarantine,
  kOutdated,
  kRequested
};

/// Tracks segments. A segment lives while a document references its key or a handle pins it. It can
/// be found by its key from publish() until it is doomed. When a doomed segment loses its last pin,
/// take_reapable() returns it, and the store deletes record and files. Threads: all methods
/// concurrently; none blocks or calls out, except `on_reapable`, which is called without locks.
class SegmentTable : public std::enable_shared_from_this<SegmentTable> {
 public:
  struct Reapable {
    std::shared_ptr<const SegmentInfo> info;
    FreeReason reason;
    bool committed;  ///< has a record in the catalog
  };

  explicit SegmentTable(StorePolicy policy, TenantQuotas quotas = {});
  /// Sets the function that is called, on any thread, when take_reapable() has something to return.
  /// Set it once, before handles exist. clear_callback() removes it and waits for a running call.
  void set_callback(std::function<void()> on_reapable);
  void clear_callback();

  // ---- references by documents ----
  /// Adds references of a document to the segments that it names (segment_keys()). `used_ms` is the
  /// document's last use, Unix milliseconds; 0: none.
  void add_refs(const DocumentManifest& document, std::int64_t used_ms = 0);
  void release_refs(std::span<const ContextKey> keys, bool pinned);
  bool is_referenced(const ContextKey& key) const;

  // ---- life of a segment ----
  /// Marks the key as being written and returns a new id. `bytes` is the most that the segment will
  /// take on disk; it counts for the tenant until publish() or abandon(). Where the tenant's quota
  /// has no room, segments of it are doomed. Errors: kAlreadyExists, kUnavailable,
  /// kResourceExhausted (its pins and readers leave no room in its quota).
  Result<SegmentId> begin(const ContextKey& key, std::string_view tenant = {},
                          std::uint64_t bytes = 0);
  void abandon(const ContextKey& key);
  /// Makes the written segment findable, pins it by the returned handle and ends begin().
  SegmentHandle publish(SegmentInfo info);
  /// Adds a segment found in the catalog at open. Returns false if no document refers to its key or
  /// the key already has one.
  bool restore(SegmentInfo info);
  /// Makes room for this many segments at once.
  void reserve(std::size_t segments);
  void set_next_id(SegmentId next) { next_id_ = next; }
  bool is_known(SegmentId id) const;  ///< live, doomed or being written

  /// Returns a handle of the segment. With `used_ms` this counts as a use at that time.
  std::optional<SegmentHandle> find(const ContextKey& key, std::optional<std::int64_t> used_ms);
  /// Returns a handle of a live segment without counting a use.
  std::optional<SegmentHandle> find_id(SegmentId id);
  /// Returns the live segments of these keys that have no record yet.
  std::vector<std::shared_ptr<const SegmentInfo>> uncommitted(
      std::span<const ContextKey> keys) const;
  void set_committed(SegmentId id);

  /// Dooms the next victim that no handle and no pinned document holds. Returns false if there is
  /// none. With quotas it is one of the tenant that has the most bytes for its share.
  bool evict_one();
  /// Dooms what tenants have beyond their quotas, as far as nobody holds it.
  void enforce_quotas();
  /// Returns the bytes on disk of a tenant's live segments, with those promised to writers; without
  /// quotas those of all.
  std::uint64_t bytes_of(std::string_view tenant) const;
  /// Dooms the segment for bad bytes. Returns false if it was already doomed.
  bool quarantine(SegmentId id) { return doom_one(id, FreeReason::kQuarantine); }
  /// Dooms the segment because its content is out of date.
  bool discard(SegmentId id) { return doom_one(id, FreeReason::kOutdated); }
  struct Candidate {
    std::shared_ptr<const SegmentInfo> info;
    std::int64_t used_ms = 0;  ///< last write or use
    bool pinned = false, in_use = false;
  };
  /// Returns every live segment.
  std::vector<Candidate> candidates() const;
  /// Dooms the segment on request unless a handle holds it or, without `force`, a document pins it.
  /// Returns false if it stays or is already gone.
  bool evict(SegmentId id, bool force);
  /// Dooms segments without references and pins (after open and for gc). Returns their number.
  std::uint64_t doom_unreferenced();
  std::vector<Reapable> take_reapable();

  bool is_pinned_by_document(SegmentId id) const;
  std::vector<std::shared_ptr<const SegmentInfo>> all() const;
  /// Returns the bytes on disk of the live segments that documents pin.
  std::uint64_t pinned_bytes() const;
  /// Returns the tokens of the chunks that documents pin and that have no live segment.
  std::uint64_t pinned_missing_tokens() const;
  std::uint64_t size() const;

 private:
  using Orders = TenantOrders<ContextKey, DigestHash>;
  struct KeyState {
    std::uint32_t refs = 0, pinned_refs = 0;
    std::uint32_t tokens = 0;  // of the chunk; 0: only companions have the key
    std::int64_t used_ms = 0;
    SegmentId live = 0;  ///< 0: none
    bool writing = false;
    bool empty() const { return refs == 0 && live == 0 && !writing; }
    std::uint64_t missing_tokens() const { return pinned_refs > 0 && live == 0 ? tokens : 0; }
  };
  struct Entry {
    std::shared_ptr<const SegmentInfo> info;
    std::uint32_t pins = 0;
    bool committed = false;
    std::optional<FreeReason> doomed;
    Orders::Tenant* tenant = nullptr;
  };
  struct Writing {
    SegmentId id = 0;
    Orders::Tenant* tenant = nullptr;
    std::uint64_t bytes = 0;  // promised
  };

  void add_ref(const ContextKey& key, std::uint32_t tokens, bool pinned,
               std::int64_t used_ms);                                          // mu_ held
  Entry& enter(KeyState& state, SegmentInfo info);                             // mu_ held
  void set_pinned(const ContextKey& key, const KeyState& state, bool pinned);  // mu_ held
  SegmentHandle pin(Entry& entry);                                             // mu_ held
  void unpin(SegmentId id);
  bool doom_one(SegmentId id, FreeReason reason);
  bool doom(Entry& entry, FreeReason reason);  // mu_ held; returns true if it is reapable now
  // mu_ held; frees an unreferenced segment; true: reapable now
  bool synchronize(const ContextKey& key);
  void drop_if_empty(const ContextKey& key);       // mu_ held
  bool is_evictable(const ContextKey& key) const;  // mu_ held
  Status make_room(Orders::Tenant& tenant, std::string_view name,
                   std::uint64_t bytes);                      // mu_ held
  std::optional<Writing> end_writing(const ContextKey& key);  // mu_ held
  void notify();                                              // no lock held

  mutable std::mutex mu_;
  std::unordered_map<ContextKey, KeyState, DigestHash> keys_;  // guarded by mu_
  std::unordered_map<SegmentId, Entry> entries_;               // guarded by mu_; live and doomed
  std::unordered_set<SegmentId> writing_;                      // guarded by mu_
  std::unordered_map<ContextKey, Writing, DigestHash> written_keys_;  // guarded by mu_
  std::unordered_set<SegmentId> pinned_;  // live, of pinned documents; guarded by mu_
  std::uint64_t pinned_bytes_ = 0;        // of those, on disk; guarded by mu_
  std::uint64_t missing_tokens_ = 0;      // sum over keys_; guarded by mu_
  std::vector<SegmentId> reapable_;       // guarded by mu_
  Orders orders_;                         // guarded by mu_; live, not pinned
  std::uint64_t num_live_ = 0;            // guarded by mu_
  SegmentId next_id_ = 1;                 // guarded by mu_ once threads run
  std::mutex callback_mu_;                // held while calling on_reapable_
  std::function<void()> on_reapable_;     // guarded by callback_mu_
};

}  // namespace quire
