/// This file shares one engine thread between queries and ingest, token by token and chunk by
/// chunk.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/answer/decode_batch.h"
#include "engine/api/engine_load.h"
#include "engine/api/query_sink.h"
#include "engine/api/request_info.h"
#include "engine/api/requests.h"
#include "engine/query/query_resources.h"
#include "engine/schedule/admission_pace.h"
#include "engine/schedule/chunk_sizer.h"
#include "engine/schedule/embed_queue.h"
#include "engine/schedule/fair_queue.h"
#include "engine/schedule/prefill_queue.h"
#include "engine/schedule/request_board.h"
#include "engine/stages/query_task.h"

namespace quire {

struct SchedulerLimits {
  std::int32_t max_queue = 256;  ///< waiting queries
  /// Queries with a working cache; also the most rows of one decode step.
  std::int32_t max_running = 16;
  std::int32_t max_prefills = 4096;  ///< contexts waiting for ingest
  std::int32_t max_embeds = 1024;    ///< texts waiting to be embedded
  std::int32_t num_threads = 0;      ///< kernel threads
  double unseen_decode_ms = 20;      ///< as EngineOptions::unseen_decode_ms
  bool mixed_steps = true;           ///< as EngineOptions::mixed_steps
};

/// Schedules all work of the engine thread. One turn is a decode step of all decoding queries, then
/// one prefill chunk (or placement) of the next query, then possibly one piece of ingest or of an
/// embedding, alternately. That piece runs if no query had work, or if ingest has waited nine times
/// the length of its last piece. While queries decode, chunks and pieces are kept about as short as
/// a decode step, so that decoding keeps at least half its speed. The step's rows run beside those
/// of the chunk where they can (DecodeBatch), and on a device also beside those of a piece of
/// ingest: then the weights are read once for both. Queries are admitted tenant by
/// tenant, in proportion to the tokens computed for each; the next few are planned and prefetch
/// while they wait.
///
/// Memory: a query is admitted with pages for its prompt and the first tokens of its answer, and
/// gets more as it proceeds. When pages run out, cached prompt prefixes are evicted first. Then the
/// context of ingest and the text being embedded are moved to ordinary memory, then the youngest
/// query, which is resumed unchanged before a new one is admitted. The oldest query always runs.
/// What cannot be moved there or back ends with an error, so that nobody waits for it.
///
/// Each query is counted with the pages that it may come to need: those of its prompt and of the
/// answer that was asked for. Where none was, that is kUnaskedAnswerTokens of it, and as many again
/// whenever the answer has come near them. All admitted queries together are never counted with
/// more than twice the budget, so what is moved out stays within about one budget. Of these, as
/// much is left free as the oldest lacks for its longest answer. A query that may not be counted
/// with more yet is moved out and goes on once others have ended. An answer of which no length was
/// asked for ends where the whole budget does.
///
/// A query is admitted with all the device memory it may use, at most its share, so that no answer
/// fails for lack of it. Threads: any for public methods.
class Scheduler {
 public:
  /// Starts the engine thread, which owns `core` from now on; `core` must outlive the scheduler.
  Scheduler(QueryResources& core, const SchedulerLimits& limits);
  ~Scheduler();

  /// Queues a query. Errors: kInvalidArgument (it could never have enough pages),
  /// kResourceExhausted (queue full), kUnavailable (stopping).
  Result<QueryHandle> submit(QueryRequest request, std::shared_ptr<QuerySink> sink);
  /// Queues a prefill. Errors come through `done`, on the calling thread if the queue is full or
  /// the engine is stopping.
  void submit(const ContextKey& key, PrefillRequest request, PrefillTask::Done done);
  /// Queues an embedding; errors come through `done` as for a prefill.
  void submit(EmbedRequest request, EmbedTask::Done done) {
    embeds_.submit(std::move(request), std::move(done));
  }
  /// Refuses new work, drops ingest and embeddings, lets queries finish until `grace` is over, and
  /// ends the thread. It is idempotent.
  void stop(std::chrono::milliseconds grace);

  std::int64_t queries_running() const { return running_count_.load(std::memory_order_relaxed); }
  std::int64_t queries_waiting() const { return waiting_count_.load(std::memory_order_relaxed); }
  DecodeStepCounts decode_steps() const {
    return {.alone = steps_alone_.load(std::memory_order_relaxed),
            .mixed = steps_mixed_.load(std::memory_order_relaxed)};
  }
  std::vector<RequestInfo> requests() const { return board_.list(Clock::now()); }
  bool cancel(const std::string& id);
  std::chrono::milliseconds expected_wait() const { return pace_.expected_wait(queries_waiting()); }

