/// This file declares the store over any disk tier. It is internal to cachestore; tests use it with
/// their own tiers.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <semaphore>
#include <set>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/catalog_follower.h"
#include "cachestore/disk/disk_tier.h"
#include "cachestore/disk/extents/io_pool.h"
#include "cachestore/dram_tier.h"
#include "cachestore/expiry_queue.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/remote/remote_cache.h"
#include "cachestore/segment_table.h"
#include "cachestore/store_admin.h"

namespace quire {

/// Measures how long calls take. Threads: any.
class IoClock {
 public:
  /// Runs `call` and records its duration.
  template <class Call>
  auto time(Call&& call) {
    const auto begun = std::chrono::steady_clock::now();
    auto result = call();
    add(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    return result;
  }
  IoTimes times() const;

 private:
  void add(double seconds);
  std::array<std::atomic<std::uint64_t>, IoTimes::kBounds.size() + 1> counts_{};
  std::atomic<std::uint64_t> sum_ns_{0};
};

/// Checks options and reads the catalog of `disk`. `shared` are the shared tiers in the order of
/// reading and `catalog` the shared catalog; of StoreOptions::remote and catalog the address does
/// not count.
Result<std::unique_ptr<AdminStore>> open_store_on(StoreOptions options,
                                                  std::unique_ptr<DiskTier> disk,
                                                  RemoteCache::Tiers shared = {},
                                                  std::unique_ptr<SharedCatalog> catalog = nullptr);

class StoreImpl final : public AdminStore, private CatalogCopy {
 public:
  StoreImpl(StoreOptions options, std::unique_ptr<DiskTier> disk, RemoteCache::Tiers shared,
            std::unique_ptr<SharedCatalog> catalog);
  ~StoreImpl() override;
  Status recover();
  /// Says what a repair before this open did, for the statistics.
  void set_salvaged(std::string line) { salvaged_ = std::move(line); }

  const StoreOptions& options() const override { return options_; }

  Result<DocumentManifest> commit_document(DocumentManifest manifest,
                                           std::optional<std::string_view> text,
                                           std::span<const SegmentHandle> segments,
                                           const CommitOptions& options) override;
  Result<DocumentManifest> get_document(std::string_view ns, std::string_view id) override;
  Result<DocumentManifest> get_document_head(std::string_view ns, std::string_view id) override;
  Result<std::string> get_text(std::string_view ns, std::string_view id) override;
  Result<DocumentList> list_documents(std::string_view ns, const ListOptions& options) override;
  Result<NamespaceStats> namespace_stats(std::string_view ns) override;
  Result<DocumentManifest> update_document(std::string_view ns, std::string_view id,
                                           const std::function<Status(DocumentManifest&)>& edit,
                                           const CommitOptions& options) override;
  Status add_companions(const DocumentManifest& document,
                        std::span<const ContextKey> keys) override;
  Status delete_document(std::string_view ns, std::string_view id,
                         const CommitOptions& options) override;
  void touch_document(std::string_view ns, std::string_view id) override;
  std::vector<NamespaceStats> namespaces() override;
  void watch_documents(DocumentWatcher watcher) override;
  Result<std::uint64_t> expire(std::int64_t now_ms) override;

  std::optional<SegmentHandle> find_segment(const ContextKey& key) override;
  std::optional<SegmentHandle> peek_segment(const ContextKey& key) override;
  Result<std::unique_ptr<SegmentWriter>> begin_segment(const ContextKey& key,
                                                       const SegmentLayout& layout,
                                                       std::uint64_t expected_bytes,
                                                       std::string_view tenant,
                                                       std::string_view fingerprint) override;
  Result<std::uint64_t> commit_segments(std::span<const SegmentHandle> segments) override;
  Status discard_segment(const SegmentHandle& segment) override;

