/// One query from its plan to its last token, as a state machine the engine thread steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "engine/answer/answer.h"
#include "engine/answer/attribution.h"
#include "engine/answer/decode_batch.h"
#include "engine/api/query_sink.h"
#include "engine/api/requests.h"
#include "engine/query/query_resources.h"
#include "engine/query/query_run.h"
#include "engine/stages/prompt_stage.h"
#include "engine/stages/query_pass.h"
#include "engine/stages/recompute_stage.h"
#include "engine/supply/assembly.h"
#include "engine/supply/kv_supply.h"
#include "engine/supply/shared_front.h"

namespace quire {

/// [cut the prompt ->] plan -> [sketches -> query pass -> select] -> fetch what is kept, compute
/// missing contexts -> assemble (prefix, placed and computed contexts in prompt order) -> recompute
/// -> question -> compress -> decode [-> attribution, where the request wants it]. The prompt is
/// cut where that was asked for; sketches, query pass and selection come where the selection
/// depends on the question. Threads: the engine thread, which must call finish() before the task is
/// dropped if it is not done.
class QueryTask {
 public:
  enum class State : std::uint8_t {
    kRunnable,   ///< step() has work
    kWaiting,    ///< for the store
    kDecoding,   ///< wants its row in the next decode step
    kPreempted,  ///< gave its memory back; waits for resume()
    kDone,       ///< on_done was called
  };

  QueryTask(QueryResources& core, QueryRequest request, std::shared_ptr<QuerySink> sink,
            std::shared_ptr<std::atomic<bool>> cancelled, Clock::time_point received);
  ~QueryTask();

  /// Called once when the task ends, before anybody hears of it.
  void before_end(std::function<void()> hook) { before_end_ = std::move(hook); }
  /// Adds one to `running` until just before on_done. It must outlive the task.
  void count_in(std::atomic<std::int64_t>& running);
  /// Plans and begins to fetch, unless the prompt is to be cut first; reports the plan as soon as
  /// it is complete. Takes no pages. Failures end the task.
  void prepare();
  /// Its turn has come: from now on step() may take pages.
  void start();
  /// Copies what it has in pages to ordinary memory and gives the pages back. Nothing of it changes
  /// but where it lies: what the query answers after resume() is what it would have answered.
  void suspend();
  /// Errors: kResourceExhausted (it stays suspended).
  Status resume();
  /// In pages now; in ordinary memory while suspended.
  std::int64_t held_bytes() const;
  /// Most it will take of the device while it decodes; once prepared.
  std::int64_t device_bytes() const;
  /// Pages the next decode step takes.
  std::int64_t next_row_bytes() const;
  /// Also takes notice of what the store answered.
  State state();
  /// Its next step runs the draft, not the model.
  bool reads_prompt() const { return stage_ == Stage::kCutPrompt || stage_ == Stage::kPrepare; }
  /// One chunk of computing, or the placing of one context.
  void step();
  /// The row of the next decode step, and what came of it.
  DecodeRow decode_row() { return answer_->row(); }
  void decoded(const DecodeRow& row);

  /// Set when it should end now: cancelled or past its deadline.
  std::optional<Status> verdict(Clock::time_point now) const;
  /// Ends the task: calls on_done. Nothing if it is done.
  void finish(const Status& status, FinishReason reason);

  /// Most bytes of working cache the request can need at once, with an answer of at most so many
  /// tokens.
  static std::int64_t working_bytes(const QueryResources& core, const QueryRequest& request,
                                    std::int64_t answer_tokens);
  const QueryRequest& request() const { return run_.request; }
  /// Asked for; once planned: the one in use.
  const std::string& strategy() const;
  std::int64_t completion_tokens() const { return run_.stats.completion_tokens; }
  /// Tokens computed for it: of the prompt, as the plan has it, and of the answer.
  std::int64_t work_tokens() const;

 private:
  enum class Stage : std::uint8_t {
    kCutPrompt,
    kSketches,
    kQueryPass,
    kAssemble,
    kPrepare,
    kDecode,
    kAttribute,
    kDone
  };

  Status plan();
  Status make_plugs();
  Status step_prompt();
  void begin_look_ahead();
  void ask_draft(const QueryLookAhead::Wish& wish);
  void wish_for_queries();
  Status step_stage();
  Status begin_selecting();
  Status select();
  Status begin_assembly();
  Status step_assembly();
  Status prepare_retriever();
  Status step_prepare();
  Status begin_decode();
  bool begin_attribution(FinishReason reason);
  void step_attribution();
  void end_answer(const std::optional<Answer::End>& end);
  bool rows_dropped() const {
    return run_.plan.plan.compression && run_.plan.plan.compression->dropped;
  }
  Status take_shared_front();
  bool has_own_work() const;
  bool may_use_device() const;
  std::int64_t most_rows() const;
  std::int64_t choosing_bytes() const;
  Status check_choosing() const;
  bool waits_for_draft() const;
  /// The rows in front of the question are yet to be computed again, if the strategy does so.
  bool recomputes_next() const { return assembly_->before_question() && !recompute_done_; }
  bool can_assemble() const;
  bool wants_draft_scores() const;
  bool waits_for_scores() const;

  QueryRun run_;
  std::shared_ptr<QuerySink> sink_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  std::function<void()> before_end_;
  std::atomic<std::int64_t>* running_ = nullptr;
  Stage stage_ = Stage::kAssemble;
  std::unique_ptr<PromptStage> prompt_;
  /// That the draft is asked for once the selection is complete
  std::int32_t look_ahead_tokens_ = 0;
  /// Where the draft's scores come from; null: the selector wants none
  QueryLookAhead* scores_ = nullptr;
  /// The same, where the look-ahead was written before the plan
  std::unique_ptr<QueryLookAhead> own_scores_;
  std::unique_ptr<KvSupply> supply_;
  std::unique_ptr<QueryPass> pass_;
  std::unique_ptr<Assembly> assembly_;
  std::unique_ptr<RecomputeStage> recompute_;
  bool sketches_wanted_ = false, head_keys_wanted_ = false, tail_queries_wanted_ = false,
       recompute_done_ = false, suspended_ = false;
  std::optional<SharedFront> shared_front_;  ///< once pages may be taken
  std::unique_ptr<Answer> answer_;
  Clock::time_point decode_started_;
  std::unique_ptr<AttributionPass> attribution_;
  FinishReason answer_end_ = FinishReason::kStop;  ///< while the answer is attributed
};

}  // namespace quire
