/// The cache store: documents, their KV segments and jobs, over a DRAM tier and a disk tier. Bytes
/// in, bytes out: it knows no model. Losing KV never loses a document.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/document.h"
#include "cachestore/segment.h"
#include "cachestore/store_stats.h"

namespace quire {

enum class StorePolicy : std::uint8_t { kLru = 0, kS3Fifo };
/// "lru" or "s3fifo". Errors: kInvalidArgument naming both.
Result<StorePolicy> parse_store_policy(std::string_view name);

struct StoreOptions {
  std::string path;  ///< folder; made if missing and its parent exists
  /// Hard limit of the whole folder as `du` counts it; 0: none; else >= kMinStoreBytes
  std::uint64_t max_bytes = 0;
  /// Hard limit of the DRAM tier's buffers; 0: no DRAM tier
  std::uint64_t dram_bytes = 1ull << 30;
  StorePolicy disk_policy = StorePolicy::kS3Fifo, dram_policy = StorePolicy::kS3Fifo;
  int io_threads = 2;  ///< 1 .. 64: threads of fetch_async and of background deletes
  std::size_t max_queued_reads = 1u << 20;
  /// Falls back to buffered reads, and logs it, where the file system has no O_DIRECT
  bool direct_io = true;
  /// Reads only; may be opened beside a running writer and sees its last synced state
  bool read_only = false;
  std::function<std::int64_t()> clock_ms;  ///< Unix milliseconds; empty: the system clock
};
/// Below this a budget cannot hold the catalog's working room.
inline constexpr std::uint64_t kMinStoreBytes = 96ull << 20;

enum class ReadKind : std::uint8_t { kValue, kSketch };
struct ReadRequest {
  SegmentHandle segment;
  std::uint32_t block = 0, group = 0;  ///< of a sketch: its index, 0
  ReadKind kind = ReadKind::kValue;
};

struct ListOptions {
  std::string after;        ///< exclusive: ids behind this one in list order; empty: from the start
  std::size_t limit = 20;   ///< documents returned at most
  bool descending = false;  ///< order of ids (bytewise)
  std::function<bool(const DocumentManifest&)> filter;  ///< empty: all; runs without locks
};
struct DocumentList {
  std::vector<DocumentManifest> documents;  ///< without token ids
  bool has_more = false;                    ///< another one passes the filter behind the last
};

struct CommitOptions {
  /// 0: must not exist yet; else kFailedPrecondition when it differs
  std::optional<std::uint64_t> expected_version;
};

struct NamedRecord {
  std::string name, value;
};

/// Threads: every method may be called concurrently. All but find_segment, peek_segment, tier_of,
/// touch_document, fetch_async and namespaces may wait on disk: call them from worker threads,
/// never from an I/O thread. Errors common to all writers: kFailedPrecondition (opened read-only),
/// kResourceExhausted (byte budget or disk full: message says which and by how much; reads and
/// deletes go on), kIo, kCorruption (a catalog record fails its checksum).
class Store {
 public:
  virtual ~Store() = default;  ///< waits for reads in flight; handles must be gone
  virtual const StoreOptions& options() const = 0;

  // ---- documents ----
  /// Makes this the document's current state in one atomic, synced write: manifest, text (if given;
  /// otherwise the stored text stays) and the records of `segments`. Takes references on the
  /// segments it names (segment_keys()) and releases those of the version it replaces (still
  /// readable through handles). The store sets version, created_ms (kept), updated_ms, num_tokens,
  /// text_bytes. Returns what was stored. Errors: kInvalidArgument, kFailedPrecondition
  /// (expected_version; no text at all).
  virtual Result<DocumentManifest> commit_document(DocumentManifest manifest,
                                                   std::optional<std::string_view> text,
                                                   std::span<const SegmentHandle> segments = {},
                                                   const CommitOptions& options = {}) = 0;
  /// Whole manifest, token ids included. Errors: kNotFound (also once expired), kCorruption.
  virtual Result<DocumentManifest> get_document(std::string_view ns, std::string_view id) = 0;
  /// Without token ids: cheap for any length.
  virtual Result<DocumentManifest> get_document_head(std::string_view ns, std::string_view id) = 0;
  virtual Result<std::string> get_text(std::string_view ns, std::string_view id) = 0;
  virtual Result<DocumentList> list_documents(std::string_view ns, const ListOptions& options) = 0;
  /// Reads, lets `edit` change title, metadata, status, error, pin, ttl, expiry or job (chunks and
  /// names stay), writes back synced. `edit` runs without locks and may refuse with a Status, which
  /// is returned. Errors: kNotFound, kFailedPrecondition.
  virtual Result<DocumentManifest> update_document(
      std::string_view ns, std::string_view id,
      const std::function<Status(DocumentManifest&)>& edit, const CommitOptions& options = {}) = 0;
  /// Atomic and synced. Segments nobody references or reads are freed. Errors: kNotFound.
  virtual Status delete_document(std::string_view ns, std::string_view id) = 0;
  /// Counts one use (hits, last_used). Memory only; written with the next change, flush() or close.
  /// Unknown ids are ignored.
  virtual void touch_document(std::string_view ns, std::string_view id) = 0;
  virtual std::vector<NamespaceStats> namespaces() = 0;
  /// Called with namespace and id after every commit, change, deletion and expiry of a document
  /// (also a failed one: look what is there), on the thread that made it, when the change can be
  /// read. One watcher; an empty one takes it away, and once that has returned no call is under
  /// way. Must be quick and not throw.
  using DocumentWatcher = std::function<void(std::string_view ns, std::string_view id)>;
  virtual void watch_documents(DocumentWatcher watcher) = 0;
  /// Deletes documents whose time is over; returns how many.
  virtual Result<std::uint64_t> expire(std::int64_t now_ms) = 0;