  Result<PinnedBytes> read_value(const SegmentHandle& segment, std::uint32_t block,
                                 std::uint32_t group, Tier* tier) override;
  Result<PinnedBytes> read_sketch(const SegmentHandle& segment, std::uint32_t index,
                                  Tier* tier) override;
  Status fetch_async(std::vector<ReadRequest> requests, FetchDone done,
                     std::stop_token stop) override;
  Tier tier_of(const SegmentHandle& segment, std::uint32_t block, std::uint32_t group) override;
  bool recalls() const override { return remote_ && remote_->reads(); }
  void recall_async(RecallRequest request, RecallDone done) override;
  void end_turn(const RecallRequest& request) override;
  bool is_shared(const ContextKey& key) const override { return remote_ && remote_->knows(key); }
  RemoteStats remote_stats() const override { return remote_ ? remote_->stats() : RemoteStats(); }
  RecordCopyState record_copy() const override { return disk_->record_copy(); }
  LostWrites lost_writes() const override { return disk_->lost_writes(); }
  void lost_writes_told() override { disk_->lost_writes_told(); }
  CatalogStats catalog_stats() const override;
  Status confirm_document(const DocumentManifest& as_read, const JobFence& fence) override;
  Status bar_document(std::string_view ns, std::string_view id) override {
    return catalog_ ? catalog_->bar(ns, id) : Status();
  }
  SharedJobs* shared_jobs() override { return catalog_ ? &catalog_->jobs() : nullptr; }
  SharedReplies* shared_replies() override { return catalog_ ? &catalog_->replies() : nullptr; }
  Status refresh_document(std::string_view ns, std::string_view id) override;
  Result<std::string> get_shared_meta(std::string_view name) override;
  Status update_shared_meta(std::string_view name, const RecordChange& change) override;
  /// Begins to follow the shared catalog, where there is one. Errors: as CatalogFollower::start().
  Status start_catalog();
  /// Goes on with deletions in the shared tiers that an earlier process has left. With a shared
  /// catalog it comes after that, which may have made documents with these contexts since.
  Status resume_removals();
  Result<PinnedBytes> peek_value(const ReadRequest& request) override;

  Status put_job(std::string_view name, std::string_view value) override {
    return put_record(Family::kJobs, name, value);
  }
  Result<std::string> get_job(std::string_view name) override {
    return get_record(Family::kJobs, name);
  }
  Status delete_job(std::string_view name, Durable when) override {
    return delete_record(Family::kJobs, name, sync_of(when));
  }
  Result<std::vector<NamedRecord>> list_jobs(std::string_view after, std::size_t limit) override;
  Status put_job_and_texts(std::string_view name, std::string_view value,
                           std::span<const NamedText> texts, Durable when) override;
  Result<std::string> get_waiting_text(std::string_view name) override;
  Status delete_waiting_texts(std::span<const std::string> names, Durable when) override;
  Result<std::vector<std::string>> list_waiting_texts(std::string_view after,
                                                      std::size_t limit) override;
  Status put_meta(std::string_view name, std::string_view value) override {
    return put_record(Family::kMeta, name, value);
  }
  Status put_derived(std::string_view name, std::string_view value) override {
    return put_record(Family::kMeta, name, value, Sync::kNo);
  }
  Result<std::string> get_meta(std::string_view name) override {
    return get_record(Family::kMeta, name);
  }
  Status delete_meta(std::string_view name) override { return delete_record(Family::kMeta, name); }

  Result<EvictReport> evict(const EvictRequest& request) override;
  Result<VerifyReport> verify_contexts(
      std::vector<ContextKey>& bad,
      const std::function<bool(const VerifyReport&)>& progress) override;
  Result<MoveReport> move_segments(const std::function<bool(const MoveReport&)>& progress) override;
  Result<BackupReport> backup(const std::string& folder, std::uint32_t keep) override {
    return disk_->backup(folder, keep);
  }
  StoreAdminStats admin_stats() override;
  std::optional<TenantUse> tenant_use(std::string_view tenant) override;
  Result<VerifyReport> verify(const std::function<bool(const VerifyReport&)>& progress) override;
  Result<GcReport> gc() override;
  StoreStats stats() override;
  Status flush() override;

  // ---- for the segment writer ----
  /// Bytes reserved for a writer, released with this object.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(StoreImpl* store, std::uint64_t bytes) : store_(store), bytes_(bytes) {}
    Reservation(Reservation&& o) noexcept
        : store_(std::exchange(o.store_, nullptr)), bytes_(o.bytes_) {}
    Reservation& operator=(Reservation&& o) noexcept {
      std::swap(store_, o.store_);
      std::swap(bytes_, o.bytes_);
      return *this;
    }
    ~Reservation() {
      if (store_) store_->release(bytes_);
    }

