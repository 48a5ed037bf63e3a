#include "engine/stages/select_stage.h"

#include <span>
#include <utility>
#include <vector>

#include "engine/plan/plan_builder.h"
#include "engine/plan/plug_inputs.h"
#include "engine/select/resident_means.h"
#include "engine/stages/assemble_stage.h"

namespace quire {

SelectStage::SelectStage(StageResources& shared, std::optional<QueryPassResult> question)
    : SuppliedStage(shared), question_(std::move(question)) {}

Status SelectStage::begin() { return has_work() ? work() : Status(); }

bool SelectStage::has_work() {
  const auto& scores = shared_.run.draft_scores;
  return scores == nullptr || scores->scored(Clock::now());
}

Status SelectStage::work() {
  const auto started = Clock::now();
  QueryRun& run = shared_.run;
  const PlugInputs inputs(run.core.facts, run.request, run);
  const SketchLookup sketch = [this](std::int32_t context) {
    return shared_.supply->record<SketchView>(context);
  };
  SelectionInput input = inputs.selection();
  input.rope = &run.core.model->rope();
  input.sketch = sketch;
  input.selection_keys = [this](std::int32_t context) {
    return shared_.supply->record<SelectionKeysView>(context);
  };
  input.query_pass = question_ ? &*question_ : nullptr;
  // A document may name the key of an older text or model. Sketches belong to what is read now.
  std::vector<std::optional<ContextKey>> keys;
  for (const ContextWork& work : run.execution.work)
    keys.push_back(work.key.is_zero() ? std::nullopt : std::optional(work.key));
  std::optional<ResidentScorer> scorer;
  if (run.core.means != nullptr) input.scorer = &scorer.emplace(*run.core.means, keys);
  std::vector<std::span<const float>> scores;
  if (run.draft_scores) scores = run.draft_scores->scores();
  input.draft_scores = scores;
  QUIRE_ASSIGN_OR_RETURN(Selection selection, run.selector->select(input));
  if (run.draft_scores && !run.draft_scores->score_reason().empty()) {
    selection.note += (selection.note.empty() ? "blocks are chosen without boost: "
                                              : "; blocks are chosen without boost: ") +
                      run.draft_scores->score_reason();
  }
  QUIRE_RETURN_IF_ERROR(complete_plan(run.core.facts, run.request, run.core.meter->speeds(),
                                      std::move(selection), sketch, run));
  const auto now = Clock::now();
  run.stats.select_ms = ms_between(started, now);
  run.add_span("select", started, now);
  done_ = true;
  return {};
}

AfterStage SelectStage::next() { return after_plan(shared_); }

}  // namespace quire
