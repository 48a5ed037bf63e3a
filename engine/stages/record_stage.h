/// This file waits for the records of a query's stored contexts, before anything else of them is
/// read.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/stages/supplied_stage.h"

namespace quire {

/// Requests records as soon as it begins. It ends in the query's own turn, as what follows may take
/// pages.
class RecordStage final : public SuppliedStage {
 public:
  /// `kinds` are indices of record kinds; they may be empty if only the selection is pending.
  RecordStage(StageResources& shared, std::vector<std::uint32_t> kinds)
      : SuppliedStage(shared), kinds_(std::move(kinds)) {}

  Status begin() override;
  bool done() const override { return done_; }
  AfterStage next() override;

 private:
  bool has_work() override;
  Status work() override;

  const std::vector<std::uint32_t> kinds_;
  bool done_ = false;
};

}  // namespace quire
