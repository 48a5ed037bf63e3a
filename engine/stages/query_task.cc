#include "engine/stages/query_task.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "engine/api/query_stats.h"
#include "engine/draft/draft.h"
#include "engine/plan/plan_builder.h"
#include "engine/plan/plug_inputs.h"
#include "engine/plan/store_lookup.h"
#include "engine/record/head_record.h"
#include "engine/record/tail_record.h"
#include "engine/retrieve/head/specontext.h"
#include "engine/select/resident_means.h"
#include "engine/stages/compress_stage.h"
#include "engine/supply/stored_queries.h"

namespace quire {
namespace {

/// Number of last prompt rows of the draft that score blocks: SpecPC's window.
constexpr std::int32_t kBoostWindow = 64;

}  // namespace

QueryTask::QueryTask(QueryResources& core, QueryRequest request, std::shared_ptr<QuerySink> sink,
                     std::shared_ptr<std::atomic<bool>> cancelled, Clock::time_point received)
    : run_(core, std::move(request), received),
      sink_(std::move(sink)),
      cancelled_(std::move(cancelled)) {
  run_.plan.query_id = run_.request.id;
  run_.plan.strategy_asked = run_.request.cache.strategy;
}

QueryTask::~QueryTask() = default;

std::optional<Status> QueryTask::verdict(Clock::time_point now) const {
  if (stage_ == Stage::kDone) return std::nullopt;
  if (cancelled_->load(std::memory_order_relaxed))
    return Status::cancelled("the query was cancelled");
  // A complete answer is not discarded for its attribution, which is skipped instead.
  if (now >= run_.request.deadline && stage_ != Stage::kAttribute)
    return Status::deadline("the query did not finish within its time limit");
  return std::nullopt;
}

const std::string& QueryTask::strategy() const {
  const Plan& plan = run_.plan;
  return plan.strategy.empty() ? run_.request.cache.strategy : plan.strategy;
}

std::int64_t QueryTask::work_tokens() const {
  const FateCounts& fates = run_.plan.fates;
  return fates.computed + fates.recomputed + run_.stats.completion_tokens;
}

void QueryTask::count_in(std::atomic<std::int64_t>& running) {
  running_ = &running;
  running.fetch_add(1);
}

Status QueryTask::make_plugs() {
  const Plan& plan = run_.plan;
  QUIRE_ASSIGN_OR_RETURN(run_.selector, selectors().make(plan.selector, plan.options));
  QUIRE_ASSIGN_OR_RETURN(run_.recomputer, recomputers().make(plan.recomputer, plan.options));
  QUIRE_ASSIGN_OR_RETURN(run_.compressor, compressors().make(plan.compress, plan.options));
  QUIRE_ASSIGN_OR_RETURN(run_.retriever, retrievers().make(plan.decode, plan.options));
  QUIRE_RETURN_IF_ERROR(check_choosing());
  const auto* driven = capability<HeadDriven>(*run_.retriever);
  if (driven == nullptr) return {};
  const RetrievalHead* head = run_.core.head;
  run_.head_track = head != nullptr ? std::make_unique<HeadTrack>(*head, driven->head_input(*head))
                                    : std::make_unique<HeadTrack>();
  return {};
}

void QueryTask::start() {
  const auto now = Clock::now();
  run_.stats.queue_ms = ms_between(run_.received, now);
  run_.add_span("queue", run_.received, now);
}

void QueryTask::prepare() {
  run_.plan.prompt_compression = run_.request.cache.prompt_compression;
  if (run_.request.cache.prompt_compression != "none")
    prompt_ = std::make_unique<PromptStage>(run_);
  if (prompt_ && !prompt_->done()) {
    stage_ = Stage::kCutPrompt;
    return;
  }
  if (const Status s = plan(); !s.ok()) finish(s, FinishReason::kError);
}

Status QueryTask::plan() {
  const auto started = Clock::now();
  QueryResources& core = run_.core;
  auto planned = build_plan(core.facts, run_.request, store_lookup(*core.store, LookupKind::kUse),
                            core.meter->speeds());
  run_.stats.lookup_ms = ms_between(started, Clock::now());
  if (!planned.ok()) return planned.status();
  planned->plan.spans = std::move(run_.plan.spans);
  run_.plan = std::move(planned->plan);
  run_.execution = std::move(planned->execution);
  if (prompt_) prompt_->enter(run_);
  run_.add_span("lookup", started, Clock::now());
  QUIRE_RETURN_IF_ERROR(make_plugs());
  wanted_queries();
  run_.cache.emplace(*core.pool, core.facts.shape.num_layers);
  supply_ = std::make_unique<KvSupply>(run_);
  begin_look_ahead();
  prompt_.reset();
  const std::vector<std::uint32_t> records = records_wanted();
  for (const std::uint32_t kind : records) supply_->ask_records(record_kind(kind));
  if (records.empty() && !run_.plan.selection_pending) return begin_assembly();
  stage_ = Stage::kSketches;
  return {};
}

/// Returns the kinds of records that the query's plugs read, by index.
std::vector<std::uint32_t> QueryTask::records_wanted() const {
  std::vector<std::uint32_t> kinds;
  if (run_.execution.needs_sketches || run_.recomputer->needs_sketches())
    kinds.push_back(kSketchIndex);
  if (run_.request.plan_only) return kinds;
  if (run_.head_track && run_.head_track->input() == HeadInput::kFeature)
    kinds.push_back(kHeadRecordIndex);
  if (run_.queries && run_.queries->wanted().stored) kinds.push_back(kTailRecordIndex);
  return kinds;
}

bool QueryTask::wants_draft_scores() const {
  return run_.plan.selection_pending &&
         run_.selector->wants_draft_scores(
             PlugInputs(run_.core.facts, run_.request, run_).selection());
}

void QueryTask::begin_look_ahead() {
  QueryLookAhead::Wanted wanted;
  if (wants_draft_scores()) wanted.score_window = kBoostWindow;
  // The look-ahead is no longer than the answer may be, as only that many rows have pages.
  if (!run_.request.plan_only)
    wanted.tokens = std::min<std::int32_t>(run_.compressor->lookahead_tokens(),
                                           run_.request.sampling.max_tokens);
  std::vector<std::int32_t> written = prompt_ && wanted.tokens > 0 ? prompt_->answer()
                                                                   : std::vector<std::int32_t>();
  if (!written.empty()) {
    run_.look_ahead = std::make_unique<QueryLookAhead>(std::move(written), prompt_->ms());
    wanted.tokens = 0;
  }
  // The draft reads what the target will attend to. That depends on the selection unless scores are
  // requested, which the selection waits for.
  if (run_.plan.selection_pending && wanted.score_window == 0) {
    look_ahead_tokens_ = wanted.tokens;
    return;
  }
  ask_draft(wanted);
}

void QueryTask::ask_draft(const QueryLookAhead::Wanted& wanted) {
  if (wanted.tokens == 0 && wanted.score_window == 0) return;
  auto asked = std::make_unique<QueryLookAhead>(run_.core, run_.request, run_.plan, wanted);
  if (wanted.score_window > 0) scores_ = asked.get();
  (wanted.tokens > 0 ? run_.look_ahead : own_scores_) = std::move(asked);
}

/// Runs the draft on the next piece of the prompt; after the last one, plans what stays.
Status QueryTask::step_prompt() {
  prompt_->step();
  if (!prompt_->done()) return {};
  run_.stats.prompt_ms = prompt_->ms();
  return plan();
}

/// Returns whether only the look-ahead is missing for the question's last rows.
bool QueryTask::waits_for_draft() const {
  return run_.look_ahead && recompute_done_ && assembly_->last_chunk() &&
         !run_.look_ahead->settled(Clock::now());
}

/// Returns whether only the draft's scores are missing for the selection.
bool QueryTask::waits_for_scores() const {
  return scores_ != nullptr && !scores_->scored(Clock::now());
}

/// Returns whether there is work that waits for nothing.
bool QueryTask::has_own_work() const {
  switch (stage_) {
    case Stage::kCutPrompt:
      return prompt_->ready();
    case Stage::kSketches:
      return !supply_->missing_left() && supply_->records_ready() &&
             (run_.execution.needs_query_pass || !waits_for_scores());
    case Stage::kQueryPass:
      return pass_->done() ? !waits_for_scores() : pass_->ready();
    case Stage::kAssemble:
      return can_assemble();
    case Stage::kPrepare:
      return true;
    case Stage::kDecode:
    case Stage::kAttribute:
    case Stage::kDone:
      break;
  }
  return false;
}

QueryTask::State QueryTask::state() {
  if (stage_ == Stage::kDone) return State::kDone;
  if (suspended_) return State::kPreempted;
  if (stage_ == Stage::kDecode) return State::kDecoding;
  if (stage_ == Stage::kAttribute) return State::kRunnable;
  if (stage_ == Stage::kCutPrompt) return has_own_work() ? State::kRunnable : State::kWaiting;
  supply_->poll();
  return has_own_work() || supply_->missing_left() ? State::kRunnable : State::kWaiting;
}

void QueryTask::step() {
  if (stage_ == Stage::kAttribute) return step_attribution();
  if (supply_) supply_->poll();
  const Status status = stage_ == Stage::kCutPrompt ? step_prompt()
                        : has_own_work()            ? step_stage()
                                                    : supply_->step_missing();
  if (!status.ok()) finish(status, FinishReason::kError);
}

/// This runs after planning, as a query that waits for its turn holds no pages.
Status QueryTask::take_shared_front() {
  shared_front_.emplace(run_);
  if (stage_ != Stage::kAssemble && stage_ != Stage::kQueryPass) return {};
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t taken, shared_front_->take());
  if (taken == 0) return {};
  if (pass_)
    pass_->skip(taken);
  else
    assembly_->skip(taken);
  return {};
}

