// What a query holds and may come to hold, and how it makes room for others.
#include <algorithm>

#include "engine/pipeline/query_task.h"
#include "engine/retrieve/device_pool.h"

namespace quire {

std::int64_t QueryTask::working_bytes(const EngineCore& core, const QueryRequest& request, std::int64_t answer_tokens) {
  const auto size = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  std::int64_t prompt = size(request.prefix_ids) + size(request.suffix_ids), longest = 0;
  for (const QueryContext& c : request.contexts) {
    prompt += size(c.token_ids);
    longest = std::max(longest, size(c.token_ids));
  }
  const std::int64_t rows = std::min<std::int64_t>(prompt + std::min<std::int64_t>(answer_tokens, request.sampling.max_tokens), std::max(core.facts.window, prompt));
  const auto pages = [](std::int64_t n) { return (n + kPageTokens - 1) / kPageTokens; };
  // A fault may make the longest document be computed alone, in a cache of its own.
  const std::int64_t alone = longest > 0 ? pages(longest + size(core.facts.ingest_prefix)) : 0;
  return (pages(rows) + alone) * core.pool->format().page_bytes() * core.facts.shape.num_layers;
}

void QueryTask::suspend() {
  suspended_ = true;
  ++run_.stats.preemptions;
  if (!supply_) return;  // nothing is planned yet, and the draft's KV is ordinary memory
  run_.retriever->settle();
  run_.cache->move_out();
  supply_->suspend();
}

Status QueryTask::resume() {
  if (!supply_) {
    suspended_ = false;
    return {};
  }
  QUIRE_RETURN_IF_ERROR(supply_->resume());
  if (const Status s = run_.cache->move_in(); !s.ok()) {
    supply_->suspend();
    return s;
  }
  suspended_ = false;
  return {};
}

std::int64_t QueryTask::held_bytes() const {
  if (!run_.cache || !supply_) return 0;
  return run_.cache->bytes() + run_.cache->bytes_out() + supply_->held_bytes();
}

std::int64_t QueryTask::next_row_bytes() const {
  std::int64_t pages = 0;
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer) pages += run_.cache->num_rows(layer) % kPageTokens == 0 ? 1 : 0;
  return pages * run_.core.pool->format().page_bytes();
}

std::int64_t QueryTask::device_bytes() const {
  const std::int64_t most = run_.core.device->max_bytes();
  if (most == 0 || stage_ == Stage::kDone || !may_use_device()) return 0;
  const std::int64_t part = most / run_.core.device_requests;
  // Never more than everything on the device, and what is chosen by beside it; a few pages for what is rounded up.
  const KvShape& shape = run_.core.facts.shape;
  std::size_t prompt = run_.request.prefix_ids.size() + run_.request.suffix_ids.size();
  for (const QueryContext& c : run_.request.contexts) prompt += c.token_ids.size();
  const std::int64_t rows = static_cast<std::int64_t>(prompt) + run_.request.sampling.max_tokens + 64 * kPageTokens;
  const std::int64_t keys = run_.core.head != nullptr ? run_.core.head->config().key_dim() * static_cast<std::int64_t>(sizeof(float)) : 0;
  return std::min(part, rows * (shape.num_layers * run_.core.pool->format().page_bytes() / kPageTokens + keys));
}

/// Before the plan is made, as far as the request says.
bool QueryTask::may_use_device() const {
  if (run_.retriever) return run_.retriever->uses_device();
  if (run_.request.cache.decode == "auto") return true;
  const auto retriever = make_retriever(run_.request.cache.decode);
  return retriever.ok() && (*retriever)->uses_device();
}

}  // namespace quire
