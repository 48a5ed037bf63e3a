/// This file runs the question over some blocks of every document, to obtain its queries for
/// selection (the query pass).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/model/forward.h"
#include "engine/query/query_run.h"
#include "engine/select/selector.h"
#include "engine/supply/placement.h"

namespace quire {

/// Runs system prefix, placed blocks and question through the query's own cache, at the plan's
/// positions. Afterwards the cache holds only the prefix; the question's KV and logits are
/// discarded. Threads: the engine thread.
class QueryPass {
 public:
  /// Prepares the pass. The plan's selection holds its blocks, which must have been requested from
  /// the supply.
  QueryPass(QueryRun& run, KvSupply& supply);
  ~QueryPass();

  /// Skips this many prefix rows, which the cache already holds. Call before the first step().
  void skip(std::int64_t tokens) { computed_ = static_cast<std::size_t>(tokens); }
  /// Returns whether step() has work; else it waits for values.
  bool ready() const;
  /// Computes one chunk, or places one context.
  Status step();
  bool done() const { return stage_ == Stage::kDone; }
  const QueryPassResult& result() const { return result_; }

 private:
  enum class Stage { kPrefix, kPlace, kQuestion, kDone };
  class Capture;
  Status compute(const std::vector<std::int32_t>& ids, std::int32_t first_position,
                 ForwardHook* hook);
  Status end_prefix();
  Status end();

  QueryRun& run_;
  Placement placement_;
  Stage stage_ = Stage::kPrefix;
  std::size_t computed_ = 0;  ///< computed tokens of the current stage
  std::int64_t prefix_rows_ = 0;
  std::unique_ptr<Capture> capture_;
  QueryPassResult result_;
};

}  // namespace quire