Status QueryTask::step_stage() {
  if (!shared_front_ && stage_ != Stage::kSketches) QUIRE_RETURN_IF_ERROR(take_shared_front());
  switch (stage_) {
    case Stage::kSketches:
      return begin_selecting();
    case Stage::kQueryPass: {
      if (!pass_->done()) QUIRE_RETURN_IF_ERROR(pass_->step());
      return pass_->done() && !waits_for_scores() ? select() : Status();
    }
    case Stage::kAssemble:
      return step_assembly();
    case Stage::kPrepare:
      return step_prepare();
    case Stage::kCutPrompt:
    case Stage::kDecode:
    case Stage::kAttribute:
    case Stage::kDone:
      break;
  }
  return {};
}

Status QueryTask::begin_selecting() {
  if (!run_.plan.selection_pending) return begin_assembly();
  if (!run_.execution.needs_query_pass) return select();
  supply_->ask_blocks(run_.execution.selection);
  pass_ = std::make_unique<QueryPass>(run_, *supply_);
  stage_ = Stage::kQueryPass;
  return {};
}

Status QueryTask::select() {
  const auto started = Clock::now();
  const PlugInputs inputs(run_.core.facts, run_.request, run_);
  const SketchLookup sketch = [this](std::int32_t context) {
    return supply_->record<SketchView>(context);
  };
  SelectionInput input = inputs.selection();
  input.rope = &run_.core.model->rope();
  input.sketch = sketch;
  input.query_pass = pass_ ? &pass_->result() : nullptr;
  std::vector<std::optional<ContextKey>> keys;
  for (const QueryContext& c : run_.request.contexts) keys.push_back(c.key);
  std::optional<ResidentScorer> scorer;
  if (run_.core.means != nullptr) input.scorer = &scorer.emplace(*run_.core.means, keys);
  std::vector<std::span<const float>> scores;
  if (scores_ != nullptr) scores = scores_->scores();
  input.draft_scores = scores;
  QUIRE_ASSIGN_OR_RETURN(Selection selection, run_.selector->select(input));
  if (scores_ != nullptr && !scores_->score_reason().empty()) {
    selection.note += (selection.note.empty() ? "blocks are chosen without boost: "
                                              : "; blocks are chosen without boost: ") +
                      scores_->score_reason();
  }
  QUIRE_RETURN_IF_ERROR(complete_plan(run_.core.facts, run_.request, run_.core.meter->speeds(),
                                      std::move(selection), sketch, run_));
  const auto now = Clock::now();
  run_.stats.select_ms = ms_between(started, now);
  run_.add_span("select", started, now);
  return begin_assembly();
}

