/// This file attributes a complete answer to its documents.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/answer/attribution.h"
#include "engine/stages/query_stage.h"
#include "engine/stages/stage_resources.h"

namespace quire {

/// Passes the attribution to the sink. Neither a failure nor the deadline takes the answer back:
/// the query then ends without attribution.
class AttributeStage final : public QueryStage {
 public:
  /// `answer` are the emitted tokens, the first of which is at `first_position`; the query ends
  /// with `reason`.
  AttributeStage(StageResources& shared, std::vector<std::int32_t> answer,
                 std::int32_t first_position, FinishReason reason)
      : shared_(shared), pass_(shared.run, std::move(answer), first_position), reason_(reason) {}

  Status step() override;
  bool done() const override { return done_; }
  AfterStage next() override { return {nullptr, Status(), reason_}; }
  bool ends_at_deadline() const override { return false; }
  void query_ends(Clock::time_point now, bool suspended) override;

 private:
  Status run_pass();

  StageResources& shared_;
  AttributionPass pass_;
  const FinishReason reason_;
  bool done_ = false;
};

}  // namespace quire
