/// The beginning of a prompt that is computed causally: taken over from earlier requests, and left
/// to later ones.
#pragma once

#include <cstdint>

#include "engine/plan/plan_builder.h"
#include "engine/query/query_run.h"

namespace quire {

/// Threads: the engine thread. `run` must outlive it.
class SharedFront {
 public:
  /// The plan is complete.
  explicit SharedFront(QueryRun& run);

  /// Puts pages that an earlier request computed at the beginning of the run's cache, if the
  /// strategy may reuse anything, and returns how many tokens they hold. Once, while the cache is
  /// empty. Errors: those of the retrieval head that follows the prompt.
  Result<std::int64_t> take();
  /// One more token of the answer is in the cache: it belongs to the beginning if the whole prompt
  /// does, and if it attended to everything.
  void add_answered(std::int32_t token_id);
  /// Leaves the rows computed causally so far to later requests. Nothing where a compressor moved
  /// rows together: they are no beginning of anything.
  void keep();

 private:
  std::int64_t most_tokens() const;

  QueryRun& run_;
  CausalFront front_;  ///< what the cache holds of it others may share
  Digest seed_;
};

}  // namespace quire
