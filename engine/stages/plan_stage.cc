#include "engine/stages/plan_stage.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/plan/plan_builder.h"
#include "engine/plan/plug_inputs.h"
#include "engine/plan/store_lookup.h"
#include "engine/record/head_record.h"
#include "engine/record/selection_keys.h"
#include "engine/record/sketch.h"
#include "engine/record/tail_record.h"
#include "engine/retrieve/head/specontext.h"
#include "engine/stages/assemble_stage.h"
#include "engine/stages/record_stage.h"

namespace quire {
namespace {

/// Number of last prompt rows of the draft that score blocks: SpecPC's window.
constexpr std::int32_t kBoostWindow = 64;

/// Rejects a request whose choosing needs more than its share of the device, as waiting would not
/// help.
Status check_choosing(const QueryRun& run) {
  const EngineFacts& facts = run.core.facts;
  const std::int64_t needed = run.choosing_bytes(), part = facts.device_part();
  if (part == 0 || needed <= part) return {};
  return Status::invalid("cache.decode",
                         "what " + std::string(run.retriever->name()) + " chooses by needs up to " +
                             std::to_string(needed) + " bytes of device memory for " +
                             std::to_string(run.most_rows()) + " tokens, a request has one of " +
                             std::to_string(facts.device.requests) +
                             " parts (model.device_requests) of " +
                             std::to_string(facts.device.cache_bytes) +
                             " (model.device_cache_bytes); raise the part, or use dense");
}

Status make_plugs(QueryRun& run) {
  const Plan& plan = run.plan;
  QUIRE_ASSIGN_OR_RETURN(run.selector, selectors().make(plan.selector, plan.options));
  QUIRE_ASSIGN_OR_RETURN(run.recomputer, recomputers().make(plan.recomputer, plan.options));
  QUIRE_ASSIGN_OR_RETURN(run.compressor, compressors().make(plan.compress, plan.options));
  QUIRE_ASSIGN_OR_RETURN(run.retriever, retrievers().make(plan.decode, plan.options));
  QUIRE_RETURN_IF_ERROR(check_choosing(run));
  const auto* driven = capability<HeadDriven>(*run.retriever);
  if (driven == nullptr) return {};
  const RetrievalHead* head = run.core.head;
  run.head_track = head != nullptr ? std::make_unique<HeadTrack>(*head, driven->head_input(*head))
                                   : std::make_unique<HeadTrack>();
  return {};
}

/// Begins to collect the queries that the retriever wants. This precedes any row, as it limits how
/// much of the prompt may be shared.
void collect_queries(QueryRun& run) {
  const Plan& plan = run.plan;
  const auto* watcher = capability<PromptWatcher>(*run.retriever);
  const WantedQueries wanted = watcher != nullptr ? watcher->queries_wanted(plan.prompt_tokens)
                                                  : WantedQueries{};
  if (wanted.count == 0) return;
  const EngineFacts& facts = run.core.facts;
  run.queries = std::make_unique<PromptQueries>(
      run.core.model->rope(),
      PromptQueries::Shape{facts.shape.num_layers, facts.num_heads, facts.shape.head_dim}, wanted,
      plan.prompt_tokens);
}

bool wants_draft_scores(const QueryRun& run) {
  return run.plan.selection_pending &&
         run.selector->wants_draft_scores(PlugInputs(run.core.facts, run.request, run).selection());
}

}  // namespace

Status PlanStage::begin() {
  QueryRun& run = shared_.run;
  QUIRE_RETURN_IF_ERROR(plan());
  QUIRE_RETURN_IF_ERROR(make_plugs(run));
  collect_queries(run);
  run.cache.emplace(*run.core.pool, run.core.facts.shape.num_layers);
  shared_.supply = std::make_unique<KvSupply>(run, std::move(shared_.early));
  ask_draft();
  return {};
}

Status PlanStage::plan() {
  QueryRun& run = shared_.run;
  const QueryResources& core = run.core;
  const auto started = Clock::now();
  // What this query has computed counts as computed, even if it is stored by now.
  const auto lookup = [&, stored = store_lookup(*core.store, LookupKind::kUse)](
                          const ContextKey& key, const KvLayout& layout) {
    return shared_.early && shared_.early->finished(key) ? ContextLookup() : stored(key, layout);
  };
  auto planned = build_plan(core.facts, run.request, lookup, core.meter->speeds());
  run.stats.lookup_ms = ms_between(started, Clock::now());
  if (!planned.ok()) return planned.status();
  planned->plan.spans = std::move(run.plan.spans);
  run.plan = std::move(planned->plan);
  run.execution = std::move(planned->execution);
  for (std::size_t i = 0; i < run.execution.work.size(); ++i) {
    const auto is_it = [&](const SegmentHandle& s) { return s->key == run.execution.work[i].key; };
    if (!run.plan.contexts[i].cached || std::ranges::none_of(run.recalled, is_it)) continue;
    for (PlannedBlock& block : run.plan.contexts[i].blocks) block.tier = Tier::kRemote;
  }
  if (cut_) enter_cut(core.facts, core.meter->speeds(), std::move(cut_->cut), cut_->contexts, run);
  run.add_span("lookup", started, Clock::now());
  return {};
}

void PlanStage::ask_draft() {
  QueryRun& run = shared_.run;
  QueryLookAhead::Wanted wanted{.tokens = run.look_ahead_tokens()};
  if (wants_draft_scores(run)) wanted.score_window = kBoostWindow;
  if (cut_ && wanted.tokens > 0 && !cut_->answer.empty()) {
    run.look_ahead = std::make_shared<QueryLookAhead>(std::move(cut_->answer), run.stats.prompt_ms);
    wanted.tokens = 0;
  }
  // The draft reads what the target will attend to. That depends on the selection unless scores are
  // requested, which the selection waits for.
  if (run.plan.selection_pending && wanted.score_window == 0) return;
  run.ask_draft(wanted);
}

/// Returns the kinds of records that the query's plugs read, by index.
std::vector<std::uint32_t> PlanStage::records_wanted() const {
  const QueryRun& run = shared_.run;
  std::vector<std::uint32_t> kinds;
  if (run.execution.needs_sketches || run.recomputer->needs_sketches())
    kinds.push_back(kSketchIndex);
  if (run.execution.needs_head_queries) kinds.push_back(kSelectionKeysIndex);
  if (run.request.plan_only) return kinds;
  if (run.head_track && run.head_track->input() == HeadInput::kFeature)
    kinds.push_back(kHeadRecordIndex);
  if (run.queries && run.queries->wanted().stored) kinds.push_back(kTailRecordIndex);
  return kinds;
}

AfterStage PlanStage::next() {
  std::vector<std::uint32_t> kinds = records_wanted();
  if (kinds.empty() && !shared_.run.plan.selection_pending) return after_plan(shared_);
  return {std::make_unique<RecordStage>(shared_, std::move(kinds))};
}

}  // namespace quire
