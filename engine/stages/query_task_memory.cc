// This file computes the memory that a query holds and may come to hold, and moves it out and back.
#include <algorithm>

#include "base/index.h"
#include "engine/plan/plan_builder.h"
#include "engine/residency/device_pool.h"
#include "engine/stages/query_task.h"

namespace quire {

std::int64_t QueryTask::working_bytes(const QueryResources& core, const QueryRequest& request,
                                      std::int64_t answer_tokens) {
  const std::int64_t prompt = most_prompt_tokens(request);
  // A fault may cause the longest document to be computed alone, in its own cache, unless all are
  // computed in their places.
  std::int64_t longest = 0;
  if (request.cache.strategy != "recompute") {
    for (const QueryContext& c : request.contexts)
      longest = std::max(longest, count_of(c.left_context) + count_of(c.token_ids));
  }
  const std::int64_t rows = std::min<std::int64_t>(
      prompt + std::min<std::int64_t>(answer_tokens, request.sampling.max_tokens),
      std::max(core.facts.window, prompt));
  const auto pages = [](std::int64_t n) { return (n + kPageTokens - 1) / kPageTokens; };
  const std::int64_t alone = longest > 0 ? pages(longest + count_of(core.facts.ingest_prefix)) : 0;
  return (pages(rows) + alone) * core.pool->format().page_bytes() * core.facts.shape.num_layers;
}

Status QueryTask::suspend() {
  // Before the plan nothing has a cache, and the draft's KV is ordinary memory.
  if (shared_.supply) {
    run_.retriever->synchronize();
    QUIRE_RETURN_IF_ERROR(run_.cache->move_out());
  }
  suspended_ = true;
  ++run_.stats.preemptions;
  if (shared_.supply)
    shared_.supply->suspend();
  else if (shared_.early)
    shared_.early->suspend();
  return {};
}

Status QueryTask::resume() {
  if (!shared_.supply) {
    if (shared_.early) QUIRE_RETURN_IF_ERROR(shared_.early->resume());
    suspended_ = false;
    return {};
  }
  QUIRE_RETURN_IF_ERROR(shared_.supply->resume());
  if (const Status s = run_.cache->move_in(); !s.ok()) {
    shared_.supply->suspend();
    return s;
  }
  suspended_ = false;
  return {};
}

std::int64_t QueryTask::held_bytes() const {
  if (!shared_.supply) return shared_.early ? shared_.early->held_bytes() : 0;
  if (!run_.cache) return 0;
  return run_.cache->bytes() + run_.cache->bytes_out() + shared_.supply->held_bytes();
}

std::int64_t QueryTask::next_row_bytes(std::int64_t rows) const {
  const auto pages_of = [](std::int64_t n) { return (n + kPageTokens - 1) / kPageTokens; };
  std::int64_t pages = 0;
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer) {
    const std::int64_t now = run_.cache->num_rows(layer);
    pages += pages_of(now + rows) - pages_of(now);
  }
  return pages * run_.core.pool->format().page_bytes();
}

std::int64_t QueryTask::device_bytes() const {
  const EngineFacts& facts = run_.core.facts;
  if (run_.core.device->max_bytes() == 0 || done_) return 0;
  const std::int64_t part = facts.device_part();
  if (!run_.retriever && facts.choosing) return part;
  const std::int64_t choosing = run_.retriever ? run_.choosing_bytes() : 0;
  if (!may_use_device()) return std::min(part, choosing);
  // The bound is all rows plus what they are chosen by, and a few pages for rounding up.
  const std::int64_t keys = run_.core.head != nullptr ? run_.core.head->config().key_dim() *
                                                            static_cast<std::int64_t>(sizeof(float))
                                                      : 0;
  return std::min(part, choosing + (run_.most_rows() + 64 * kPageTokens) *
                                       (facts.shape.num_layers *
                                            run_.core.pool->format().page_bytes() / kPageTokens +
                                        keys));
}

/// This is a bound from the request alone, before the plan is made.
bool QueryTask::may_use_device() const {
  if (run_.retriever) return run_.retriever->traits().uses_device;
  if (run_.request.cache.decode == "auto") return true;
  const auto retriever = retrievers().make(run_.request.cache.decode, run_.request.cache.options);
  return retriever.ok() && (*retriever)->traits().uses_device;
}

}  // namespace quire
