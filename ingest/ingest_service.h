/// The document service: takes documents in, caches their contexts, answers for them by id. No
/// HTTP, no wire format.
///
/// A document is cached by a job. Its input is on disk before submit() returns; it becomes visible
/// (ready) in one atomic commit after all its KV is stored. Until then an earlier version, if any,
/// goes on answering. Unfinished jobs go on after a restart.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/document_types.h"
#include "ingest/job.h"
#include "ingest/pin_gate.h"

namespace quire {

struct IngestOptions {
  std::int32_t max_documents_per_call = 256;
  std::int64_t max_document_tokens = 131072;
  std::int64_t max_metadata_bytes = 16 << 10;
  std::uint64_t namespace_bytes = 0;      ///< text and KV bytes one namespace may hold; 0: no limit
  std::uint64_t default_ttl_seconds = 0;  ///< 0: none
  bool share_across_namespaces = false;   ///< contexts are keyed without the namespace
  std::size_t max_queued_documents = 100'000;   ///< waiting; more is kResourceExhausted
  std::uint64_t max_queued_bytes = 2ull << 30;  ///< text of waiting documents
  int num_workers = 2;                          ///< threads that tokenise, chunk and commit
  int max_documents_in_flight = 4;              ///< worked on at the same time
  /// Contexts handed to the engine at the same time, over all documents
  int max_prefills_in_flight = 8;
  std::int64_t job_retention_ms = 24ll * 3600 * 1000;  ///< finished jobs
  /// Job records, expiry, retention; 0: only by run_maintenance()
  std::int64_t maintenance_interval_ms = 1000;
  PinGate::Ask may_pin;  ///< asked before a document is pinned; refusing is cache_full
  std::function<std::int64_t()> clock_ms;  ///< Unix ms; empty: the system clock
};

/// Totals since start, for metrics.
struct IngestStats {
  std::int64_t jobs_queued = 0, jobs_running = 0;
  std::int64_t documents_waiting = 0, documents_in_flight = 0;
  std::int64_t documents_ready = 0, documents_failed = 0, documents_cancelled = 0,
               documents_expired = 0;
  std::int64_t tokens = 0, cache_write_tokens = 0, deduplicated_tokens = 0;
  bool accepting = false;  ///< false: draining or not started
};

/// Threads: every method may be called from any thread. Those marked (disk) may wait on disk: call
/// them from a worker thread, never from an I/O thread. Listeners run on the service's own threads,
/// hold no lock, and must not block. Namespaces: 1 to 64 characters [A-Za-z0-9._-]. A foreign or
/// unknown id is kNotFound.
class IngestService {
 public:
  virtual ~IngestService() = default;  ///< stop() first

  /// Reads unfinished jobs back and starts the workers. (disk) Errors: kIo, kCorruption.
  virtual Status start() = 0;
  /// Refuses new work, stops what is in flight (it is queued again at the next start), saves jobs,
  /// ends the threads. (disk)
  virtual void stop() = 0;

  // ---- taking documents in ----
  /// Checks the batch, makes the job durable and queues it. (disk) Wrong documents become failed
  /// items of the job; the others go on. Errors for the whole call, field() naming the path:
  /// kInvalidArgument (options, no or too many documents), kFailedPrecondition (field "If-Match" or
  /// "If-None-Match"), kResourceExhausted (queue or disk full), kUnavailable (stopping), kIo.
  virtual Result<JobSnapshot> submit(std::string_view ns, std::vector<DocumentInput> documents,
                                     const BatchOptions& options) = 0;
  /// Computes again what a document's cache lacks. (disk) Errors: kNotFound, kFailedPrecondition
  /// (not ready), as submit().
  virtual Result<JobSnapshot> warm(std::string_view ns, std::string_view id) = 0;

  // ---- jobs ----
  /// With results. (disk for jobs finished long ago) Errors: kNotFound.
  virtual Result<JobSnapshot> job(std::string_view ns, std::string_view job_id) = 0;
  virtual Result<JobListPage> list_jobs(std::string_view ns, const JobListOptions& options) = 0;
  /// Items not finished become cancelled; finished ones stay. Returns the job (a finished job as it
  /// is). (disk) Errors: kNotFound.
  virtual Result<JobSnapshot> cancel_job(std::string_view ns, std::string_view job_id) = 0;
  /// Progress (at most four a second) and at the end kDone, exactly once; for a finished job at
  /// once, before this returns. Errors: kNotFound.
  virtual Result<Subscription> subscribe(std::string_view ns, std::string_view job_id,
                                         JobListener listener) = 0;
  /// Calls `done` once, when no job is at work any more on any of these documents (at once, before
  /// this returns, if none is).
  virtual Subscription when_synchronized(std::string_view ns, std::span<const std::string> ids,
                                         std::function<void()> done) = 0;

  // ---- documents ---- (all of them disk)
  virtual Result<DocumentInfo> get(std::string_view ns, std::string_view id) = 0;
  virtual Result<DocumentListPage> list(std::string_view ns,
                                        const DocumentListOptions& options) = 0;
  virtual Result<DocumentCounts> counts(std::string_view ns) = 0;
  virtual Result<std::string> content(std::string_view ns, std::string_view id) = 0;
  virtual Result<std::vector<ChunkInfo>> chunks(std::string_view ns, std::string_view id) = 0;
  virtual Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id) = 0;
  /// Errors: kNotFound, kInvalidArgument, kFailedPrecondition (not ready yet).
  virtual Result<DocumentInfo> patch(std::string_view ns, std::string_view id,
                                     const DocumentPatch& patch) = 0;
  /// Text and KV go; queries that resolved it finish; waiting items of earlier jobs for this id are
  /// cancelled.
  virtual Status remove(std::string_view ns, std::string_view id) = 0;
  virtual Result<BulkDeleteResult> remove_many(std::string_view ns, const BulkDelete& request) = 0;

  // ---- queries ----
  /// Token ids and keys of documents in the order asked; each document is one consistent version.
  /// (disk) Unknown and unfinished ids are reported, not errors. Errors: kInvalidArgument (ids,
  /// salt), kIo.
  virtual Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                                   const ResolveOptions& options) = 0;

  /// Tenant and salt digest for requests without stored documents; resolve() fills them in itself.
  virtual std::string tenant(std::string_view ns) const = 0;
  virtual std::array<std::uint8_t, 32> salt_digest(std::string_view cache_salt) const = 0;

  // ---- upkeep ----
  /// One round of what the timer does: saves jobs, removes expired documents and old jobs. (disk)
  virtual Status run_maintenance() = 0;
  virtual IngestStats stats() const = 0;
  virtual const IngestOptions& options() const = 0;
};

/// `store` and `engine` must outlive the service; stop the service before the engine.
/// Errors: kInvalidArgument naming the option.
Result<std::unique_ptr<IngestService>> create_ingest_service(IngestOptions options, Store& store,
                                                             Engine& engine);

}  // namespace quire
