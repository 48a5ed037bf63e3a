/// The catalog over the store's contents, the documents of running jobs, and the places of the KV.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/admission/admission.h"
#include "ingest/document_catalog.h"
#include "ingest/ingest_service.h"
#include "ingest/job_table.h"

namespace quire {

/// StoreCatalog holds no state of its own. Its references must outlive it. Threads: those of
/// DocumentCatalog.
class StoreCatalog final : public DocumentCatalog {
 public:
  StoreCatalog(Store& store, Engine& engine, JobTable& table, PinGate& pins,
               const IngestOptions& options)
      : store_(store), engine_(engine), table_(table), pins_(pins), options_(options) {}

  Result<DocumentInfo> get(std::string_view ns, std::string_view id) override;
  Result<DocumentListPage> list(std::string_view ns, const DocumentListOptions& options) override;
  Result<DocumentCounts> counts(std::string_view ns) override;
  Result<std::string> content(std::string_view ns, std::string_view id) override;
  Result<std::vector<ChunkInfo>> chunks(std::string_view ns, std::string_view id) override;
  Result<std::vector<TextMark>> marks(std::string_view ns, std::string_view id) override;
  Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id) override;
  Result<DocumentInfo> patch(std::string_view ns, std::string_view id,
                             const DocumentPatch& patch) override;
  using DocumentCatalog::remove;
  Status remove(std::string_view ns, std::string_view id,
                const DocumentCondition& condition) override;
  Result<BulkDeleteResult> remove_many(std::string_view ns, const BulkDelete& request) override;
  Result<std::optional<std::string>> replacing_job(std::string_view ns,
                                                   std::string_view id) override;
  Status settle(std::string_view ns, std::string_view id) override;

 private:
  void fill_cache(const DocumentManifest& manifest, DocumentInfo::Cache& cache) const;
  Tier first_tier(const DocumentChunk& chunk) const;
  DocumentInfo describe(const DocumentManifest& manifest, bool with_cache) const;
  DocumentInfo describe_whole(const DocumentManifest& head) const;
  std::optional<ReadBehind> read_behind_of(const DocumentManifest& head) const;
  Status look_for(std::string_view ns, std::string_view id) const;
  Status refresh_for(const DocumentCondition& condition, std::string_view ns,
                     std::string_view id) const;
  struct Whole {
    DocumentManifest manifest;
    std::string text;
  };
  /// Returns a stored document and its text, of one version.
  Result<Whole> whole(std::string_view ns, std::string_view id) const;
  Result<DocumentInfo> describe_pending(std::string_view ns, const PendingDocument& pending);
  bool matches(const DocumentInfo& info, const DocumentFilter& filter) const;
  Result<bool> remove_matching(std::string_view ns, const std::string& id, std::string tag,
                               const DocumentFilter& filter);
  Status check_patch(const DocumentPatch& patch) const;

  Store& store_;
  Engine& engine_;
  JobTable& table_;
  PinGate& pins_;
  const IngestOptions& options_;
};

}  // namespace quire