   private:
    StoreImpl* store_ = nullptr;
    std::uint64_t bytes_ = 0;
  };
  /// Publishes the written values as a findable segment and writes them through to DRAM.
  Result<SegmentHandle> publish(SegmentInfo info, std::span<const DiskTier::Value> values);
  void abandon(const ContextKey& key) { segments_->abandon(key); }
  std::int64_t now_ms() const { return options_.clock_ms(); }

 private:
  struct Use {
    std::uint64_t hits = 0;
    std::int64_t last_ms = 0;
    /// The hits of the stored head when a writer first added these to it; none: no writer has. Who
    /// finds more there finds some of these, be it of a write under way or of one that failed and
    /// is in the record all the same.
    std::optional<std::uint64_t> before;
    /// Returns how many of these hits a stored head with so many has.
    std::uint64_t in_head(std::uint64_t head_hits) const {
      return before && head_hits > *before ? std::min(hits, head_hits - *before) : 0;
    }
  };
  /// A use is written, and told to other replicas, once it moves the end of the document by this
  /// part of its TTL.
  static constexpr std::int64_t kUseParts = 20;
  /// Allows one writer per document without blocking readers. Its destructor calls the watcher.
  class DocumentLock {
   public:
    DocumentLock(StoreImpl& store, std::string_view ns, std::string_view id);
    ~DocumentLock();
    DocumentLock(const DocumentLock&) = delete;
    DocumentLock& operator=(const DocumentLock&) = delete;

   private:
    StoreImpl& store_;
    const std::string ns_, id_, key_;
  };

  /// The pending uses of a document, whose lock is held, while they are written to its head. They
  /// stay pending until they are written, so that readers do not take the document for expired.
  class TakenUse {
   public:
    TakenUse(StoreImpl& store, const std::string& key);
    TakenUse(const TakenUse&) = delete;
    TakenUse& operator=(const TakenUse&) = delete;
    void add_to(DocumentManifest* manifest) const;
    /// Forgets them; uses that came meanwhile stay pending.
    void set_written();

   private:
    StoreImpl& store_;
    const std::string key_;
    Use use_;
  };

  /// What memory holds of a document after a write of it failed: records that are opened again may
  /// have that write after all.
  struct Doubt {
    std::optional<DocumentManifest> counted;  // none: no document is counted
    bool disk_full = false;                   // why the last one failed
  };
  /// Notes that a write failed which was to replace `counted` (null: none), and why, or that one
  /// was made.
  /// The document's lock is held.
  void doubt(const std::string& key, const DocumentManifest* counted, const Status& why);
  void trust(const std::string& key);
  /// Makes numbers, references and expiry of a doubtful document those of its record, if the disk
  /// goes on and it can be read. The document's lock is held.
  void settle(std::string_view ns, std::string_view id);
  /// The same for all documents.
  void settle_all();
  /// Returns an error for a document in doubt: what a change is made from may be replaced by the
  /// write that failed. The document's lock is held. Errors: kIo, kResourceExhausted (the disk is
  /// full).
  Status check_settled(const std::string& key);

  Status check_writable() const;
  /// Finds room within the budget. `may_move` is false for a caller that moves segments itself.
  Result<Reservation> reserve(std::uint64_t bytes, std::string_view what, bool may_move = true);
  void release(std::uint64_t bytes);
  /// A thread that frees segments, while the object lives.
  class Reaping {
   public:
    explicit Reaping(StoreImpl& store);
    ~Reaping();
    Reaping(const Reaping&) = delete;
    Reaping& operator=(const Reaping&) = delete;

   private:
    StoreImpl& store_;
    std::uint64_t number_ = 0;
  };
  std::size_t reap();
  /// The same, and waits until other threads that began before have freed and counted theirs.
  std::size_t reap_all();
  /// Moves some segments that the disk tier wants to write anew, each with room of its own unless
  /// the caller is looking for room. Returns how many.
  Result<std::size_t> move_some(MoveReport* report, bool reserves);
  void move_in_background();
  /// Returns the room that records of so many bytes need: for the log, the flushed file, and the
  /// rewrite of that file.
  static constexpr std::uint64_t room_for(std::uint64_t payload) {
    return 3 * payload + (64u << 10);
  }
  /// `reached`, if not null, says whether the disk was asked to write.
  Status write_with_room(std::span<const RecordWrite> writes, std::string_view what,
                         Sync sync = Sync::kYes, bool* reached = nullptr);