Status QueryTask::begin_assembly() {
  if (run_.request.plan_only) {
    sink_->on_plan(run_.plan);
    finish({}, FinishReason::kStop);
    return {};
  }
  supply_->ask_blocks(run_.execution.selection);
  ask_draft({.tokens = std::exchange(look_ahead_tokens_, 0)});
  if (run_.recomputer->has_pass()) {
    const PlugInputs inputs(run_.core.facts, run_.request, run_);
    RecomputeInput input = inputs.recompute();
    input.selection = &run_.execution.selection;
    input.sketch = [this](std::int32_t context) { return supply_->record<SketchView>(context); };
    if (const auto more = run_.recomputer->blocks_to_load(input)) supply_->ask_blocks(*more);
  }
  QUIRE_RETURN_IF_ERROR(begin_compress(run_));
  assembly_ = std::make_unique<Assembly>(run_, *supply_, /*prefix_done=*/pass_ != nullptr);
  pass_.reset();
  stage_ = Stage::kAssemble;
  sink_->on_plan(run_.plan);
  return {};
}

/// This runs before any row, as it limits how much of the prompt may be shared.
void QueryTask::wanted_queries() {
  const Plan& plan = run_.plan;
  const auto* watcher = capability<PromptWatcher>(*run_.retriever);
  const WantedQueries wanted = watcher != nullptr ? watcher->queries_wanted(plan.prompt_tokens)
                                                  : WantedQueries{};
  if (wanted.count == 0) return;
  const EngineFacts& facts = run_.core.facts;
  run_.queries = std::make_unique<PromptQueries>(
      run_.core.model->rope(),
      PromptQueries::Shape{facts.shape.num_layers, facts.num_heads, facts.shape.head_dim}, wanted,
      plan.prompt_tokens);
}

