#include "engine/stages/record_stage.h"

#include <memory>
#include <optional>

#include "engine/prefill/record_kind.h"
#include "engine/stages/assemble_stage.h"
#include "engine/stages/query_pass_stage.h"
#include "engine/stages/select_stage.h"

namespace quire {

Status RecordStage::begin() {
  for (const std::uint32_t kind : kinds_) shared_.supply->ask_records(record_kind(kind));
  return {};
}

bool RecordStage::has_work() {
  return !shared_.supply->missing_left() && shared_.supply->records_ready();
}

Status RecordStage::work() {
  done_ = true;
  return {};
}

AfterStage RecordStage::next() {
  if (!shared_.run.plan.selection_pending) return after_plan(shared_);
  if (shared_.run.execution.needs_query_pass) return {std::make_unique<QueryPassStage>(shared_)};
  return {std::make_unique<SelectStage>(shared_, std::nullopt)};
}

}  // namespace quire