  Result<DocumentManifest> read_stored_head(std::string_view ns, std::string_view id);
  /// Reads the head with pending uses, also of an expired document
  Result<DocumentManifest> read_head(std::string_view ns, std::string_view id);
  Status take_waiting_text(const std::string& name, const Result<DocumentManifest>& old,
                           DocumentManifest* manifest, std::vector<RecordWrite>* batch);
  // One attempt each at a change of a document, whose lock is held. `late` says that another
  // replica was first.
  Result<DocumentManifest> commit_version(DocumentManifest manifest,
                                          std::optional<std::string_view> text,
                                          const CommitOptions& options, bool* late);
  Result<DocumentManifest> update_version(std::string_view ns, std::string_view id,
                                          const std::function<Status(DocumentManifest&)>& edit,
                                          const CommitOptions& options, bool* late);
  Status remove_version(std::string_view ns, std::string_view id,
                        std::optional<std::int64_t> if_expired_at, const CommitOptions& options,
                        bool* late);
  /// Writes the head and what else is in `batch` of a new version that comes in place of `old`.
  /// Returns the segments that were not committed before.
  Result<std::vector<std::shared_ptr<const SegmentInfo>>> write_version(
      const DocumentManifest* old, const DocumentManifest& next, std::vector<RecordWrite> batch,
      Sync sync = Sync::kYes);
  Status store_update(const DocumentManifest& old, const DocumentManifest& next,
                      std::vector<RecordWrite> batch = {});
  /// Deletes the records of a document; `old` is its head where it could be read.
  Status remove_records(std::string_view ns, std::string_view id,
                        const Result<DocumentManifest>& old);
  /// Deletes the document if `if_expired_at` is empty or the document has expired by then.
  Status remove_document(std::string_view ns, std::string_view id,
                         std::optional<std::int64_t> if_expired_at,
                         const CommitOptions& options = {});
  /// Deletes a document of the shared catalog as it is there, without a copy of that here.
  Status remove_unseen(std::string_view ns, std::string_view id,
                       std::optional<std::int64_t> if_expired_at, const CommitOptions& options);
  void reschedule(const std::string& ns, const std::string& id, std::int64_t now_ms);
  Use pending_use(std::string_view key);
  void add_pending_use(std::string_view key, DocumentManifest* manifest);
  void count_document(const DocumentManifest& manifest, int sign);
  /// Adds to the batch what the index needs when a document changes; null: there is none.
  static void change_terms(const DocumentManifest* old, const DocumentManifest* next,
                           std::vector<RecordWrite>* batch);
  class TermCursor;
  /// Lists by scanning the heads of all documents.
  Result<DocumentList> list_all(std::string_view ns, const ListOptions& options);
  /// Enters a document that a page of a list may take. Returns false once the page is full.
  bool add_to_page(const ListOptions& options, DocumentManifest manifest, std::int64_t now,
                   DocumentList* list);
  Status index_documents();
  /// Writes pending uses. `all` is false for those only that a crash must not take, as the document
  /// would end too early without them.
  Status flush_uses(bool all = true);
  /// Returns whether the pending uses of a document move its end by much.
  bool use_moves_end(std::string_view ns, std::string_view id);

