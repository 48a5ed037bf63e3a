/// This file waits for KV that another replica has shared, before a query is planned.
#pragma once

#include <memory>
#include <stop_token>
#include <unordered_map>

#include "base/clock.h"
#include "base/sha256.h"
#include "engine/stages/query_stage.h"
#include "engine/stages/stage_resources.h"

namespace quire {

/// Returns the first stage of a query whose documents' KV is where it can be: PromptStage if the
/// request wants its prompt cut, else PlanStage.
std::unique_ptr<QueryStage> make_first_stage(StageResources& shared);

/// Asks the shared tiers for those stored documents of the query whose KV is not here, all at once.
/// It waits for a tenth of the time that computing what is still outstanding would take, which is
/// what a tier that gives no answer costs a query. Then it computes one context after another, and
/// stops where its KV arrives; a query that can compute nothing before it is planned waits for a
/// fifth. Threads: the engine thread.
class RecallStage final : public QueryStage {
 public:
  explicit RecallStage(StageResources& shared);
  ~RecallStage() override;

  Status begin() override;
  bool ready() override;
  Status step() override;
  bool done() const override;
  AfterStage next() override;
  bool runs_model() const override { return false; }

 private:
  struct Replies;
  bool waited(double part) const;
  void begin_early();
  void drop_arrived();
  Status compute();
  void end_reads();

  StageResources& shared_;
  std::shared_ptr<Replies> replies_;  ///< outlives the stage, as the store may reply after it
  std::unordered_map<ContextKey, std::stop_source, DigestHash> asked_;
  Clock::time_point started_;
  bool gave_up_ = false;
};

}  // namespace quire
