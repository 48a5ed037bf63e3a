/// This file runs one query from its plan to its last token, as a state machine that the engine
/// thread steps.
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

/// Runs these stages: [cut the prompt ->] plan -> [sketches -> query pass -> select] -> fetch kept
/// blocks, compute missing contexts -> assemble (prefix, placed and computed contexts in prompt
/// order) -> recompute -> question -> compress -> decode [-> attribution, if requested].
///
/// The prompt is cut only if requested. Sketches, query pass and selection are stages only if the
/// selection depends on the question. Threads: the engine thread, which must call finish() before
/// it destroys a task that is not done.
class QueryTask {
 public:
  enum class State : std::uint8_t {
    kRunnable,   ///< step() has work
    kWaiting,    ///< waits for the store
    kDecoding,   ///< its row belongs in the next decode step
    kPreempted,  ///< gave its memory back and waits for resume()
    kDone,       ///< on_done was called
  };

  QueryTask(QueryResources& core, QueryRequest request, std::shared_ptr<QuerySink> sink,
            std::shared_ptr<std::atomic<bool>> cancelled, Clock::time_point received);
  ~QueryTask();

  /// Sets a hook that is called once when the task ends, before the sink is told.
  void before_end(std::function<void()> hook) { before_end_ = std::move(hook); }
  /// Adds one to `running` and subtracts it just before on_done. `running` must outlive the task.
  void count_in(std::atomic<std::int64_t>& running);
  /// Plans and begins to fetch, unless the prompt is to be cut first; the plan is reported as soon
  /// as it is complete. It takes no pages, and failures end the task.
  void prepare();
  /// Starts the task's turn; from now on step() may take pages.
  void start();
  /// Copies its pages to ordinary memory and releases them. The answer after resume() is the one it
  /// would have given.
  void suspend();
  /// Copies the pages back. Errors: kResourceExhausted (the task stays suspended).
  Status resume();
  /// Returns the bytes held in pages, or in ordinary memory while suspended.
  std::int64_t held_bytes() const;
  /// Returns the most device memory it will use while it decodes; known once prepared.
  std::int64_t device_bytes() const;
  /// Returns the bytes of pages that the next decode step takes.
  std::int64_t next_row_bytes() const;
  /// Returns the state after polling the store's replies.
  State state();
  /// Returns whether its next step runs the draft, not the model.
  bool reads_prompt() const { return stage_ == Stage::kCutPrompt || stage_ == Stage::kPrepare; }
  /// Computes one chunk, or places one context.
  void step();
  /// decode_row() returns the row of the next decode step; decoded() takes its result.
  DecodeRow decode_row() { return answer_->row(); }
  void decoded(const DecodeRow& row);

  /// Returns why the task should end now (cancelled or past its deadline), if it should.
  std::optional<Status> verdict(Clock::time_point now) const;
  /// Ends the task and calls on_done; does nothing if it is done.
  void finish(const Status& status, FinishReason reason);

  /// Returns the most bytes of working cache that the request can need at once, with an answer of
  /// at most `answer_tokens` tokens.
  static std::int64_t working_bytes(const QueryResources& core, const QueryRequest& request,
                                    std::int64_t answer_tokens);
  const QueryRequest& request() const { return run_.request; }
  /// Returns the requested strategy; once planned, the one in use.
  const std::string& strategy() const;
  std::int64_t completion_tokens() const { return run_.stats.completion_tokens; }
  /// Returns the tokens computed for it: those of the prompt according to the plan, and those of
  /// the answer.
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
  void ask_draft(const QueryLookAhead::Wanted& wanted);
  void wanted_queries();
  Status step_stage();
  Status begin_selecting();
  Status select();
  Status begin_assembly();
  Status step_assembly();
  Status prepare_retriever();
  bool retriever_prepared() const;
  Status step_prepare();
  Status begin_decode();
  bool begin_attribution(FinishReason reason);
  void step_attribution();
  void end_answer(const std::optional<Answer::End>& end);
  bool rows_dropped() const { return run_.plan.compression && run_.plan.compression->dropped; }
  Status take_shared_front();
  bool has_own_work() const;
  bool may_use_device() const;
  std::int64_t most_rows() const;
  std::int64_t choosing_bytes() const;
  Status check_choosing() const;
  bool waits_for_draft() const;
  /// Returns whether the rows before the question are still to be recomputed, if the strategy
  /// recomputes.
  bool recomputes_next() const { return assembly_->before_question() && !recompute_done_; }
  bool can_assemble() const;
  std::vector<std::uint32_t> records_wanted() const;
  bool wants_draft_scores() const;
  bool waits_for_scores() const;

  QueryRun run_;
  std::shared_ptr<QuerySink> sink_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  std::function<void()> before_end_;
  std::atomic<std::int64_t>* running_ = nullptr;
  Stage stage_ = Stage::kAssemble;
  std::unique_ptr<PromptStage> prompt_;
  /// Look-ahead tokens that are requested from the draft once the selection is complete.
  std::int32_t look_ahead_tokens_ = 0;
  /// Source of the draft's scores; null: the selector wants none.
  QueryLookAhead* scores_ = nullptr;
  /// Owns the source of scores if the look-ahead was written before the plan.
  std::unique_ptr<QueryLookAhead> own_scores_;
  std::unique_ptr<KvSupply> supply_;
  std::unique_ptr<QueryPass> pass_;
  std::unique_ptr<Assembly> assembly_;
  std::unique_ptr<RecomputeStage> recompute_;
  bool recompute_done_ = false, suspended_ = false;
  std::optional<SharedFront> shared_front_;  ///< set once pages may be taken
  std::unique_ptr<Answer> answer_;
  Clock::time_point decode_started_;
  std::unique_ptr<AttributionPass> attribution_;
  FinishReason answer_end_ = FinishReason::kStop;  ///< finish reason while the answer is attributed
};

}  // namespace quire
