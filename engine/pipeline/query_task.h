/// One query from its plan to its last token, as a state machine the engine thread steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "engine/pipeline/answer_text.h"
#include "engine/pipeline/context_kv.h"
#include "engine/pipeline/core.h"
#include "engine/pipeline/decode_batch.h"
#include "engine/pipeline/fetch.h"
#include "engine/pipeline/held_kv.h"
#include "engine/pipeline/plan_builder.h"

namespace quire {

/// plan -> fetch | compute missing contexts -> assemble (prefix, placed and computed contexts in prompt order) -> recompute ->
/// question -> compress -> decode. Threads: the engine thread, which must call finish() before the task is dropped if it is not done.
class QueryTask {
 public:
  enum class State : std::uint8_t {
    kRunnable,  ///< step() has work
    kWaiting,   ///< for the store
    kDecoding,  ///< wants its row in the next decode step
    kDone,      ///< on_done was called
  };

  QueryTask(EngineCore& core, QueryRequest request, std::shared_ptr<QuerySink> sink, std::shared_ptr<std::atomic<bool>> cancelled,
            Clock::time_point received);
  ~QueryTask();

  /// Adds one to `running` until just before on_done. It must outlive the task.
  void count_in(std::atomic<std::int64_t>& running);
  /// Plans, reports the plan and begins to fetch. Failures end the task.
  void start();
  /// Also takes notice of what the store answered.
  State state();
  /// One chunk of computing, or the placing of one context.
  void step();
  /// The row of the next decode step, and what came of it.
  DecodeRow decode_row();
  void decoded(const DecodeRow& row);

  /// Set when it should end now: cancelled or past its deadline.
  std::optional<Status> verdict(Clock::time_point now) const;
  /// Ends the task: calls on_done. Nothing if it is done.
  void finish(const Status& status, FinishReason reason);

  /// Most bytes of working cache the request can need at once.
  static std::int64_t working_bytes(const EngineCore& core, const QueryRequest& request);
  const QueryRequest& request() const { return request_; }

 private:
  /// A piece of the assembled prompt: tokens to compute, or a context to place.
  struct Item {
    std::int32_t context = -1;                    ///< placed; -1: computed
    std::vector<std::int32_t> ids, positions;     ///< computed
    bool question = false;                        ///< its last row's logits start the answer
    bool replaces_last_row = false;
  };

  void build_items();
  void add_question();
  void start_fetch();
  void note_faults();
  bool context_ready(std::int32_t context) const;
  bool item_ready();
  bool missing_left() const;
  Status step_missing();
  Status step_item();
  Status place(std::int32_t context);
  Status run_chunk(Item& item);
  Status step_recompute();
  Result<std::unique_ptr<RecomputePass>> prepare_recompute();
  Status distrust(std::int32_t context);
  Status begin_decode();
  void accept(std::int32_t token_id);
  void submit_write(std::int32_t context, const std::shared_ptr<const ContextKv>& kv);
  void add_span(std::string name, Clock::time_point from, Clock::time_point to);
  void collect_tiers();

  EngineCore& core_;
  QueryRequest request_;
  std::shared_ptr<QuerySink> sink_;
  std::shared_ptr<std::atomic<bool>> cancelled_;
  const Clock::time_point received_;
  std::atomic<std::int64_t>* running_ = nullptr;
  Clock::time_point prefill_started_, decode_started_, load_done_;
  QueryPlan plan_;
  QueryStats stats_;
  std::unique_ptr<Recomputer> recomputer_;
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<Retriever> retriever_;
  std::optional<WorkingCache> cache_;
  std::optional<Fetch> fetch_;
  std::vector<Item> items_;
  std::size_t next_item_ = 0;
  std::size_t item_done_ = 0;                     ///< tokens of the current item already computed
  std::vector<std::shared_ptr<const ContextKv>> alone_;  ///< [context] computed alone, until placed
  std::unique_ptr<ContextPrefill> missing_;       ///< being computed alone now
  std::int32_t missing_context_ = -1;
  std::vector<std::uint8_t> placed_;              ///< [context]
  std::unique_ptr<HeldKv> held_;                  ///< raw KV kept for a recompute pass
  std::unique_ptr<RecomputePass> recompute_;
  Clock::time_point recompute_started_;
  bool recompute_done_ = false;
  std::int32_t distrusted_ = -1;                  ///< placed context being computed alone: its stored KV was not its own
  std::vector<float> logits_;
  std::optional<Sampler> sampler_;
  std::optional<AnswerText> text_;
  std::int32_t next_token_ = 0, next_position_ = 0;
  std::int64_t loaded_bytes_[5] = {};
  double place_ms_ = 0;
  bool decoding_ = false, done_ = false;
};

}  // namespace quire
