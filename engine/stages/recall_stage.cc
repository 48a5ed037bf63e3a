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

/// How long a query waits before it computes what it waits for, of the time that computing takes.
/// Who waits in vain pays that time, too (bench/run tier_faults).
constexpr double kWaitOfRecompute = 0.1;
/// The same where nothing can be computed before the query is planned.
constexpr double kLongestWait = 0.2;
/// Time of one piece of computing, after which is looked at what has arrived.
constexpr double kPieceMs = 10;

}  // namespace

struct RecallStage::Replies {
  struct Wait {
    ContextKey key;
    double worth_ms = 0;  // of computing it
  };
  std::mutex mu;
  std::vector<Wait> outstanding{};        // guarded by mu
  std::vector<SegmentHandle> segments{};  // guarded by mu; that have arrived

  /// Returns whether none is left. `mu` must be held.
  bool settle(const ContextKey& key) {
    std::erase_if(outstanding, [&](const Wait& w) { return w.key == key; });
    return outstanding.empty();
  }
};

std::unique_ptr<QueryStage> make_first_stage(StageResources& shared) {
  if (shared.run.request.cache.prompt_compression == "none")
    return std::make_unique<PlanStage>(shared, std::nullopt);
  return std::make_unique<PromptStage>(shared);
}

RecallStage::RecallStage(StageResources& shared)
    : shared_(shared), replies_(std::make_shared<Replies>()) {}
RecallStage::~RecallStage() { end_reads(); }

Status RecallStage::begin() {
  const QueryRun& run = shared_.run;
  const QueryRequest& asked = run.request;
  Store& store = *run.core.store;
  started_ = Clock::now();
  if (asked.plan_only || asked.cache.strategy == "recompute" || !store.recalls()) return {};
  std::vector<RecallRequest> wanted;
  double all_ms = 0;
  for (const QueryContext& c : asked.contexts) {
    if (c.token_ids.empty() || !c.key) continue;
    const ContextKey key = run.core.facts.names.context_key(c.token_ids, asked.tenant,
                                                            asked.salt_digest, c.left_context);
    if (*c.key != key || store.peek_segment(key) || asked_.contains(key)) continue;
    // Without its KV the query computes the text before it, too, but once for all contexts.
    wanted.push_back(recall_request(run.core.facts, run.core.meter->speeds(), key,
                                    count_of(c.token_ids), 0, asked.tenant));
    wanted.back().unwanted = asked_[key].get_token();
    replies_->outstanding.push_back({key, wanted.back().worth_ms});
    all_ms += wanted.back().worth_ms;
  }
  // What is computed meanwhile begins with the first: chunks go on from those before them.
  for (auto request = wanted.rbegin(); request != wanted.rend(); ++request) {
    // All are read at once, so each may take the time of all.
    request->worth_ms = all_ms;
    const ContextKey key = request->key;
    store.recall_async(std::move(*request), [replies = replies_, waker = run.core.waker,
                                             key](Result<SegmentHandle> segment) {
      bool last = false;
      {
        const std::lock_guard lock(replies->mu);
        last = replies->settle(key);
        if (segment.ok()) replies->segments.push_back(std::move(*segment));
      }
      if (last) waker->wake();
    });
  }
  return {};
}

bool RecallStage::done() const {
  if (gave_up_) return true;
  // What nobody has must be computed anyway, so a context that is begun is finished.
  if (shared_.early && shared_.early->computing()) return false;
  const std::lock_guard lock(replies_->mu);
  return replies_->outstanding.empty();
}

/// Returns whether this is the time to do without what is outstanding.
bool RecallStage::waited(double part) const {
  const std::lock_guard lock(replies_->mu);
  double worth_ms = 0;
  for (const Replies::Wait& w : replies_->outstanding) worth_ms += w.worth_ms;
  return ms_between(started_, Clock::now()) >= part * worth_ms;
}

bool RecallStage::ready() {
  if (!shared_.early) return waited(kWaitOfRecompute);
  return shared_.early->left() || waited(kLongestWait);
}

Status RecallStage::step() {
  if (done()) return {};  // all replies have come meanwhile
  if (!shared_.early) begin_early();
  drop_arrived();
  if (shared_.early->left()) return compute();
  gave_up_ = waited(kLongestWait);
  return {};
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
    const std::size_t count = planned.ok() ? planned->execution.work.size() : 0;
    for (std::size_t i = 0; i < count; ++i) {
      const ContextWork& work = planned->execution.work[i];
      if (work.source == ContextSource::kAlone && asked_.contains(work.key) &&
          std::ranges::find(wanted, work.key, &EarlyContexts::Wanted::key) == wanted.end())
        wanted.push_back({static_cast<std::int32_t>(i), work.key, work.writable});
    }
  }
  shared_.early = std::make_unique<EarlyContexts>(run, wanted);
}

/// Leaves alone what has arrived. What no tier has is computed in its turn, as those behind it may
/// go on from its rows.
void RecallStage::drop_arrived() {
  const std::lock_guard lock(replies_->mu);
  for (const SegmentHandle& segment : replies_->segments) shared_.early->drop(segment->key);
}

/// Computes a piece, and ends reading what it has finished.
Status RecallStage::compute() {
  QUIRE_RETURN_IF_ERROR(shared_.early->step(kPieceMs));
  for (auto& [key, stop] : asked_) {
    if (!shared_.early->finished(key)) continue;
    stop.request_stop();
    const std::lock_guard lock(replies_->mu);
    replies_->settle(key);
  }
  return {};
}

/// Ends reading what has not arrived: nobody waits for it any more.
void RecallStage::end_reads() {
  for (auto& [key, stop] : asked_) stop.request_stop();
}

AfterStage RecallStage::next() {
  QueryRun& run = shared_.run;
  end_reads();
  {
    const std::lock_guard lock(replies_->mu);
    run.recalled = std::move(replies_->segments);
    replies_->segments.clear();
    // A segment is found in the store a moment before its reply comes.
    for (const Replies::Wait& w : replies_->outstanding)
      if (auto segment = run.core.store->peek_segment(w.key))
        run.recalled.push_back(std::move(*segment));
  }
  if (!run.recalled.empty()) run.add_span("recall", started_, Clock::now());
  return {make_first_stage(shared_)};
}

}  // namespace quire
