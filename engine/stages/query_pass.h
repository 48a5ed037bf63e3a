/// The question run over some blocks of every document to see what it looks like to the model
/// (query pass #1).
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
/// positions. Afterwards the cache holds the prefix alone: the question's KV and logits are nothing
/// but a means. Threads: the engine thread.
class QueryPass {
 public:
  /// The plan's selection holds the blocks to run over; the supply was asked for them.
  QueryPass(QueryRun& run, KvSupply& supply);
  ~QueryPass();

  /// The cache begins with this many rows of the prefix already. Before the first step().
  void skip(std::int64_t tokens) { computed_ = static_cast<std::size_t>(tokens); }
  /// Whether step() has work; else it waits for values.
  bool ready() const;
  /// One chunk of computing, or the placing of one context.
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
  std::size_t computed_ = 0;  ///< tokens of the present stage
  std::int64_t prefix_rows_ = 0;
  std::unique_ptr<Capture> capture_;
  QueryPassResult result_;
};

}  // namespace quire
