#include "engine/stages/query_task.h"

#include <utility>

#include "base/status.h"
#include "engine/api/query_stats.h"
#include "engine/plan/plan_builder.h"
#include "engine/stages/decode_stage.h"
#include "engine/stages/recall_stage.h"

namespace quire {
namespace {

/// Runs one step of a query's end. None is worth the end itself, so that an exception is logged.
template <class Step>
void attempt(const Step& step) noexcept {
  try {
    step();
  } catch (...) {
    (void)exception_status("the end of a query");
  }
}

}  // namespace

QueryTask::QueryTask(QueryResources& core, QueryRequest request, std::shared_ptr<QuerySink> sink,
                     std::shared_ptr<std::atomic<bool>> cancelled, Clock::time_point received)
    : run_(core, std::move(request), received),
      sink_(std::move(sink)),
      cancelled_(std::move(cancelled)),
      shared_{.run = run_, .sink = *sink_} {
  run_.plan.query_id = run_.request.id;
  run_.plan.strategy_asked = run_.request.cache.strategy;
}

QueryTask::~QueryTask() = default;

std::optional<Status> QueryTask::verdict(Clock::time_point now) const {
  if (done_) return std::nullopt;
  if (cancelled_->load(std::memory_order_relaxed))
    return Status::cancelled("the query was cancelled");
  if (now >= run_.request.deadline && (!stage_ || stage_->ends_at_deadline()))
    return Status::deadline("the query did not finish within its time limit");
  return std::nullopt;
}

const std::string& QueryTask::strategy() const {
  return run_.plan.strategy.empty() ? run_.request.cache.strategy : run_.plan.strategy;
}

std::int64_t QueryTask::work_tokens() const {
  const FateCounts& fates = run_.plan.fates;
  return fates.computed + fates.recomputed + run_.stats.completion_tokens;
}

void QueryTask::count_in(std::atomic<std::int64_t>& running) {
  running_ = &running;
  running.fetch_add(1);
}

void QueryTask::start() {
  const auto now = Clock::now();
  run_.stats.queue_ms = ms_between(run_.received, now);
  run_.add_span("queue", run_.received, now);
}

void QueryTask::prepare() {
  run_.plan.prompt_compression = run_.request.cache.prompt_compression;
  stage_ = run_.core.store->recalls() ? std::make_unique<RecallStage>(shared_)
                                      : make_first_stage(shared_);
  proceed(stage_->begin());
}

/// Goes on to the stage that has work for a turn of its own, or ends the query.
void QueryTask::proceed(Status status) {
  while (status.ok() && stage_->done()) {
    AfterStage after = stage_->next();
    if (!after.stage) return finish(after.status, after.reason);
    stage_ = std::move(after.stage);
    status = stage_->begin();
  }
  if (!status.ok()) finish(status, FinishReason::kError);
}

QueryTask::State QueryTask::state() noexcept {
  if (done_) return State::kDone;
  if (suspended_) return State::kPreempted;
  if (stage_->decode() != nullptr) return State::kDecoding;
  try {
    return stage_->ready() ? State::kRunnable : State::kWaiting;
  } catch (...) {
    finish(exception_status("a query that takes in stored KV"), FinishReason::kError);
    return State::kDone;
  }
}

void QueryTask::step() { proceed(stage_->step()); }

DecodeRow QueryTask::decode_row(std::size_t ahead) { return stage_->decode()->row(ahead); }

void QueryTask::decoded(const DecodeRow& row) {
  stage_->decode()->decoded(row);
  proceed({});
}

void QueryTask::finish(const Status& status, FinishReason reason) noexcept {
  if (done_) return;
  done_ = true;
  const auto now = Clock::now();
  QueryStats& stats = run_.stats;
  stats.total_ms = ms_between(run_.received, now);
  if (run_.cache) stats.most_cache_bytes = run_.cache->most_bytes();
  if (stage_) attempt([&] { stage_->query_ends(now, suspended_); });
  if (shared_.supply) attempt([&] { shared_.supply->report(); });
  attempt([&] { finish_plan(run_.core.facts, run_.core.meter->speeds(), run_); });
  if (run_.look_ahead) attempt([&] { stats.draft_ms = run_.look_ahead->draft_ms(); });
  run_.draft_scores.reset();
  run_.look_ahead.reset();
  // Memory and segments are released before the sink is told, not when the last reference to the
  // task is dropped. The stage comes first: its pass may stand between two layers of the cache.
  stage_.reset();
  shared_.early.reset();
  shared_.supply.reset();
  if (run_.retriever) {
    attempt([&] {
      run_.retriever->synchronize();
      stats.retrieve = run_.retriever->stats();
    });
    run_.retriever.reset();
  }
  run_.cache.reset();
  run_.execution.work.clear();
  run_.recalled.clear();
  if (running_ != nullptr) running_->fetch_sub(1);
  if (before_end_) attempt(before_end_);
  attempt([&] { sink_->on_done(status, run_.plan, stats, reason); });
  sink_.reset();
}

}  // namespace quire
