#include "engine/stages/recall_stage.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/index.h"
#include "base/waker.h"
#include "engine/plan/plan_builder.h"
#include "engine/plan/store_lookup.h"
#include "engine/query/recall.h"
#include "engine/stages/plan_stage.h"
#include "engine/stages/prompt_stage.h"

namespace quire {

namespace {

/// How long a query waits before it computes, of the time that computing takes. Who waits in vain
/// pays that time, too (bench/run tier_faults).
constexpr double kWaitOfRecompute = 0.1;
/// Time of one piece of computing, after which is looked at what has arrived.
constexpr double kPieceMs = 10;

}  // namespace

struct RecallStage::Replies {
  std::mutex mu;
  std::size_t outstanding = 0;            // guarded by mu
  double worth_ms = 0;                    // guarded by mu; of computing those outstanding
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
  double all_ms = 0;
  {
    const std::lock_guard lock(replies_->mu);
    replies_->outstanding = wanted.size();
    for (const RecallRequest& r : wanted) replies_->worth_ms += r.worth_ms;
    all_ms = replies_->worth_ms;
  }
  for (RecallRequest& request : wanted) {
    // All are read at once, so each may take the time of all.
    const double worth_ms = std::exchange(request.worth_ms, all_ms);
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
  if (gave_up_) return true;
  {
    const std::lock_guard lock(replies_->mu);
    // What nobody has must be computed anyway, so a context that is begun is finished.
    if (replies_->outstanding == 0) return !shared_.early || !shared_.early->computing();
  }
  return shared_.early && !shared_.early->left();
}

bool RecallStage::ready() {
  if (shared_.early) return true;
  const std::lock_guard lock(replies_->mu);
  return replies_->outstanding == 0 ||
         ms_between(started_, Clock::now()) >= kWaitOfRecompute * replies_->worth_ms;
}

Status RecallStage::step() {
  if (done()) return {};  // all replies have come meanwhile
  if (!shared_.early) begin_early();
  drop_arrived();
  if (!shared_.early->left()) {
    gave_up_ = true;
    return {};
  }
  return shared_.early->step(kPieceMs);
}

/// Chooses the contexts that the query would compute alone if nothing else arrived.
void RecallStage::begin_early() {
  QueryRun& run = shared_.run;
  std::vector<EarlyContexts::Wanted> wanted;
  if (run.request.cache.prompt_compression == "none") {
    const auto planned = build_plan(run.core.facts, run.request,
                                    store_lookup(*run.core.store, LookupKind::kPeek),
                                    run.core.meter->speeds());
    // An error is reported by the stage that plans.
    if (planned.ok()) {
      const auto& work = planned->execution.work;
      for (std::size_t i = 0; i < work.size(); ++i) {
        if (work[i].source == ContextSource::kAlone &&
            std::ranges::find(wanted, work[i].key, &EarlyContexts::Wanted::key) == wanted.end())
          wanted.push_back({static_cast<std::int32_t>(i), work[i].key});
      }
    }
  }
  shared_.early = std::make_unique<EarlyContexts>(run, wanted);
}

void RecallStage::drop_arrived() {
  const std::lock_guard lock(replies_->mu);
  for (const SegmentHandle& segment : replies_->segments) shared_.early->drop(segment->key);
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
