#include "engine/stages/question_stage.h"

#include "engine/stages/compress_stage.h"

namespace quire {

/// Returns whether only the look-ahead is missing for the question's last rows.
bool QuestionStage::waits_for_draft() const {
  const auto& look_ahead = shared_.run.look_ahead;
  return look_ahead && assembly_->last_chunk() && !look_ahead->settled(Clock::now());
}

bool QuestionStage::has_work() {
  return assembly_->can_place() || (assembly_->ready() && !waits_for_draft());
}

Status QuestionStage::work() {
  return assembly_->can_place() ? assembly_->place() : assembly_->step();
}

AfterStage QuestionStage::next() {
  return {std::make_unique<CompressStage>(shared_, std::move(assembly_))};
}

}  // namespace quire
