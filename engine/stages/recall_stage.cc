#include "engine/stages/recall_stage.h"

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/index.h"
#include "base/waker.h"
#include "engine/query/recall.h"
#include "engine/stages/plan_stage.h"
#include "engine/stages/prompt_stage.h"

namespace quire {

namespace {

/// How long a query waits for KV, of the time that computing it would take. Who waits in vain pays
/// that time and then computes, which for parts of a prompt takes 1.2 times as long as for all of
/// it at once (bench/run tier_faults).
constexpr double kWaitOfRecompute = 0.2;

}  // namespace

struct RecallStage::Replies {
  std::mutex mu;
  std::size_t outstanding = 0;            // guarded by mu
  double worth_ms = 0;                    // guarded by mu; the wait for those outstanding
  std::vector<SegmentHandle> segments{};  // guarded by mu
};

std::unique_ptr<QueryStage> make_first_stage(StageResources& shared) {
  if (shared.run.request.cache.prompt_compression == "none")
    return std::make_unique<PlanStage>(shared, std::nullopt);
  return std::make_unique<PromptStage>(shared);
}

RecallStage::RecallStage(StageResources& shared)
    : shared_(shared), replies_(std::make_shared<Replies>()) {}
RecallStage::~RecallStage() = default;

Status RecallStage::begin() {
  const QueryRun& run = shared_.run;
  const QueryRequest& asked = run.request;
  Store& store = *run.core.store;
  started_ = Clock::now();
  if (asked.plan_only || asked.cache.strategy == "recompute" || !store.recalls()) return {};
  std::vector<RecallRequest> wanted;
  for (const QueryContext& c : asked.contexts) {
    if (c.token_ids.empty() || !c.key) continue;
    const ContextKey key = run.core.facts.names.context_key(c.token_ids, asked.tenant,
                                                            asked.salt_digest, c.left_context);
    if (*c.key != key || store.peek_segment(key)) continue;
    // Without its KV the query computes the text before it, too, but once for all contexts.
    wanted.push_back(recall_request(run.core.facts, run.core.meter->speeds(), key,
                                    count_of(c.token_ids), 0, asked.tenant));
  }
  double wait_ms = 0;
  {
    const std::lock_guard lock(replies_->mu);
    replies_->outstanding = wanted.size();
    for (RecallRequest& r : wanted) {
      r.worth_ms *= kWaitOfRecompute;
      replies_->worth_ms += r.worth_ms;
    }
    wait_ms = replies_->worth_ms;
  }
  for (RecallRequest& request : wanted) {
    // All are read at once, so each may take the time of all.
    const double worth_ms = std::exchange(request.worth_ms, wait_ms);
    store.recall_async(std::move(request), [replies = replies_, waker = run.core.waker,
                                            worth_ms](Result<SegmentHandle> segment) {
      bool last = false;
      {
        const std::lock_guard lock(replies->mu);
        last = --replies->outstanding == 0;
        replies->worth_ms -= worth_ms;
        if (segment.ok()) replies->segments.push_back(std::move(*segment));
      }
      if (last) waker->wake();
    });
  }
  return {};
}

bool RecallStage::done() const {
  const std::lock_guard lock(replies_->mu);
  return gave_up_ || replies_->outstanding == 0;
}

bool RecallStage::ready() {
  const std::lock_guard lock(replies_->mu);
  return replies_->outstanding == 0 || ms_between(started_, Clock::now()) >= replies_->worth_ms;
}

Status RecallStage::step() {
  gave_up_ = true;
  return {};
}

AfterStage RecallStage::next() {
  QueryRun& run = shared_.run;
  {
    const std::lock_guard lock(replies_->mu);
    run.recalled = std::move(replies_->segments);
    replies_->segments.clear();
  }
  if (!run.recalled.empty()) run.add_span("recall", started_, Clock::now());
  return {make_first_stage(shared_)};
}

}  // namespace quire
