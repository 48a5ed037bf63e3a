#include "engine/stages/assemble_stage.h"

#include <utility>

#include "engine/plan/plug_inputs.h"
#include "engine/stages/compress_stage.h"
#include "engine/stages/question_stage.h"
#include "engine/stages/recompute_stage.h"

namespace quire {

AfterStage after_plan(StageResources& shared) {
  if (!shared.run.request.plan_only) return {std::make_unique<AssembleStage>(shared)};
  shared.sink.on_plan(shared.run.plan);
  return {};
}

Status AssembleStage::begin() {
  QueryRun& run = shared_.run;
  KvSupply& supply = *shared_.supply;
  supply.ask_blocks(run.execution.selection);
  if (!run.look_ahead) run.ask_draft({.tokens = run.look_ahead_tokens()});
  if (run.recomputer->has_pass()) {
    const PlugInputs inputs(run.core.facts, run.request, run);
    RecomputeInput input = inputs.recompute();
    input.selection = &run.execution.selection;
    input.sketch = [&supply](std::int32_t context) { return supply.record<SketchView>(context); };
    if (const auto more = run.recomputer->blocks_to_load(input)) supply.ask_blocks(*more);
  }
  QUIRE_RETURN_IF_ERROR(begin_compress(run));
  assembly_ = std::make_unique<Assembly>(run, supply);
  shared_.sink.on_plan(run.plan);
  return {};
}

bool AssembleStage::has_work() { return assembly_->can_place() || assembly_->ready(); }

Status AssembleStage::work() {
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t taken, shared_.take_front());
  assembly_->skip(taken);
  if (assembly_->can_place()) return assembly_->place();
  return assembly_->before_question() ? Status() : assembly_->step();
}

AfterStage AssembleStage::next() {
  if (shared_.run.recomputer->has_pass())
    return {std::make_unique<RecomputeStage>(shared_, std::move(assembly_))};
  return {std::make_unique<QuestionStage>(shared_, std::move(assembly_))};
}

}  // namespace quire