  // ---- the shared catalog: store_catalog.cc, store_records.cc ----
  class SharedMetaUse;
  CatalogRevision copied(const CatalogName& name) override;
  Status apply(const CatalogEntry& entry, const CatalogBody* body) override;
  Status apply_removal(const CatalogName& name, std::uint64_t number) override;
  Result<std::vector<CatalogEntry>> copies(const CatalogName& after,
                                           const CatalogName& last) override;
  Status share_own() override;
  Status share_uses() override;
  void passed(const CatalogPosition& position) override;
  Result<std::string> load(std::string_view name) override {
    return get_record(Family::kMeta, name);
  }
  Status save(std::string_view name, std::string_view value) override {
    // A few bytes in place of others. A full disk keeps room for such, as for deletions.
    const RecordWrite w{Family::kMeta, std::string(name), record::encode_opaque(value)};
    return disk_->write(std::span(&w, 1), Sync::kYes);
  }
  /// Makes a change, and anew where another replica was first: on its state. The document's lock is
  /// held.
  template <class Change>
  auto in_turn(std::string_view ns, std::string_view id, Change&& change) {
    constexpr int kMostTurns = 100;
    for (int i = 0;; ++i) {
      bool late = false;
      decltype(change(&late)) result = change(&late);
      if (!late || i == kMostTurns) return result;
      ++catalog_conflicts_;
      if (Status s = refresh(ns, id); !s.ok()) return decltype(result)(s);
    }
  }
  /// Errors: kIo (this store has not seen the shared catalog yet).
  Status check_catalog() const;
  /// Takes over the state that the shared catalog has. The document's lock is held.
  Status refresh(std::string_view ns, std::string_view id);
  /// Fetches a document that is not here: another replica may have made it a moment ago.
  Status look_for(std::string_view ns, std::string_view id);
  Result<CatalogRevision> read_revision(std::string_view ns, std::string_view id);
  /// Puts a new state into the shared catalog, and adds to the batch what remembers that. Without
  /// one it only notes that this document went its own way.
  Status share_version(const DocumentManifest& next, std::optional<std::string> tokens,
                       std::optional<std::string_view> text, std::vector<RecordWrite>* batch,
                       bool* late, const std::optional<JobFence>& fence = std::nullopt);
  /// Returns whether this store could hold a state that is about to be put into the shared catalog.
  /// Errors: kResourceExhausted.
  Status check_room(const DocumentManifest& next, std::uint64_t body_bytes);
  /// Deletes the document in the shared catalog, if it is there.
  Status share_removal(std::string_view ns, std::string_view id, bool expired, bool* late);
  /// Adds to the batch of a change without the catalog that what it had is to be compared.
  void leave_catalog(std::string_view ns, std::string_view id, std::vector<RecordWrite>* batch);
  /// Applies a state of the catalog; the document's lock is held.
  Status apply_locked(const CatalogEntry& entry, const CatalogBody* body);
  Status share_own_document(const CatalogName& name, std::vector<CatalogName>* differing);

  Result<PinnedBytes> read_named(const SegmentHandle& segment, const record::ValueName& name,
                                 Tier* tier);
  /// Reads a value from disk and checks it.
  Result<std::shared_ptr<ValueBuffer>> read_checked(const record::ValueName& name);
  /// Counts a value that was read and checked, and keeps it in DRAM; quarantines a bad one.
  Result<PinnedBytes> take_read(const SegmentHandle& segment, const record::ValueName& name,
                                Result<std::shared_ptr<ValueBuffer>> read);
  struct Fetch;
  /// Reads and answers the requests [first, last) of a fetch.
  void answer(Fetch& fetch, std::size_t first, std::size_t last);
  void quarantine(const SegmentHandle& segment, const Status& why);

  /// Stores a segment of a shared tier here.
  void recall(RecallRequest request, RecallDone done);
  void queue_write(const SegmentHandle& segment);
  /// Adds to the batch that deletes a segment's record one that has it deleted in the shared tiers,
  /// too, by this process or a later one. Returns the name of that record.
  std::string note_removal(const SegmentInfo& segment, std::vector<RecordWrite>* batch);
  /// Adds to the batch that deletes the record of an evicted segment what deleting it in the shared
  /// tiers will need, once no document names it any more.
  void note_evicted(const SegmentInfo& segment, std::vector<RecordWrite>* batch);
  /// Has the shared tiers delete those of the contexts that were evicted here and that no document
  /// names any more.
  void remove_evicted(std::span<const ContextKey> keys);
  /// Takes a document's references off its segments.
  void release_keys(std::span<const ContextKey> keys, bool pinned);
  /// Has the shared tiers delete a segment, and deletes the record of that once it is done.
  void remove_shared(RemoteRemoval removal, std::string record);
  Status find_last_removal();
  Result<SegmentHandle> take_recalled(const RecallRequest& request, RecalledSegment recalled);
  /// Passes those of the contexts that this store has to the shared tiers.
  void share(std::span<const ContextKey> keys);

