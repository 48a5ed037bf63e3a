/// The recomputer's pass over the placed rows of one query.
#pragma once

#include <memory>

#include "engine/pipeline/kv_supply.h"
#include "engine/pipeline/query_run.h"

namespace quire {

/// A chunk of rows at a time. A context found out to hold other tokens' KV becomes a miss: once it is computed and placed again, step() begins
/// a new pass. Threads: the engine thread.
class RecomputeStage {
 public:
  RecomputeStage(QueryRun& run, KvSupply& supply) : run_(run), supply_(supply) {}

  bool done() const { return done_; }
  /// Everything the supply has is placed. Errors: of prepare() and the pass, but for kCorruption.
  Status step();

 private:
  Status prepare();
  void report();

  QueryRun& run_;
  KvSupply& supply_;
  std::unique_ptr<RecomputePass> pass_;
  Clock::time_point started_;
  bool done_ = false;
};

}  // namespace quire
