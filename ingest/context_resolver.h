/// Documents as the contexts of a query: token ids and keys, by id.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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
  /// `refresh` is called for documents whose KV has seen texts that are not there any more, and
  /// has it made anew; it must be quick.
  using Refresh = std::function<void(const std::string& ns, const std::string& id)>;
  ContextResolver(Store& store, Engine& engine, JobTable& table, const IngestOptions& options,
                  Renditions* renditions = nullptr, Refresh refresh = {})
      : store_(store),
        engine_(engine),
        table_(table),
        options_(options),
        renditions_(renditions),
        refresh_(std::move(refresh)) {}

  /// Does the work of IngestService::resolve(), with its errors. (disk)
  Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                           const ResolveOptions& options);

 private:
  Result<bool> forget_vanished(DocumentManifest& manifest, bool stale);
  Result<ResolvedDocument> resolve_ready(DocumentManifest manifest, const Digest& salt);
  ResolvedDocument resolved(const DocumentManifest& manifest, const Digest& salt,
                            bool unnamed) const;
  Result<ResolvedDocument> resolve_pending(std::string_view ns, const PendingDocument& pending);

  Store& store_;
  Engine& engine_;
  JobTable& table_;
  const IngestOptions& options_;
  Renditions* const renditions_;
  const Refresh refresh_;
};

}  // namespace quire
