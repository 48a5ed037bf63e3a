#include "engine/stages/attribute_stage.h"

#include <new>

#include "base/log.h"

namespace quire {

Status AttributeStage::step() {
  if (Clock::now() >= shared_.run.request.deadline) {
    done_ = true;
    return {};
  }
  if (const Status status = run_pass(); !status.ok()) {
    log_warning("an answer could not be attributed to its documents",
                {{"query", shared_.run.request.id}, {"reason", status.to_string()}});
    done_ = true;
    return {};
  }
  if (!pass_.done()) return {};
  shared_.sink.on_attribution(pass_.result());
  done_ = true;
  return {};
}

Status AttributeStage::run_pass() {
  try {
    return pass_.step();
  } catch (const std::bad_alloc&) {
    return Status::exhausted("out of memory");
  }
}

void AttributeStage::query_ends(Clock::time_point /*now*/, bool suspended) {
  if (!suspended) shared_.front->keep();
}

}  // namespace quire
