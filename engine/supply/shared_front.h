/// This file shares the causally computed beginning of a prompt with earlier and later requests.
#pragma once

#include <cstdint>

#include "engine/plan/plan_builder.h"
#include "engine/query/query_run.h"

namespace quire {

/// Shares the pages of a prompt's beginning. Threads: the engine thread; `run` must outlive it.
class SharedFront {
 public:
  /// Prepares sharing; the plan must be complete.
  explicit SharedFront(QueryRun& run);

  /// Puts pages of an earlier request at the beginning of the run's cache, if the strategy may
  /// reuse anything, and returns how many tokens they hold. Call it once, while the cache is empty.
  /// Errors: those of the retrieval head that follows the prompt.
  Result<std::int64_t> take();
  /// Records that one more answer token is in the cache. It extends the beginning if the whole
  /// prompt belongs to it and the token attended to everything.
  void add_answered(std::int32_t token_id);
  /// Keeps the rows computed causally so far for later requests. Nothing is kept after a compressor
  /// compacted rows, as they no longer form a prefix.
  void keep();

 private:
  std::int64_t most_tokens() const;

  QueryRun& run_;
  CausalFront front_;  ///< tokens in the cache that others may share
  Digest seed_;
};

}  // namespace quire