 private:
  /// Most queries that may plan and prefetch while they wait.
  static constexpr std::size_t kMaxPrepared = 4;
  struct NewQuery {
    QueryRequest request;
    std::shared_ptr<QuerySink> sink;
    std::shared_ptr<RequestRecord> record;
    Clock::time_point received;
    std::int64_t most_bytes = 0;
  };
  struct NewPrefill {
    ContextKey key;
    PrefillRequest request;
    PrefillTask::Done done;
  };
  struct Running {
    std::unique_ptr<QueryTask> task;
    std::shared_ptr<RequestRecord> record;
    std::int64_t bytes = 0;         ///< reserved in pages now; 0 while preempted
    std::int64_t prompt_bytes = 0;  ///< reserved until the answer begins
    /// Pages of its prompt and `counted_tokens` of its answer, also while it is preempted.
    std::int64_t counted_bytes = 0;
    std::int64_t counted_tokens = 0;
    std::int64_t most_bytes = 0;  ///< pages of its prompt and its longest answer
    std::int64_t read_bytes = 0;  ///< most bytes of stored KV that it reads
    /// Reserved device memory, from admission to the end; a preempted query keeps it.
    std::int64_t device_bytes = 0;
    std::int64_t charged_tokens = 0;
    bool decoding = false;
    bool background = false;  ///< as of the request
  };

  void run();
  void take_commands();
  void drop_dead(Clock::time_point now);
  void admit();
  void prepare_waiting();
  bool resume_preempted();
  void preempt(Running& running);
  bool preempt_younger_than(const Running& running);
  std::int64_t shorten_answer(QueryRequest& request) const;
  bool may_count(const Running& running, std::int64_t from, std::int64_t to) const;
  bool is_oldest(const Running& running) const;
  bool grow_answer(Running& running);
  void reserve_for_decode();
  std::size_t steps_ahead() const;
  bool reserve_ahead(std::size_t steps);
  void begin_decode(Running& running);
  void end_waiting(NewQuery& query, const Status& why, FinishReason reason) noexcept;
  static void end_dead(Running& running, Clock::time_point now);
  void reap_prepared();
  std::unique_ptr<QueryTask> make_task(NewQuery& query) noexcept;
  void refuse(NewQuery& query, const Status& why) noexcept;
  bool may_mix();
  std::int32_t chunk_room() const;
  bool writer_has_room() const;
  bool start_decode();
  void finish_decode();
  void end_decode(const Status& status);
  Running* next_runnable();
  bool step_query(bool others_decode);
  bool step_background(bool others_decode);
  bool step_prefill(bool others_decode);
  bool step_embed(bool others_decode);
  bool save_prompt_page();
  void reap();
  void number_waiting();
  void end_everything(const Status& why);
  std::int64_t unreserved_bytes() const;
  bool make_room(std::int64_t bytes);
  bool make_room_for_query(std::int64_t bytes);
  /// Returns whether a query holds pages, which it will release.
  bool pages_come_free() const { return reserved_bytes_ > 0; }
  bool suspend_background();
  Clock::time_point next_look(Clock::time_point now) const;
  void fail_prefill(const Status& why);
  /// Runs `fn`; a task that runs out of memory or fails ends alone.
  template <class Fn>
  static void guarded(QueryTask& task, const Fn& fn) noexcept {
    try {
      fn();
    } catch (...) {
      task.finish(exception_status("a query"), FinishReason::kError);
    }
  }
  /// Runs a part of a turn that the next turn does anew if it runs out of memory.
  template <class Fn>
  static void attempt(const Fn& fn) noexcept {
    try {
      fn();
    } catch (...) {
      (void)exception_status("a turn of the engine");
    }
  }
  static std::int64_t expected_work(const QueryRequest& request);

  QueryResources& core_;
  const SchedulerLimits limits_;
  DecodeBatch batch_;
  RequestBoard board_;
  AdmissionPace pace_;
  EmbedQueue embeds_;

  std::mutex mu_;
  std::vector<NewQuery> new_queries_;     // guarded by mu_
  std::vector<NewPrefill> new_prefills_;  // guarded by mu_
  bool stopping_ = false;                 // guarded by mu_
  Clock::time_point stop_at_;             // guarded by mu_
  std::atomic<std::int64_t> running_count_{0}, waiting_count_{0}, prefill_count_{0};
  std::atomic<std::int64_t> steps_alone_{0}, steps_mixed_{0};

  // Engine thread only:
  FairQueue<NewQuery> waiting_;
  std::vector<Running> prepared_;  ///< planned queries next in turn, without pages yet
  std::vector<Running> running_;   ///< oldest first. Neither grows beyond what it is made with
  std::size_t turn_ = 0;
  std::int64_t reserved_bytes_ = 0;
  std::int64_t counted_bytes_ = 0;  ///< bytes that all running queries are counted with
  std::int64_t device_bytes_ = 0;   ///< device memory reserved by all running queries
  PrefillQueue prefills_;
  std::int64_t prefill_bytes_ = 0;  ///< pages reserved by the current prefill
  /// Initial QueryResources::chunk_tokens, which is lowered while queries decode.
  const std::int32_t largest_chunk_;
  /// mixed_chunks_: of chunks that a decode step runs beside.
  ChunkSizer query_chunks_, mixed_chunks_, embed_chunks_;
  double decode_step_ms_ = 0;  ///< moving average of steps alone
  /// The decode step of this turn and whose rows they are; empty: none has begun.
  std::vector<DecodeRow> rows_;
  std::vector<Running*> decoding_;
  double started_ms_ = 0;   ///< time that its start took
  int mixed_in_a_row_ = 0;  ///< steps since the last one alone
  bool embed_turn_ = false;
  double query_ms_since_prefill_ = 0, last_prefill_ms_ = 0;
  std::thread thread_;
};

}  // namespace quire