  Status put_record(Family family, std::string_view name, std::string_view value,
                    Sync sync = Sync::kYes);
  Result<std::string> get_record(Family family, std::string_view name);
  Status delete_record(Family family, std::string_view name, Sync sync = Sync::kYes);
  static Sync sync_of(Durable when) { return when == Durable::kNow ? Sync::kYes : Sync::kNo; }
  Status verify_segments(VerifyReport* report, std::vector<ContextKey>* bad,
                         const std::function<bool(const VerifyReport&)>& progress, bool* go_on);
  Status verify_records(VerifyReport* report);
  Status drop_lost_texts();

  StoreOptions options_;
  std::string salvaged_;  // set before others have the store
  std::unique_ptr<DiskTier> disk_;
  std::shared_ptr<SegmentTable> segments_;
  std::unique_ptr<DramTier> dram_;

  std::counting_semaphore<64> read_slots_;  // reads of fetch_async that wait for the disk
  ExpiryQueue expiries_;                    // by catalog_key() of the head

  std::shared_mutex watcher_mu_;
  DocumentWatcher watcher_;  // guarded by watcher_mu_

  std::mutex shared_meta_mu_;  // of one change of a shared record at a time
  /// Held while a copy of a shared record is written.
  std::mutex shared_copies_mu_;
  struct SharedCopy {
    int users = 0;
    std::uint64_t revision = 0;  // of what the users have kept; 0: they have not
  };
  /// Records that are read or changed in the catalog now; guarded by shared_copies_mu_
  std::map<std::string, SharedCopy, std::less<>> shared_copies_;

  std::mutex recall_mu_;
  struct WaitingRecall {
    RecallDone done;
    std::stop_token unwanted;
  };
  /// Who waits for a context that is being recalled; guarded by recall_mu_
  std::unordered_map<ContextKey, std::vector<WaitingRecall>, DigestHash> recalls_;

  std::mutex mu_;
  std::condition_variable changed_;       // notified when busy_ or reaping_ shrinks
  std::unordered_set<std::string> busy_;  // documents being written; guarded by mu_
  std::map<std::string, NamespaceStats, std::less<>> namespaces_;  // guarded by mu_
  std::unordered_map<std::string, Use> uses_;      // not yet written; guarded by mu_
  std::unordered_map<std::string, Doubt> doubts_;  // by key of the head; guarded by mu_
  bool doubts_lost_ = false;    // there were too many, and that was said; guarded by mu_
  bool flushing_uses_ = false;  // guarded by mu_
  std::uint64_t reserved_bytes_ = 0, release_epoch_ = 0;  // guarded by mu_
  std::uint64_t last_reaping_ = 0;                        // guarded by mu_
  std::set<std::uint64_t> reaping_;  // numbers of those under way; guarded by mu_
  bool moving_ = false;              // a background move is queued or runs; guarded by mu_
  bool indexed_ = false;             // the index of documents is complete; set by recover()
  std::mutex move_mu_;               // held while segments are moved

  std::atomic<std::uint64_t> segment_hits_{0}, segment_misses_{0}, evicted_budget_{0},
      evicted_bytes_{0}, freed_delete_{0}, quarantined_{0}, documents_expired_{0},
      integrity_failures_{0}, unpooled_bytes_{0}, disk_reads_{0}, disk_read_bytes_{0},
      disk_written_bytes_{0}, evicted_request_{0}, evicted_request_bytes_{0}, read_errors_{0},
      write_errors_{0}, delete_errors_{0};
  IoClock read_clock_, write_clock_, delete_clock_;
  std::atomic<std::uint64_t> catalog_written_{0}, catalog_conflicts_{0};
  std::atomic<std::uint64_t> last_removal_{0};  // number of the last record of kRemovalPrefix

  bool follows_ = false;        // the folder has copies of a shared catalog; set by recover()
  bool heads_damaged_ = false;  // some could not be read; set by recover()
  /// Documents deleted here, by catalog_key() of the head, with the number of the change: what the
  /// follower read before that must not bring them back. Guarded by mu_
  std::unordered_map<std::string, std::uint64_t> removed_;
  std::unique_ptr<SharedCatalog> catalog_;     // null: none
  std::unique_ptr<CatalogFollower> follower_;  // null: none; its thread uses other members
  std::unique_ptr<RemoteCache> remote_;  // null: no shared tier; its threads use other members
  std::unique_ptr<IoPool> pool_;         // last: its threads use all other members
};

bool is_expired(const DocumentManifest& manifest, std::int64_t now_ms);

}  // namespace quire
