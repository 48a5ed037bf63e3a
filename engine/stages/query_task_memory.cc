// This file computes the memory that a query holds and may come to hold, and moves it out and back.
#include <algorithm>
#include <string>

#include "engine/residency/device_pool.h"
#include "engine/stages/query_task.h"

namespace quire {

std::int64_t QueryTask::working_bytes(const QueryResources& core, const QueryRequest& request,
                                      std::int64_t answer_tokens) {
  const auto size = [](const auto& v) { return static_cast<std::int64_t>(v.size()); };
  std::int64_t prompt = size(request.prefix_ids) + size(request.suffix_ids), longest = 0;
  for (const QueryContext& c : request.contexts) {
    prompt += size(c.token_ids);
    longest = std::max(longest, size(c.token_ids));
  }
  const std::int64_t rows = std::min<std::int64_t>(
      prompt + std::min<std::int64_t>(answer_tokens, request.sampling.max_tokens),
      std::max(core.facts.window, prompt));
  const auto pages = [](std::int64_t n) { return (n + kPageTokens - 1) / kPageTokens; };
  // A fault may cause the longest document to be computed alone, in its own cache.
  const std::int64_t alone = longest > 0 ? pages(longest + size(core.facts.ingest_prefix)) : 0;
  return (pages(rows) + alone) * core.pool->format().page_bytes() * core.facts.shape.num_layers;
}

void QueryTask::suspend() {
  suspended_ = true;
  ++run_.stats.preemptions;
  if (!supply_) return;  // nothing is planned yet, and the draft's KV is ordinary memory
  run_.retriever->synchronize();
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
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer)
    pages += run_.cache->num_rows(layer) % kPageTokens == 0 ? 1 : 0;
  return pages * run_.core.pool->format().page_bytes();
}

/// Returns the rows of the cache at the end of the answer.
std::int64_t QueryTask::most_rows() const {
  std::size_t prompt = run_.request.prefix_ids.size() + run_.request.suffix_ids.size();
  for (const QueryContext& c : run_.request.contexts) prompt += c.token_ids.size();
  return static_cast<std::int64_t>(prompt) + run_.request.sampling.max_tokens;
}

/// Returns the memory that choosing takes of a compute device; known once the plan is made.
std::int64_t QueryTask::choosing_bytes() const {
  return quire::choosing_bytes(run_.core.facts.choosing, *run_.retriever,
                               std::ssize(run_.request.contexts), most_rows());
}

std::int64_t QueryTask::device_bytes() const {
  const EngineFacts& facts = run_.core.facts;
  if (run_.core.device->max_bytes() == 0 || stage_ == Stage::kDone) return 0;
  const std::int64_t part = facts.device_part();
  if (!run_.retriever && facts.choosing) return part;
  const std::int64_t choosing = run_.retriever ? choosing_bytes() : 0;
  if (!may_use_device()) return std::min(part, choosing);
  // The bound is all rows plus what they are chosen by, and a few pages for rounding up.
  const std::int64_t keys = run_.core.head != nullptr ? run_.core.head->config().key_dim() *
                                                            static_cast<std::int64_t>(sizeof(float))
                                                      : 0;
  return std::min(part, choosing + (most_rows() + 64 * kPageTokens) *
                                       (facts.shape.num_layers *
                                            run_.core.pool->format().page_bytes() / kPageTokens +
                                        keys));
}

/// Rejects a request whose choosing needs more than its share of the device, as waiting would not
/// help.
Status QueryTask::check_choosing() const {
  const EngineFacts& facts = run_.core.facts;
  const std::int64_t needed = choosing_bytes(), part = facts.device_part();
  if (part == 0 || needed <= part) return {};
  return Status::invalid(
      "cache.decode",
      "what " + std::string(run_.retriever->name()) + " chooses by needs up to " +
          std::to_string(needed) + " bytes of device memory for " + std::to_string(most_rows()) +
          " tokens, a request has one of " + std::to_string(facts.device.requests) +
          " parts (model.device_requests) of " + std::to_string(facts.device.cache_bytes) +
          " (model.device_cache_bytes); raise the part, or use dense");
}

/// This is a bound from the request alone, before the plan is made.
bool QueryTask::may_use_device() const {
  if (run_.retriever) return run_.retriever->traits().uses_device;
  if (run_.request.cache.decode == "auto") return true;
  const auto retriever = retrievers().make(run_.request.cache.decode, run_.request.cache.options);
  return retriever.ok() && (*retriever)->traits().uses_device;
}

}  // namespace quire
