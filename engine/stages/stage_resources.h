/// This file holds what several stages of one query use besides its run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/api/query_sink.h"
#include "engine/query/query_run.h"
#include "engine/supply/early_contexts.h"
#include "engine/supply/kv_supply.h"
#include "engine/supply/shared_front.h"

namespace quire {

/// What the stages of one query share; it outlives them. Threads: the engine thread.
struct StageResources {
  QueryRun& run;
  QuerySink& sink;
  std::unique_ptr<EarlyContexts> early;  ///< null: none were computed, or the supply has them
  std::unique_ptr<KvSupply> supply;      ///< null until the query is planned
  std::optional<SharedFront> front;      ///< none until take_front()

  /// Takes the pages that begin the prompt from an earlier request, and returns how many tokens
  /// they hold; 0 after the first call. A query that waits for its turn must not call it. Errors:
  /// those of SharedFront::take().
  Result<std::int64_t> take_front() {
    if (front) return std::int64_t{0};
    return front.emplace(run).take();
  }
};

}  // namespace quire
