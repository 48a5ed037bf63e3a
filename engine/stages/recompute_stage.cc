#include "engine/stages/recompute_stage.h"

#include <utility>

#include "base/index.h"
#include "engine/plan/plug_inputs.h"
#include "engine/stages/question_stage.h"

namespace quire {

RecomputeStage::RecomputeStage(StageResources& shared, std::unique_ptr<Assembly> assembly)
    : SuppliedStage(shared),
      run_(shared.run),
      supply_(*shared.supply),
      assembly_(std::move(assembly)) {}

bool RecomputeStage::has_work() {
  if (assembly_->can_place()) return true;
  if (recomputed()) return assembly_->placed().all_placed();
  return !pass_ || outdated() || pass_->ready();
}

Status RecomputeStage::work() {
  if (assembly_->can_place()) return assembly_->place();
  return recomputed() ? assembly_->bring_all() : run_chunk();
}

AfterStage RecomputeStage::next() {
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) supply_.release(i);
  return {std::make_unique<QuestionStage>(shared_, std::move(assembly_))};
}

Status RecomputeStage::prepare() {
  const PlugInputs inputs(run_.core.facts, run_.request, run_);
  RecomputeInput input = inputs.recompute();
  input.selection = &run_.execution.selection;
  input.stored = &supply_;
  input.cache = &*run_.cache;
  input.rope = &run_.core.model->rope();
  input.sketch = [this](std::int32_t context) { return supply_.record<SketchView>(context); };
  QUIRE_ASSIGN_OR_RETURN(pass_, run_.recomputer->prepare(input));
  num_rows_.clear();
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer)
    num_rows_.push_back(run_.cache->num_rows(layer));
  generations_ = generations();
  prepared_ = true;
  if (!pass_) return {};
  pass_->observe(run_.queries.get());
  pass_->wait_on(&assembly_->placed());
  return {};
}

std::int32_t RecomputeStage::generations() const {
  std::int32_t sum = 0;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) sum += supply_.generation(i);
  return sum;
}

void RecomputeStage::give_up() {
  pass_.reset();
  prepared_ = pass_done_ = false;
  for (std::int32_t layer = 0; layer < run_.cache->num_layers(); ++layer)
    run_.cache->truncate(layer, num_rows_[at(layer)]);
}

Status RecomputeStage::run_chunk() {
  if (started_ == Clock::time_point{}) started_ = Clock::now();
  if (outdated()) give_up();
  // A device copies the first layer while the pass is prepared.
  if (!prepared_ && assembly_->placed().placed(0))
    QUIRE_RETURN_IF_ERROR(assembly_->placed().bring(0));
  if (!prepared_) QUIRE_RETURN_IF_ERROR(prepare());
  if (pass_) {
    if (!pass_->ready()) return {};
    QUIRE_RETURN_IF_ERROR(run_pass());
    if (!pass_ || !pass_->done()) return {};
    report();
  }
  pass_.reset();
  pass_done_ = true;
  run_.add_span("recompute", started_, Clock::now());
  return {};
}

Status RecomputeStage::run_pass() {
  const auto started = Clock::now();
  const bool all = assembly_->placed().all_placed();
  if (!pass_->brings_layers()) QUIRE_RETURN_IF_ERROR(assembly_->bring_all());
  const Status status = pass_->step(*run_.core.model, *run_.cache,
                                    all ? run_.core.workspace : own_workspace_,
                                    run_.core.chunk_tokens);
  const double ms = ms_between(started, Clock::now());
  run_.stats.recompute_ms += ms;
  if (!all) run_.stats.overlapped_ms += ms;
  if (status.code() != Code::kCorruption) return status;
  const std::int32_t wrong = pass_->report().wrong_context;
  pass_.reset();
  return supply_.distrust(wrong);
}

void RecomputeStage::report() {
  const RecomputeReport& report = pass_->report();
  for (std::int32_t i = 0;
       i < run_.num_contexts() && i < static_cast<std::int32_t>(report.tokens.size()); ++i) {
    PlannedContext& c = run_.planned(i);
    for (PlannedBlock& b : c.blocks) b.recomputed_tokens = 0;
    for (const std::int32_t token : report.tokens[at(i)]) {
      ++c.blocks[at(token / c.block_tokens)].recomputed_tokens;
    }
  }
}

}  // namespace quire
