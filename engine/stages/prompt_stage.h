/// Compression of a query's prompt: before anything of it is planned.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/plan/plan_builder.h"
#include "engine/prompt/prompt_compressor.h"
#include "engine/prompt/respelling.h"
#include "engine/query/prompt_reading.h"
#include "engine/query/query_resources.h"
#include "engine/query/query_run.h"

namespace quire {

/// Whether the query's uncached text will be read by the draft and cut; else its plan can be built
/// at once. Where it asks for that, the request is checked as far as it can be without knowing what
/// stays. Errors: those of validate_uncut().
Result<bool> cuts_prompt(const QueryResources& core, const QueryRequest& request);

/// Takes tokens out of run.request: of the system part, of contexts without a key, and of the
/// question. What stays is an ordinary prompt, numbered without gaps. Cached documents stay whole;
/// the draft reads them along. Whatever keeps the draft from reading leaves the request as it is,
/// and the cut says why. Threads: the engine thread.
class PromptStage {
 public:
  /// The request's options are valid.
  explicit PromptStage(QueryRun& run);
  ~PromptStage();
  PromptStage(const PromptStage&) = delete;
  PromptStage& operator=(const PromptStage&) = delete;

  bool done() const { return done_; }
  /// Whether step() has work; else another query's prompt is being read.
  bool ready() const;
  /// One chunk of reading; after the last one the request is what stays.
  void step();

  /// Once done, after the plan of what stays was built.
  void enter(QueryPlan& plan);
  /// What the draft wrote behind the prompt, in the target's vocabulary, as far as the query's
  /// compressor asked for it.
  std::vector<std::int32_t> answer() const;
  double ms() const { return ms_; }

 private:
  /// A stretch of the prompt as the draft sees it.
  struct Part {
    PromptCut::Part part = PromptCut::Part::kPrefix;
    std::int32_t context = -1;
    KvStretch tokens{0, 0};
    bool cuttable = false;
  };
  void lay_out();
  void add_part(PromptCut::Part part, std::int32_t context, const std::vector<std::int32_t>& ids,
                bool cuttable);
  std::int64_t cuttable_tokens() const;
  std::vector<KvStretch> stays() const;
  Digest reading_key() const;
  Status begin_reading();
  void end_reading();
  void cut_by(const ReadPrompt& read);
  void leave_whole(std::string why);
  void take_out(std::span<const std::int32_t> kept);
  std::vector<std::int32_t>& ids_of(const Part& part);

  QueryRun& run_;
  std::unique_ptr<PromptCompressor> compressor_;
  std::vector<std::int32_t> prompt_;  ///< no context twice
  std::vector<Part> parts_;
  std::vector<std::size_t> first_equal_;  ///< of each context
  std::optional<Respelling> respelling_;  ///< the draft has another vocabulary
  std::unique_ptr<PromptReading> reading_;
  PromptCut cut_;
  std::vector<std::optional<CutText>> contexts_;
  std::int32_t answer_tokens_ = 0;
  std::vector<std::int32_t> answer_;
  Clock::time_point started_;
  double ms_ = 0;
  bool done_ = false;
};

}  // namespace quire