bool QueryTask::can_assemble() const {
  if (assembly_->can_place()) return true;
  if (!recomputes_next()) return assembly_->ready() && !waits_for_draft();
  if (!recompute_) return true;
  return recompute_->done() ? assembly_->placed().all_placed() : recompute_->ready();
}

Status QueryTask::step_assembly() {
  if (assembly_->can_place()) return assembly_->place();
  if (recomputes_next()) {
    if (run_.recomputer->has_pass()) {
      if (!recompute_)
        recompute_ = std::make_unique<RecomputeStage>(run_, *supply_, assembly_->placed());
      if (!recompute_->done()) QUIRE_RETURN_IF_ERROR(recompute_->step());
      // Layers above the highest layer of the pass may still be loading.
      if (!recompute_->done() || !assembly_->placed().all_placed()) return {};
      recompute_.reset();
      for (std::int32_t i = 0; i < run_.num_contexts(); ++i) supply_->release(i);
    }
    recompute_done_ = true;
    return {};
  }
  QUIRE_RETURN_IF_ERROR(assembly_->step());
  return assembly_->done() ? prepare_retriever() : Status();
}

Status QueryTask::prepare_retriever() {
  const EngineFacts& facts = run_.core.facts;
  run_.add_span("prefill", assembly_->compute_started(), Clock::now());
  if (shared_front_) shared_front_->keep();
  std::vector<ContextRows> contexts;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    if (run_.work(i).source != ContextSource::kNothing)
      contexts.push_back({run_.planned(i).offset, run_.planned(i).num_tokens});
  }
  QUIRE_ASSIGN_OR_RETURN(const RetainedRows retained, compress(run_));
  if (run_.queries && run_.queries->wanted().stored)
    QUIRE_RETURN_IF_ERROR(add_stored_queries(run_, *supply_));
  SequenceContext sequence;
  sequence.cache = &*run_.cache;
  sequence.device = run_.core.device;
  sequence.device_requests = run_.core.device_requests;
  sequence.transfers = run_.core.transfers;
  if (Compute& compute = run_.core.model->compute(); compute.hooks() != nullptr)
    sequence.compute = &compute;
  sequence.num_layers = facts.shape.num_layers;
  sequence.num_heads = facts.num_heads;
  sequence.num_kv_heads = facts.shape.num_kv_heads;
  sequence.head_dim = facts.shape.head_dim;
  sequence.head = run_.core.head;
  if (sequence.head == nullptr && facts.draft_window > 0)
    sequence.draft = &run_.core.draft->reader();
  const Plan& plan = run_.plan;
  AssembledPrompt prompt;
  prompt.retained = &retained;
  prompt.contexts = contexts;
  prompt.queries = run_.queries.get();
  prompt.head_track = run_.head_track.get();
  prompt.num_tokens = plan.prefix_tokens + plan.document_tokens + plan.suffix_tokens;
  QUIRE_RETURN_IF_ERROR(run_.retriever->prepare(sequence, prompt));
  run_.head_track.reset();
  run_.queries.reset();
  stage_ = Stage::kPrepare;
  return retriever_prepared() ? begin_decode() : Status();
}

