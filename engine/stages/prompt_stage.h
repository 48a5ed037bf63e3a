/// This file compresses a query's prompt before anything of it is planned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/api/plan.h"
#include "engine/api/requests.h"
#include "engine/prompt/prompt_compressor.h"
#include "engine/prompt/retokenization.h"
#include "engine/query/prompt_reading.h"
#include "engine/query/query_resources.h"
#include "engine/query/query_run.h"
#include "engine/stages/query_stage.h"
#include "engine/stages/stage_resources.h"

namespace quire {

/// Returns whether the draft will read and cut the query's uncached text; else its plan can be
/// built at once. If so, the request is checked as far as possible before the cut. Errors: those of
/// validate_uncut().
Result<bool> cuts_prompt(const QueryResources& core, const QueryRequest& request);

/// What the plan of a cut prompt needs to know of the cut.
struct FinishedCut {
  PromptCut cut;
  std::vector<std::optional<CutText>> contexts;  ///< in the request's order; none: it is whole
  /// The draft's answer to the prompt in the target's vocabulary, as many tokens as the query's
  /// compressor requested.
  std::vector<std::int32_t> answer;
};

/// Removes tokens from run.request: from the system part, contexts without a key, and the question.
/// The rest is an ordinary prompt, numbered without gaps; cached documents stay whole, but the
/// draft reads them too. If the draft cannot read, the request is unchanged and the cut says why.
/// Threads: the engine thread.
class PromptStage final : public QueryStage {
 public:
  /// Prepares the cut; the request's options must be valid.
  explicit PromptStage(StageResources& shared);
  ~PromptStage() override;

  bool done() const override { return done_; }
  /// Returns whether step() has work; else another query's prompt is being read.
  bool ready() override;
  /// Reads one chunk; after the last one the request holds only what stays. It never fails.
  Status step() override;
  AfterStage next() override;
  bool runs_model() const override { return false; }

 private:
  /// A range of the prompt as the draft sees it.
  struct Part {
    PromptCut::Part part = PromptCut::Part::kPrefix;
    std::int32_t context = -1;
    RowRange tokens{0, 0};
    bool cuttable = false;
  };
  void lay_out();
  void add_part(PromptCut::Part part, std::int32_t context, const std::vector<std::int32_t>& ids,
                bool cuttable);
  std::int64_t cuttable_tokens() const;
  std::vector<RowRange> stays() const;
  Digest reading_key() const;
  Status begin_reading();
  void end_reading();
  void cut_by(const ReadPrompt& read);
  void leave_whole(std::string why);
  void take_out(std::span<const std::int32_t> kept);
  std::vector<std::int32_t>& ids_of(const Part& part);
  std::vector<std::int32_t> answer() const;

  StageResources& shared_;
  QueryRun& run_;
  std::unique_ptr<PromptCompressor> compressor_;
  std::vector<std::int32_t> prompt_;  ///< each context once
  std::vector<Part> parts_;
  std::vector<std::size_t> first_equal_;          ///< per context, the index of the first equal one
  std::optional<Retokenization> retokenization_;  ///< set if the draft has another vocabulary
  std::unique_ptr<PromptReading> reading_;
  PromptCut cut_;
  std::vector<std::optional<CutText>> contexts_;
  std::int32_t answer_tokens_ = 0;
  std::vector<std::int32_t> answer_;
  Clock::time_point started_;
  bool done_ = false;
};

}  // namespace quire
