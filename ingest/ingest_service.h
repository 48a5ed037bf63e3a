/// The document service ingests documents, caches their contexts and serves them by id. It has no
/// HTTP and no wire format.
///
/// A document is cached by a job. Its input is on disk before submit() returns; it becomes visible
/// (ready) in one atomic commit after all its KV is stored. Until then an earlier version, if any,
/// is served. Unfinished jobs continue after a restart.
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
#include "ingest/admission/admission.h"
#include "ingest/document/document_types.h"
#include "ingest/document/job.h"
#include "ingest/document/related_chunks.h"
#include "ingest/document_catalog.h"
#include "ingest/job_board.h"
#include "ingest/model_documents.h"

namespace quire {

struct IngestOptions {
  std::int32_t max_documents_per_call = 256;
  std::int64_t max_document_tokens = 1 << 20;
  std::int64_t max_metadata_bytes = 16 << 10;
  std::uint64_t namespace_bytes = 0;  ///< limit of text and KV bytes in one namespace; 0: no limit
  std::uint64_t default_ttl_seconds = 0;  ///< 0: none
  bool share_across_namespaces = false;   ///< contexts are keyed without the namespace
  /// Limit of waiting documents; beyond it: kResourceExhausted.
  std::size_t max_queued_documents = 100'000;
  std::uint64_t max_queued_bytes = 2ull << 30;  ///< limit of the text of waiting documents
  int num_workers = 2;                          ///< threads that tokenise, chunk and commit
  int max_documents_in_flight = 4;              ///< documents processed concurrently
  /// Contexts submitted to the engine concurrently, over all documents.
  int max_prefills_in_flight = 8;
  std::int64_t job_retention_ms = 24ll * 3600 * 1000;  ///< how long finished jobs are kept
  std::size_t max_finished_jobs = 10'000;  ///< beyond it the oldest finished jobs go earlier
  /// Interval of saving job records, expiry and retention; 0: only by run_maintenance().
  std::int64_t maintenance_interval_ms = 1000;
  PinGate::Ask may_pin;  ///< asked before a document is pinned; a refusal gives cache_full
  /// Finds what ChunkingOptions::related_tokens asks for; empty: that is refused.
  FindChunks find_chunks;
  /// Says whether documents of a namespace are read behind the lead-in whose request does not say
  /// it; empty: they are not.
  std::function<bool(std::string_view ns)> lead_in;
  std::function<std::int64_t()> clock_ms;  ///< Unix ms; empty: the system clock

  /// Returns the time by clock_ms.
  std::int64_t now_ms() const;
  /// Returns the tenant of a namespace's contexts; empty if namespaces share them.
  std::string tenant(std::string_view ns) const;
};

/// IngestStats holds totals since the start, for metrics.
struct IngestStats {
  std::int64_t jobs_queued = 0, jobs_running = 0;
  /// Posts that failed and that the record or the shared catalog may have.
  std::int64_t jobs_refused = 0;
  std::int64_t documents_waiting = 0, documents_in_flight = 0;
  std::uint64_t bytes_waiting = 0;  ///< text of the waiting documents
  std::int64_t documents_ready = 0, documents_failed = 0, documents_cancelled = 0,
               documents_expired = 0;
  std::int64_t tokens = 0, cache_write_tokens = 0, deduplicated_tokens = 0;
  bool accepting = false;  ///< false: draining or not started
};

/// Threads: every method may be called from any thread. Those marked (disk) may wait on disk: they
/// belong on a worker thread, never on an I/O thread.
///
/// Namespaces have 1 to 64 characters [A-Za-z0-9._-]. A foreign or unknown id is kNotFound.
class IngestService {
 public:
  virtual ~IngestService() = default;  ///< after stop()

  /// Reads unfinished jobs back and starts the workers. (disk) Errors: kIo, kCorruption.
  virtual Status start() = 0;
  /// Refuses new work, stops work in flight (it is queued again at the next start), saves jobs and
  /// ends the threads. (disk)
  virtual void stop() = 0;

  // ---- taking documents in ----
  /// Checks the batch, makes the job durable and queues it. (disk) Invalid documents become failed
  /// items of the job; the others continue. Errors for the whole call, field() naming the path:
  /// kInvalidArgument (options, no or too many documents), kFailedPrecondition (field "If-Match" or
  /// "If-None-Match"), kResourceExhausted (queue or disk full), kUnavailable (stopping), kIo.
  virtual Result<JobSnapshot> submit(std::string_view ns, std::vector<DocumentInput> documents,
                                     const BatchOptions& options) = 0;
  /// Computes the missing parts of a document's cache again. (disk) Errors: kNotFound,
  /// kFailedPrecondition (not ready), those of submit().
  virtual Result<JobSnapshot> warm(std::string_view ns, std::string_view id) = 0;

  /// Checks as for a post whether a document that is stored without one fits into what its
  /// namespace may hold, and whether it may be pinned. The document has namespace, id and chunks.
  /// What is returned is held until the store has the document. (disk) Errors: kResourceExhausted.
  virtual Result<Admission> admit(const DocumentManifest& document, std::uint64_t text_bytes) = 0;

  // ---- documents and jobs by id ----
  /// Returns the documents of all namespaces; valid as long as the service.
  virtual DocumentCatalog& documents() = 0;
  /// Returns the jobs of all namespaces; valid as long as the service.
  virtual JobBoard& jobs() = 0;

  // ---- queries ----
  /// Returns token ids and keys of documents in the order of `ids`; each document is one consistent
  /// version. (disk) Unknown and unfinished ids are reported and are not errors. Errors:
  /// kInvalidArgument (ids, salt), kIo, kUnavailable (a document changes faster than it can be
  /// read; a later call may succeed).
  virtual Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                                   const ResolveOptions& options) = 0;

  /// Returns the same documents for another model, whose engine it is. Engine and service must
  /// outlive it.
  virtual std::unique_ptr<ModelDocuments> documents_of(Engine& engine) = 0;

  /// Returns tenant and salt digest for requests without stored documents; resolve() sets them
  /// itself.
  virtual std::string tenant(std::string_view ns) const = 0;
  virtual std::array<std::uint8_t, 32> salt_digest(std::string_view cache_salt) const = 0;

  // ---- upkeep ----
  /// Does what the timer does, once: saves jobs, removes expired documents and old jobs. (disk)
  virtual Status run_maintenance() = 0;
  virtual IngestStats stats() const = 0;
  virtual const IngestOptions& options() const = 0;
};

/// Makes the service. `store` and `engine` must outlive it; it must be stopped before the engine.
/// Errors: kInvalidArgument naming the option.
Result<std::unique_ptr<IngestService>> create_ingest_service(IngestOptions options, Store& store,
                                                             Engine& engine);

}  // namespace quire
