/// Documents in the form that callers see: the store's contents, documents of running jobs, and the
/// places of the KV.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/document_types.h"
#include "ingest/ingest_service.h"
#include "ingest/job_table.h"

namespace quire {

/// CatalogView only reads. Threads: any, concurrently; every method may wait on disk.
class CatalogView {
 public:
  CatalogView(Store& store, Engine& engine, JobTable& table, const IngestOptions& options)
      : store_(store), engine_(engine), table_(table), options_(options) {}

  Result<DocumentInfo> get(std::string_view ns, std::string_view id);
  Result<DocumentListPage> list(std::string_view ns, const DocumentListOptions& options);
  Result<DocumentCounts> counts(std::string_view ns);
  /// Returns the stored text, or that of a document still being ingested.
  Result<std::string> content(std::string_view ns, std::string_view id);
  Result<std::vector<ChunkInfo>> chunks(std::string_view ns, std::string_view id);
  Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id);
  Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                           const ResolveOptions& options);

  DocumentInfo describe(const DocumentManifest& manifest, bool with_cache) const;
  std::string tenant(std::string_view ns) const {
    return options_.share_across_namespaces ? std::string() : std::string(ns);
  }

 private:
  void fill_cache(const DocumentManifest& manifest, DocumentInfo::Cache& cache) const;
  Tier first_tier(const DocumentChunk& chunk) const;
  Result<DocumentInput> pending_input(const PendingDocument& pending);
  Result<DocumentInfo> describe_pending(std::string_view ns, const PendingDocument& pending);
  bool matches(const DocumentInfo& info, const DocumentFilter& filter) const;
  Result<ResolvedDocument> resolve_ready(DocumentManifest manifest, const Digest& salt);
  Result<ResolvedDocument> resolve_pending(const PendingDocument& pending);

  Store& store_;
  Engine& engine_;
  JobTable& table_;
  const IngestOptions& options_;
};

}  // namespace quire
