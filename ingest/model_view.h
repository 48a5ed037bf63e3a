/// The documents of a service as a model reads them that they were not ingested for.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/admission/pin_gate.h"
#include "ingest/context_resolver.h"
#include "ingest/ingest_service.h"
#include "ingest/job_table.h"
#include "ingest/model_documents.h"
#include "ingest/renditions.h"

namespace quire {

/// ModelView reads the one catalog of the service and has no copy of it, so a change or a deletion
/// holds for this model at once. KV is computed by the first query that uses a document.
class ModelView final : public ModelDocuments {
 public:
  /// The references must outlive it.
  ModelView(Store& store, Engine& engine, JobTable& table, PinGate& pins,
            const IngestOptions& options)
      : store_(store),
        engine_(engine),
        options_(options),
        renditions_(store, engine, pins, options),
        resolver_(store, engine, table, options, &renditions_) {}

  Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                           const ResolveOptions& options) override {
    return resolver_.resolve(ns, ids, options);
  }
  Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id) override;

 private:
  Store& store_;
  Engine& engine_;
  const IngestOptions& options_;
  Renditions renditions_;
  ContextResolver resolver_;
};

}  // namespace quire
