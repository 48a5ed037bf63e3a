/// Documents as the contexts of a query: token ids and keys, by id.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/document/document_types.h"
#include "ingest/ingest_service.h"
#include "ingest/job_table.h"
#include "ingest/renditions.h"

namespace quire {

/// ContextResolver holds no state of its own. Its references must outlive it. Threads: any,
/// concurrently.
class ContextResolver {
 public:
  /// `renditions` are those of the engine's model where it is not the one that documents are
  /// ingested for; null: it is.
  ContextResolver(Store& store, Engine& engine, JobTable& table, const IngestOptions& options,
                  Renditions* renditions = nullptr)
      : store_(store), engine_(engine), table_(table), options_(options), renditions_(renditions) {}

  /// Does the work of IngestService::resolve(), with its errors. (disk)
  Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                           const ResolveOptions& options);

 private:
  Result<ResolvedDocument> resolve_ready(DocumentManifest manifest, const Digest& salt);
  Result<ResolvedDocument> resolve_pending(std::string_view ns, const PendingDocument& pending);

  Store& store_;
  Engine& engine_;
  JobTable& table_;
  const IngestOptions& options_;
  Renditions* const renditions_;
};

}  // namespace quire
