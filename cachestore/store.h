/// This file declares the cache store: documents, their KV segments and jobs, over a DRAM tier and
/// a disk tier. It stores opaque bytes and knows no model. Losing KV never loses a document.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/catalog/catalog_options.h"
#include "cachestore/catalog/shared_jobs.h"
#include "cachestore/catalog/shared_records.h"
#include "cachestore/format/document.h"
#include "cachestore/format/metadata.h"
#include "cachestore/format/segment.h"
#include "cachestore/format/tenant_quotas.h"
#include "cachestore/remote/remote_options.h"
#include "cachestore/store_stats.h"

namespace quire {

class ValueMemorySource;

enum class StorePolicy : std::uint8_t { kLru = 0, kS3Fifo };
/// Parses "lru" or "s3fifo". Errors: kInvalidArgument naming both.
Result<StorePolicy> parse_store_policy(std::string_view name);

/// When a change around jobs is safe from a loss of power. A process that is killed loses none.
enum class Durable : std::uint8_t {
  kNow,
  kWithNext,  ///< with the next change that is: a loss of power before that may take it
};

/// What to do with a store whose record cannot be read whole.
enum class OnDamage : std::uint8_t {
  kRefuse,    ///< fail with kCorruption
  kSalvage,   ///< repair_store() first, and keep what KV there is
  kTextOnly,  ///< repair_store() first, without KV
};
/// Parses "refuse", "salvage" or "text_only". Errors: kInvalidArgument naming all.
Result<OnDamage> parse_on_damage(std::string_view name);

struct StoreOptions {
  std::string path;  ///< folder; created if it is missing and its parent exists
  /// Hard limit of the whole folder as `du` counts it; 0: none; else at least kMinStoreBytes
  std::uint64_t max_bytes = 0;
  /// Hard limit of the DRAM tier's buffers; 0: no DRAM tier
  std::uint64_t dram_bytes = 1ull << 30;
  StorePolicy disk_policy = StorePolicy::kS3Fifo, dram_policy = StorePolicy::kS3Fifo;
  int io_threads = 2;  ///< 1 .. 64: threads of fetch_async and of background deletes
  std::size_t max_queued_reads = 1u << 20;
  /// Where the DRAM tier keeps KV values as long as that has room
  /// (cachestore/format/value_memory_source.h); else, and if null, in ordinary memory. Both count
  /// alike.
  std::shared_ptr<ValueMemorySource> value_memory;
  TenantQuotas quotas;  ///< of KV of the tenants that begin_segment() names
  /// Uses O_DIRECT; without support of the file system it logs this and reads buffered
  bool direct_io = true;
  /// Allows only reads; may be opened next to a running writer and sees its last synced state
  bool read_only = false;
  OnDamage on_damage = OnDamage::kRefuse;  ///< ignored when read-only
  /// Folder of a second copy of the records (not of KV), made if its parent exists, which every
  /// write waits for; empty: none. What the records lose comes back from it. Where it cannot be
  /// opened again the store goes on without it, see Store::record_copy(). Ignored when read-only
  std::string copy_path;
  RemoteOptions remote;                    ///< ignored when read-only
  CatalogOptions catalog;                  ///< ignored when read-only
  std::function<std::int64_t()> clock_ms;  ///< Unix milliseconds; empty: the system clock
};
/// A smaller budget cannot hold the catalog's working room.
inline constexpr std::uint64_t kMinStoreBytes = 96ull << 20;

enum class ReadKind : std::uint8_t { kValue, kSketch };
struct ReadRequest {
  SegmentHandle segment;
  std::uint32_t block = 0, group = 0;  ///< for a sketch: its index, 0
  ReadKind kind = ReadKind::kValue;
};

/// A context whose KV another replica may have shared.
struct RecallRequest {
  ContextKey key;
  SegmentLayout layout;           ///< of the values; any number of sketches is taken
  std::uint64_t value_bytes = 0;  ///< payload bytes of all values
  std::string tenant, fingerprint;
  /// Milliseconds after which the context is of no use any more; it arrives before, or not at all
  double worth_ms = 0;
  /// Ends reading once all who ask for this context have requested a stop; they are then answered
  /// soon. A tier that is silent is waited for until the time is over.
  std::stop_token unwanted;
  /// Not zero: the caller computes the context if it is not found, and then calls end_turn(). While
  /// another replica computes it, the answer waits for that one: for twice that time and the time
  /// of a lease at most. Contexts that go on from one another have one turn, so that one replica
  /// computes them all.
  Digest turn;
};

struct ListOptions {
  /// exclusive: returns ids after this one in list order; empty: from the start
  std::string after;
  std::size_t limit = 20;   ///< maximum number of documents returned
  bool descending = false;  ///< order of ids (bytewise)
  /// Only documents with this status and these metadata. An index finds them where a status or
  /// `any_of` is asked for, so others cost nothing; the rest is looked at one by one.
  std::optional<DocumentStatus> status;
  MetadataFilter metadata;
  std::function<bool(const DocumentManifest&)> filter;  ///< empty: all; runs without locks
};
struct DocumentList {
  std::vector<DocumentManifest> documents;  ///< without token ids
  bool has_more = false;  ///< another document after the last one passes the filter
};

struct CommitOptions {
  /// 0: must not exist yet; any other value: kFailedPrecondition if it differs
  std::optional<std::uint64_t> expected_version;
  /// commit_document only: takes the text that waits under this name (put_job_and_texts) instead of
  /// one that is passed. kFailedPrecondition if none waits and the document does not have it.
  std::string waiting_text;
  /// Committing and changing with shared jobs only: is done while this replica has the job, unless
  /// a later one has changed the document, and marks the item as done with it. Errors:
  /// job_taken_over(), change_overtaken().
  std::optional<JobFence> fence;
};

/// A text that is stored before its document.
struct NamedText {
  std::string name;  ///< 1 to 128 bytes without NUL, never used again
  std::string_view text;
};

struct NamedRecord {
  std::string name, value;
};

/// Returns the new value of a record whose value is `before` (none: there is no record); none: the
/// record is deleted. It may meet a value of its own, if the answer to the change was lost.
using RecordChange =
    std::function<Result<std::optional<std::string>>(const std::optional<std::string>& before)>;

/// Threads: every method may be called concurrently. All except find_segment, peek_segment,
/// tier_of, touch_document, fetch_async and namespaces may wait on disk, so call them from worker
/// threads, never from an I/O thread. Errors common to all writers: kFailedPrecondition (opened
/// read-only), kResourceExhausted (byte budget or disk full; the message says which and by how
/// much; reads and deletes still work), kIo, kCorruption (a catalog record fails its checksum).
/// With a shared catalog, committing, changing and deleting a document is done there first; kIo
/// with the field `catalog.url` says that it gave no answer (catalog_is_away()). Documents that
/// other replicas change follow on a thread of the store's own.
class Store {
 public:
  virtual ~Store() = default;  ///< waits for reads in flight; all handles must be released
  virtual const StoreOptions& options() const = 0;

