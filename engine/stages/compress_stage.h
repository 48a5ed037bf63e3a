/// This file compresses a query's working cache and prepares its retriever, between the question's
/// last row and the first token.
#pragma once

#include <memory>
#include <utility>

#include "engine/query/query_run.h"
#include "engine/stages/supplied_stage.h"
#include "engine/supply/assembly.h"

namespace quire {

/// Prepares the query's compressor for the question's pass, and enters into the plan whether the
/// prompt attends sparsely. The plan must be complete.
Status begin_compress(QueryRun& run);

/// Ranks the assembled cache, drops rows as the compressor decides, and hands the cache to the
/// retriever as it begins. Its steps prepare a retriever that does so in pieces. Errors: those of
/// compressor and retriever, kResourceExhausted.
class CompressStage final : public SuppliedStage {
 public:
  /// `assembly` must be done.
  CompressStage(StageResources& shared, std::unique_ptr<Assembly> assembly)
      : SuppliedStage(shared), assembly_(std::move(assembly)) {}

  Status begin() override;
  bool done() const override;
  AfterStage next() override;
  bool runs_model() const override { return false; }

 private:
  bool has_work() override { return true; }
  Status work() override;
  Status prepare_retriever();

  std::unique_ptr<Assembly> assembly_;
};

}  // namespace quire