  // ---- segments ----
  /// The stored segment of a context, pinned; counts as a use. Empty: a miss.
  virtual std::optional<SegmentHandle> find_segment(const ContextKey& key) = 0;
  /// The same for onlookers: not counted as a use, a hit or a miss.
  virtual std::optional<SegmentHandle> peek_segment(const ContextKey& key) = 0;
  /// Reserves room (evicting by policy) and starts a segment. `expected_bytes`: payload of all
  /// values and sketches, at most. Errors: kAlreadyExists (stored: find_segment), kUnavailable
  /// (another writer is at it), kResourceExhausted (pins and texts leave no room),
  /// kInvalidArgument.
  virtual Result<std::unique_ptr<SegmentWriter>> begin_segment(const ContextKey& key,
                                                               const SegmentLayout& layout,
                                                               std::uint64_t expected_bytes,
                                                               std::string_view tenant,
                                                               std::string_view fingerprint) = 0;
  /// Keeps recomputed segments of documents that are committed already. A segment whose key no
  /// document names is left out (it goes when its handles go): the returned number says how many
  /// were kept.
  virtual Result<std::uint64_t> commit_segments(std::span<const SegmentHandle> segments) = 0;

  /// Turns a sound segment whose content is out of date (written by an older build) into a miss, so
  /// that its context can be written again under the same key. Documents that name the key stay as
  /// they are; handles keep reading; files go with the last handle. A crash before that brings the
  /// old segment back. Errors: kFailedPrecondition (read-only).
  virtual Status discard_segment(const SegmentHandle& segment) = 0;

  // ---- reads ----
  /// From DRAM, else from disk, checked (XXH3-128 bound to segment, block and group). A value that
  /// fails is quarantined with its whole segment: kCorruption now, a miss at the next find_segment.
  /// `tier` (optional) says who answered.
  virtual Result<PinnedBytes> read_value(const SegmentHandle& segment, std::uint32_t block,
                                         std::uint32_t group, Tier* tier = nullptr) = 0;
  virtual Result<PinnedBytes> read_sketch(const SegmentHandle& segment, std::uint32_t index,
                                          Tier* tier = nullptr) = 0;
  /// Called once per request, in any order; must not throw.
  using FetchDone = std::function<void(std::size_t index, Result<PinnedBytes> bytes, Tier tier)>;
  /// Values and sketches, checked as read_value and read_sketch do. DRAM hits are answered on the
  /// calling thread before it returns, the rest on the store's pool in the order asked for. A stop
  /// request turns reads that have not begun into kCancelled. Errors: kResourceExhausted (queue
  /// full; nothing was started, nothing is called).
  virtual Status fetch_async(std::vector<ReadRequest> requests, FetchDone done,
                             std::stop_token stop = {}) = 0;
  virtual Tier tier_of(const SegmentHandle& segment, std::uint32_t block, std::uint32_t group) = 0;

  // ---- jobs and small records: opaque bytes by name, synced ----
  virtual Status put_job(std::string_view name, std::string_view value) = 0;
  virtual Result<std::string> get_job(std::string_view name) = 0;
  virtual Status delete_job(std::string_view name) = 0;
  /// In order of name, `after` exclusive.
  virtual Result<std::vector<NamedRecord>> list_jobs(std::string_view after = {},
                                                     std::size_t limit = SIZE_MAX) = 0;
  virtual Status put_meta(std::string_view name, std::string_view value) = 0;
  virtual Result<std::string> get_meta(std::string_view name) = 0;
  virtual Status delete_meta(std::string_view name) = 0;

  // ---- maintenance ----
  /// Re-reads every record and value from disk; bad segments are quarantined (not when read-only).
  /// `progress` may stop it by returning false.
  virtual Result<VerifyReport> verify(
      const std::function<bool(const VerifyReport&)>& progress = {}) = 0;
  /// Frees unreferenced segments, orphan files and expired documents, and compacts the catalog.
  virtual Result<GcReport> gc() = 0;
  virtual StoreStats stats() = 0;
  /// Writes pending usage counts and syncs.
  virtual Status flush() = 0;
};

/// Opens or makes a store. Errors (one each, naming path and fix): kNotFound (parent missing;
/// read-only and no store), kInvalidArgument (a file, a foreign folder, options),
/// kFailedPrecondition (in use by another process; newer layout), kIo (not writable, disk),
/// kCorruption (catalog damaged), kResourceExhausted (disk full).
Result<std::unique_ptr<Store>> open_store(StoreOptions options);

}  // namespace quire