  // ---- documents ----
  /// Makes this the document's current state in one atomic, synced write. It covers manifest, text
  /// (without one the stored text stays) and the records of `segments`. References the segments
  /// that it names (segment_keys()) and releases those of the version it replaces, which handles
  /// can still read. The store sets version, created_ms (kept), updated_ms, num_tokens, text_bytes.
  /// Returns what was stored. Errors: kInvalidArgument, kFailedPrecondition (expected_version; no
  /// text at all).
  virtual Result<DocumentManifest> commit_document(DocumentManifest manifest,
                                                   std::optional<std::string_view> text,
                                                   std::span<const SegmentHandle> segments = {},
                                                   const CommitOptions& options = {}) = 0;
  /// Returns the whole manifest, token ids included. Errors: kNotFound (also once expired),
  /// kCorruption.
  virtual Result<DocumentManifest> get_document(std::string_view ns, std::string_view id) = 0;
  /// Returns the manifest without token ids, which is cheap for any length.
  virtual Result<DocumentManifest> get_document_head(std::string_view ns, std::string_view id) = 0;
  virtual Result<std::string> get_text(std::string_view ns, std::string_view id) = 0;
  virtual Result<DocumentList> list_documents(std::string_view ns, const ListOptions& options) = 0;
  /// Reads the document, lets `edit` change it and writes it back synced. `edit` may change title,
  /// metadata, status, error, pin, ttl and its start, expiry or job; chunks and names stay. It runs
  /// without locks and may fail with a Status, which is returned. Errors: kNotFound,
  /// kFailedPrecondition.
  virtual Result<DocumentManifest> update_document(
      std::string_view ns, std::string_view id,
      const std::function<Status(DocumentManifest&)>& edit, const CommitOptions& options = {}) = 0;
  /// With shared jobs: says that the document `as_read` is as this item of a job wants it. Errors:
  /// kFailedPrecondition (another replica has changed it since then); those of
  /// CommitOptions::fence.
  virtual Status confirm_document(const DocumentManifest& as_read, const JobFence& fence) {
    (void)as_read, (void)fence;
    return {};
  }
  /// With shared jobs: keeps all that were taken before from making a document that is not there.
  virtual Status bar_document(std::string_view ns, std::string_view id) {
    (void)ns, (void)id;
    return {};
  }
  /// Has a document, given as it was read, name these segments as companions, too, so that their KV
  /// is kept with it. Its version stays; where all are named already, nothing is written. Zero keys
  /// are left out. Errors: kNotFound, kFailedPrecondition (the document is another or has changed).
  virtual Status add_companions(const DocumentManifest& document,
                                std::span<const ContextKey> keys) = 0;
  /// Deletes the document atomically and synced, and frees segments without references and readers.
  /// Of `options` only the version counts. Errors: kNotFound, kFailedPrecondition
  /// (expected_version).
  virtual Status delete_document(std::string_view ns, std::string_view id,
                                 const CommitOptions& options = {}) = 0;
  /// Counts one use (hits, last_used) in memory. It is written with the next change, flush() or
  /// close, and by expire() where it moves the end of the document. Unknown ids are ignored.
  virtual void touch_document(std::string_view ns, std::string_view id) = 0;
  virtual std::vector<NamespaceStats> namespaces() = 0;
  /// Returns the numbers of a namespace without documents that have expired and are not deleted
  /// yet; it reads these. All zero for an unknown namespace.
  virtual Result<NamespaceStats> namespace_stats(std::string_view ns) = 0;
  /// Sets the function that is called with namespace and id after every commit, change, deletion
  /// and expiry of a document. It is also called after failed ones, so it must look up the
  /// document. It runs on the thread that made the change, once the change can be read, and must be
  /// quick and not throw. There is one watcher. An empty one removes it; when that returns, no call
  /// is running.
  using DocumentWatcher = std::function<void(std::string_view ns, std::string_view id)>;
  virtual void watch_documents(DocumentWatcher watcher) = 0;
  /// Deletes expired documents and returns their number. With a shared catalog it ends after some
  /// seconds and leaves the rest for the next call.
  virtual Result<std::uint64_t> expire(std::int64_t now_ms) = 0;

