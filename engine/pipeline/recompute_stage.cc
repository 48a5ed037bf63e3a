#include "engine/pipeline/recompute_stage.h"

#include "engine/pipeline/plug_inputs.h"

namespace quire {

Status RecomputeStage::prepare() {
  const PlugInputs inputs(run_.core.facts, run_.request, run_.plan);
  RecomputeInput input = inputs.recompute();
  input.selection = &run_.plan.selection;
  input.stored = &supply_;
  input.cache = &*run_.cache;
  input.rope = &run_.core.model->rope();
  input.sketch = [this](std::int32_t context) { return supply_.sketch(context); };
  QUIRE_ASSIGN_OR_RETURN(pass_, run_.recomputer->prepare(input));
  if (pass_) pass_->observe(run_.queries.get());
  return {};
}

Status RecomputeStage::step() {
  const auto started = Clock::now();
  if (started_ == Clock::time_point{}) started_ = started;
  if (!pass_) QUIRE_RETURN_IF_ERROR(prepare());
  if (pass_) {
    const Status status = pass_->step(*run_.core.model, *run_.cache, run_.core.workspace, run_.core.chunk_tokens);
    run_.stats.recompute_ms += ms_between(started, Clock::now());
    if (status.code() == Code::kCorruption) {
      const std::int32_t wrong = pass_->report().wrong_context;
      pass_.reset();
      return supply_.distrust(wrong);
    }
    QUIRE_RETURN_IF_ERROR(status);
    if (!pass_->done()) return {};
    report();
  }
  pass_.reset();
  done_ = true;
  run_.add_span("recompute", started_, Clock::now());
  return {};
}

void RecomputeStage::report() {
  const RecomputeReport& report = pass_->report();
  for (std::int32_t i = 0; i < run_.num_contexts() && i < static_cast<std::int32_t>(report.tokens.size()); ++i) {
    PlannedContext& c = run_.planned(i);
    for (PlannedBlock& b : c.blocks) b.recomputed_tokens = 0;
    for (const std::int32_t token : report.tokens[static_cast<std::size_t>(i)]) {
      ++c.blocks[static_cast<std::size_t>(token / c.block_tokens)].recomputed_tokens;
    }
  }
}

}  // namespace quire