bool QueryTask::retriever_prepared() const {
  const auto* pieces = capability<PreparesInPieces>(*run_.retriever);
  return pieces == nullptr || pieces->prepared();
}

Status QueryTask::step_prepare() {
  QUIRE_RETURN_IF_ERROR(capability<PreparesInPieces>(*run_.retriever)->prepare_more());
  return retriever_prepared() ? begin_decode() : Status();
}

Status QueryTask::begin_decode() {
  answer_ = std::make_unique<Answer>(run_, *sink_, assembly_->next_position());
  stage_ = Stage::kDecode;
  decode_started_ = Clock::now();
  run_.stats.ttft_ms = ms_between(run_.received, decode_started_);
  end_answer(answer_->advance(assembly_->logits()));
  return {};
}

void QueryTask::decoded(const DecodeRow& row) {
  // The row is in the cache now.
  if (shared_front_ && row.status.ok()) shared_front_->add_answered(row.token_id);
  end_answer(answer_->decoded(row));
}

void QueryTask::end_answer(const std::optional<Answer::End>& end) {
  if (!end) return;
  const auto now = Clock::now();
  run_.stats.decode_ms = ms_between(decode_started_, now);
  run_.add_span("decode", decode_started_, now);
  if (!end->status.ok() || !begin_attribution(end->reason)) finish(end->status, end->reason);
}

bool QueryTask::begin_attribution(FinishReason reason) {
  if (!run_.request.attribute || rows_dropped() ||
      !AttributionPass::possible(run_, answer_->tokens()))
    return false;
  attribution_ = std::make_unique<AttributionPass>(run_, answer_->tokens(),
                                                   assembly_->next_position());
  answer_end_ = reason;
  stage_ = Stage::kAttribute;
  return true;
}

void QueryTask::step_attribution() {
  if (Clock::now() >= run_.request.deadline) return finish({}, answer_end_);
  Status status;
  try {
    status = attribution_->step();
  } catch (const std::bad_alloc&) {  // the answer is complete; only its attribution is lost
    status = Status::exhausted("out of memory");
  }
  if (!status.ok()) {
    log_warning("an answer could not be attributed to its documents",
                {{"query", run_.request.id}, {"reason", status.to_string()}});
    return finish({}, answer_end_);
  }
  if (!attribution_->done()) return;
  sink_->on_attribution(attribution_->result());
  finish({}, answer_end_);
}

void QueryTask::finish(const Status& status, FinishReason reason) {
  if (stage_ == Stage::kDone) return;
  const bool interrupted = stage_ == Stage::kDecode && run_.stats.decode_ms == 0;
  stage_ = Stage::kDone;
  const auto now = Clock::now();
  QueryStats& stats = run_.stats;
  if (interrupted) {
    stats.decode_ms = ms_between(decode_started_, now);
    run_.add_span("decode", decode_started_, now);
  }
  stats.total_ms = ms_between(run_.received, now);
  if (run_.cache) stats.most_cache_bytes = run_.cache->most_bytes();
  if (answer_ && !suspended_ && shared_front_ && run_.cache) shared_front_->keep();
  if (supply_) supply_->report();
  finish_plan(run_.core.facts, run_.core.meter->speeds(), run_);
  if (run_.look_ahead) stats.draft_ms = run_.look_ahead->draft_ms();
  scores_ = nullptr;
  own_scores_.reset();
  run_.look_ahead.reset();
  // Memory and segments are released before the sink is told, not when the last reference to the
  // task is dropped.
  prompt_.reset();
  pass_.reset();
  attribution_.reset();
  recompute_.reset();
  assembly_.reset();  // a pass between two layers still uses the cache
  supply_.reset();
  if (run_.retriever) {
    run_.retriever->synchronize();
    stats.retrieve = run_.retriever->stats();
    run_.retriever.reset();
  }
  run_.cache.reset();
  run_.execution.work.clear();
  if (running_ != nullptr) running_->fetch_sub(1);
  if (before_end_) before_end_();
  sink_->on_done(status, run_.plan, stats, reason);
  sink_.reset();
}

}  // namespace quire