  // ---- segments ----
  /// Returns the stored segment of a context, pinned, and counts a use. Empty: a miss.
  virtual std::optional<SegmentHandle> find_segment(const ContextKey& key) = 0;
  /// Returns the segment without counting a use, a hit or a miss.
  virtual std::optional<SegmentHandle> peek_segment(const ContextKey& key) = 0;
  /// Reserves room (evicting by policy) and starts a segment. `expected_bytes` is the maximum
  /// payload of all values and sketches. Errors: kAlreadyExists (stored: find_segment),
  /// kUnavailable (another writer is active), kResourceExhausted (pins and texts leave no room, or
  /// pins and readers none in the tenant's quota), kInvalidArgument.
  virtual Result<std::unique_ptr<SegmentWriter>> begin_segment(const ContextKey& key,
                                                               const SegmentLayout& layout,
                                                               std::uint64_t expected_bytes,
                                                               std::string_view tenant,
                                                               std::string_view fingerprint) = 0;
  /// Keeps recomputed segments of committed documents and returns how many were kept. A segment
  /// whose key no document names is left out and freed with its handles.
  virtual Result<std::uint64_t> commit_segments(std::span<const SegmentHandle> segments) = 0;

  /// Turns a valid segment with outdated content (written by an older build) into a miss, so that
  /// its context can be written again under the same key. Documents that name the key do not
  /// change; handles keep reading, and files are deleted with the last handle. A crash before that
  /// restores the old segment. Errors: kFailedPrecondition (read-only).
  virtual Status discard_segment(const SegmentHandle& segment) = 0;

