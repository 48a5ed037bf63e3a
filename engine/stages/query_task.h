/// This file runs one query from its plan to its last token, as a sequence of stages that the
/// engine thread steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "engine/answer/decode_batch.h"
#include "engine/api/query_sink.h"
#include "engine/api/requests.h"
#include "engine/query/query_resources.h"
#include "engine/query/query_run.h"
#include "engine/stages/query_stage.h"
#include "engine/stages/stage_resources.h"

namespace quire {

/// Runs these stages, each a class of this folder: [RecallStage ->] [PromptStage ->] PlanStage
/// [-> RecordStage] [-> QueryPassStage] [-> SelectStage] -> AssembleStage [-> RecomputeStage] ->
/// QuestionStage -> CompressStage -> DecodeStage [-> AttributeStage].
///
/// A stage names its successor; those in brackets run only if the request or its plugs want them.
/// Threads: the engine thread, which must call finish() before it destroys a task that is not done.
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
  /// would have given. Errors: those of WorkingCache::move_out(); the task goes on as it was.
  Status suspend();
  /// Copies the pages back. Errors: those of WorkingCache::move_in(); the task stays suspended.
  Status resume();
  /// Returns the bytes held in pages, or in ordinary memory while suspended.
  std::int64_t held_bytes() const;
  /// Returns the most device memory it will use while it decodes; known once prepared.
  std::int64_t device_bytes() const;
  /// Returns the bytes of pages that the next `rows` decode steps take.
  std::int64_t next_row_bytes(std::int64_t rows = 1) const;
  /// Returns the state after polling the store's replies. An exception there ends the task.
  State state() noexcept;
  /// Returns whether step() runs the model, so that its time tells how fast the model is.
  bool runs_model() const { return stage_->runs_model(); }
  /// Computes one chunk, or places one context; for a runnable task only.
  void step();
  /// decode_row() returns the row of the next decode step, behind which at most `ahead` may follow
  /// before the host reads anything; decoded() takes the results. Both are for a decoding task
  /// only.
  DecodeRow decode_row(std::size_t ahead = 0);
  void decoded(const DecodeRow& row);

  /// Returns why the task should end now (cancelled or past its deadline), if it should.
  std::optional<Status> verdict(Clock::time_point now) const;
  /// Ends the task and calls on_done once, whatever fails on the way: an exception, also one of the
  /// hook or the sink, is logged. Does nothing if the task is done.
  void finish(const Status& status, FinishReason reason) noexcept;

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
  void proceed(Status status);
  bool may_use_device() const;

  QueryRun run_;
  std::shared_ptr<QuerySink> sink_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  std::function<void()> before_end_;
  std::atomic<std::int64_t>* running_ = nullptr;
  StageResources shared_;
  std::unique_ptr<QueryStage> stage_;  ///< null before prepare() and once done
  bool suspended_ = false, done_ = false;
};

}  // namespace quire
