/// This file runs the question over some blocks of every document, to obtain its queries for
/// selection (the query pass).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/forward.h"
#include "engine/select/selector.h"
#include "engine/stages/supplied_stage.h"
#include "engine/supply/placement.h"

namespace quire {

/// Runs system prefix, placed blocks and question through the query's own cache, at the plan's
/// positions. Afterwards the cache holds only the prefix; the question's KV and logits are
/// discarded.
class QueryPassStage final : public SuppliedStage {
 public:
  /// Prepares the pass over the blocks of the pending plan's selection.
  explicit QueryPassStage(StageResources& shared);
  ~QueryPassStage() override;

  Status begin() override;
  bool done() const override { return part_ == Part::kDone; }
  AfterStage next() override;

 private:
  enum class Part { kPrefix, kPlace, kQuestion, kDone };
  class Capture;
  class MeanCapture;
  class HeadCapture;
  bool has_work() override;
  Status work() override;
  Status compute(const std::vector<std::int32_t>& ids, std::int32_t first_position,
                 ForwardHook* hook);
  Status end_prefix();
  Status end_question();

  QueryRun& run_;
  Placement placement_;
  Part part_ = Part::kPrefix;
  std::size_t computed_ = 0;  ///< computed tokens of the current part
  std::int64_t prefix_rows_ = 0;
  std::unique_ptr<Capture> capture_;
  QueryPassResult result_;
};

}  // namespace quire