  // ---- reads ----
  /// Reads a value from DRAM, else from disk, and checks it (XXH3-128 bound to segment, block and
  /// group). A value that fails is quarantined with its whole segment: kCorruption now, a miss at
  /// the next find_segment. `tier` (optional) receives the tier that had it.
  virtual Result<PinnedBytes> read_value(const SegmentHandle& segment, std::uint32_t block,
                                         std::uint32_t group, Tier* tier = nullptr) = 0;
  virtual Result<PinnedBytes> read_sketch(const SegmentHandle& segment, std::uint32_t index,
                                          Tier* tier = nullptr) = 0;
  /// Called once per request, in any order; must not throw.
  using FetchDone = std::function<void(std::size_t index, Result<PinnedBytes> bytes, Tier tier)>;
  /// Reads values and sketches, checked as in read_value and read_sketch. DRAM hits are answered on
  /// the calling thread before it returns, the rest on the store's pool in request order. A stop
  /// request turns reads that have not begun into kCancelled. Errors: kResourceExhausted (queue
  /// full; nothing was started, `done` is not called).
  virtual Status fetch_async(std::vector<ReadRequest> requests, FetchDone done,
                             std::stop_token stop = {}) = 0;
  virtual Tier tier_of(const SegmentHandle& segment, std::uint32_t block, std::uint32_t group) = 0;

  // ---- shared tiers ----
  /// Returns whether recall_async() can find anything.
  virtual bool recalls() const { return false; }
  using RecallDone = std::function<void(Result<SegmentHandle>)>;
  /// Looks for a context in the shared tiers, checks every byte of it, and takes it into this store
  /// as if it had been written here. It is kept if a document names its key. `done` is called once,
  /// with the pinned segment, on the calling thread if this store has the segment or cannot ask,
  /// else on another one; it must be quick and not throw. Errors are ordinary misses: kNotFound,
  /// kDeadlineExceeded, kCorruption (deleted there), kUnavailable, kResourceExhausted, kIo.
  virtual void recall_async(RecallRequest request, RecallDone done) {
    (void)request;
    done(Status::not_found("this store has no shared tier"));
  }
  /// Says that the caller has computed the context of a request with a turn, or will not compute
  /// it. Its KV, if it is here, is written to the shared tiers, where other replicas wait for it.
  /// It does not wait.
  virtual void end_turn(const RecallRequest& request) { (void)request; }
  /// Returns whether a shared tier has, or had when it was asked last, KV of this context.
  virtual bool is_shared(const ContextKey& key) const {
    (void)key;
    return false;
  }
  /// Returns the counts of the shared tiers; it takes no time.
  virtual RemoteStats remote_stats() const { return {}; }

  /// Returns how the second copy of the records is; it takes no time.
  virtual RecordCopyState record_copy() const { return {}; }

  /// Returns the lost writes that are to be told: those that this process found missing, and those
  /// that earlier ones found and nobody told. It takes no time.
  virtual LostWrites lost_writes() const { return {}; }
  /// Says that a service which is ready tells of them. Later opens do not do so again.
  virtual void lost_writes_told() {}

