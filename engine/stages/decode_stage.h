/// This file decodes a query's answer, a row of a decode step at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/answer/answer.h"
#include "engine/answer/decode_batch.h"
#include "engine/stages/query_stage.h"
#include "engine/stages/stage_resources.h"

namespace quire {

/// Emits the first token as it begins; the scheduler's decode steps bring the others.
class DecodeStage final : public QueryStage {
 public:
  /// `logits`, [vocab_size], are those of the prompt's last row. The answer's first token is at
  /// `first_position`.
  DecodeStage(StageResources& shared, std::vector<float> logits, std::int32_t first_position);

  Status begin() override;
  bool done() const override { return end_.has_value(); }
  AfterStage next() override;
  DecodeStage* decode() override { return this; }
  void query_ends(Clock::time_point now, bool suspended) override;

  /// row() returns the row of the next decode step, behind which at most `ahead` may follow;
  /// decoded() takes the results.
  DecodeRow row(std::size_t ahead) { return answer_.row(ahead); }
  void decoded(const DecodeRow& row);

 private:
  void take(std::optional<Answer::End> end);
  void drop_rows(std::size_t count);
  void enter_time(Clock::time_point now);
  bool attributes() const;

  StageResources& shared_;
  Answer answer_;
  std::vector<float> logits_;  ///< until begin()
  const std::int32_t first_position_;
  Clock::time_point started_;
  std::optional<Answer::End> end_;
};

}  // namespace quire