  // ---- shared catalog ----
  /// Returns state and counts of the shared catalog; it takes no time.
  virtual CatalogStats catalog_stats() const { return {}; }
  /// Returns the jobs of all replicas of the shared catalog; null without one.
  virtual SharedJobs* shared_jobs() { return nullptr; }
  /// Returns what is known of requests that may be repeated at any replica; null without one.
  virtual SharedReplies* shared_replies() { return nullptr; }
  /// Takes over the state of a document that the shared catalog has, as another replica may have
  /// changed it a moment ago. Errors: kIo (catalog_is_away()).
  virtual Status refresh_document(std::string_view ns, std::string_view id) {
    (void)ns, (void)id;
    return {};
  }
  /// Returns a small record that the replicas have in common; while the catalog is away, this
  /// store's copy of when it was read last. What get_meta() has counts where the catalog never had
  /// one. Errors: kNotFound, kIo (catalog_is_away(), and there is no copy).
  virtual Result<std::string> get_shared_meta(std::string_view name);
  /// Changes such a record. `change` is called again if another replica was first. Errors: those of
  /// `change`, kIo (catalog_is_away()).
  virtual Status update_shared_meta(std::string_view name, const RecordChange& change);

  // ---- jobs and small records: opaque bytes by name, synced unless `when` is kWithNext ----
  virtual Status put_job(std::string_view name, std::string_view value) = 0;
  virtual Result<std::string> get_job(std::string_view name) = 0;
  virtual Status delete_job(std::string_view name, Durable when = Durable::kNow) = 0;
  /// Returns jobs in order of name; `after` is exclusive.
  virtual Result<std::vector<NamedRecord>> list_jobs(std::string_view after = {},
                                                     std::size_t limit = SIZE_MAX) = 0;
  /// Writes a job record and the texts of its documents in one atomic write. Each text waits until
  /// commit_document() takes it (CommitOptions::waiting_text), which does not write it again.
  virtual Status put_job_and_texts(std::string_view name, std::string_view value,
                                   std::span<const NamedText> texts,
                                   Durable when = Durable::kNow) = 0;
  /// Returns a text that waits, or that a document has taken and still has.
  virtual Result<std::string> get_waiting_text(std::string_view name) = 0;
  /// Deletes those of the texts that still wait. No commit may be taking one of them.
  virtual Status delete_waiting_texts(std::span<const std::string> names,
                                      Durable when = Durable::kNow) = 0;
  /// Returns names of texts that wait, in order; `after` is exclusive.
  virtual Result<std::vector<std::string>> list_waiting_texts(std::string_view after = {},
                                                              std::size_t limit = SIZE_MAX) = 0;
  virtual Status put_meta(std::string_view name, std::string_view value) = 0;
  /// As put_meta(), for a record that can be made again: it is not synced, and a loss of power may
  /// take it.
  virtual Status put_derived(std::string_view name, std::string_view value) = 0;
  virtual Result<std::string> get_meta(std::string_view name) = 0;
  virtual Status delete_meta(std::string_view name) = 0;

  // ---- maintenance ----
  /// Re-reads every record and value from disk and quarantines bad segments (not when read-only).
  /// `progress` may stop it by returning false.
  virtual Result<VerifyReport> verify(
      const std::function<bool(const VerifyReport&)>& progress = {}) = 0;
  /// Frees unreferenced segments, orphan files and expired documents, and compacts the catalog.
  virtual Result<GcReport> gc() = 0;
  virtual StoreStats stats() = 0;
  /// Writes pending usage counts and syncs.
  virtual Status flush() = 0;
};

/// Checks what open_store() asks of its options alone. Errors: kInvalidArgument with the setting.
Status check_store_options(const StoreOptions& options);

/// Opens or creates a store. Errors (one each, naming path and fix): kNotFound (parent missing;
/// read-only and no store), kInvalidArgument (a file, a foreign folder, options),
/// kFailedPrecondition (in use by another process; newer layout; the folder follows another shared
/// catalog, or has documents that differ from it), kIo (not writable, disk; the shared catalog is
/// away and was never seen), kCorruption (catalog damaged), kResourceExhausted (disk full).
Result<std::unique_ptr<Store>> open_store(StoreOptions options);

}  // namespace quire
