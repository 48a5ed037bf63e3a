/// Shares one engine thread between queries and ingest, token by token and chunk by chunk.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/answer/decode_batch.h"
#include "engine/api/query_sink.h"
#include "engine/api/request_info.h"
#include "engine/api/requests.h"
#include "engine/query/query_resources.h"
#include "engine/schedule/admission_pace.h"
#include "engine/schedule/chunk_sizer.h"
#include "engine/schedule/embed_lane.h"
#include "engine/schedule/fair_queue.h"
#include "engine/schedule/prefill_lane.h"
#include "engine/schedule/request_board.h"
#include "engine/stages/query_task.h"

namespace quire {

struct SchedulerLimits {
  std::int32_t max_queue = 256;      ///< queries waiting for their turn
  std::int32_t max_running = 16;     ///< queries with a working cache; decode rows of one step
  std::int32_t max_prefills = 4096;  ///< contexts waiting for ingest
  std::int32_t max_embeds = 1024;    ///< texts waiting to be embedded
  std::int32_t num_threads = 0;      ///< kernel threads
};

/// One turn of the engine thread: a decode step of all decoding queries, then one prefill chunk (or
/// placement) of the next query in turn, then, if no query had work or ingest waited through nine
/// times the length of its last piece, one piece of ingest or of an embedding, in turn. While
/// queries decode, chunks and pieces are kept about as short as a decode step, so that decoding
/// goes on at half its pace or better. Queries are admitted tenant by tenant, in proportion to the
/// tokens computed for each; the next few are planned and fetch what they need while they wait.
///
/// Memory: a query is admitted with pages for its prompt and the first tokens of its answer, and
/// gets more as it goes on. When there are no more, pages kept of earlier prompts go first, then
/// the context that ingest computes and the text that is being embedded are moved out to ordinary
/// memory, then the youngest query. It is resumed before anybody new is admitted, with every bit as
/// it was. The oldest query always runs. All admitted queries together could never need more than
/// twice the budget, so what is moved out stays within about one. Of the device a query is admitted
/// with all it may take, its part at most, so that no answer ends for want of it. Threads: public
/// methods from any.
class Scheduler {
 public:
  /// `core` must outlive it and belongs to the engine thread from now on.
  Scheduler(QueryResources& core, const SchedulerLimits& limits);
  ~Scheduler();

  /// Errors: kInvalidArgument (could never have enough pages), kResourceExhausted (queue full),
  /// kUnavailable (stopping).
  Result<QueryHandle> submit(QueryRequest request, std::shared_ptr<QuerySink> sink);
  /// Errors come through `done`, on the calling thread if the queue is full or the engine is
  /// stopping.
  void submit(const ContextKey& key, PrefillRequest request, PrefillTask::Done done);
  /// The same.
  void submit(EmbedRequest request, EmbedTask::Done done) {
    embeds_.submit(std::move(request), std::move(done));
  }
  /// Refuses new work, drops ingest and embeddings, lets queries finish until `grace` is over, ends
  /// the thread. Idempotent.
  void stop(std::chrono::milliseconds grace);

  std::int64_t queries_running() const { return running_count_.load(std::memory_order_relaxed); }
  std::int64_t queries_waiting() const { return waiting_count_.load(std::memory_order_relaxed); }
  std::vector<RequestInfo> requests() const { return board_.list(Clock::now()); }
  bool cancel(const std::string& id);
  std::chrono::milliseconds expected_wait() const { return pace_.expected_wait(queries_waiting()); }

 private:
  struct NewQuery {
    QueryRequest request;
    std::shared_ptr<QuerySink> sink;
    std::shared_ptr<RequestRecord> record;
    Clock::time_point received;
    std::int64_t bytes = 0;
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
    std::int64_t prompt_bytes = 0;  ///< to be reserved until the answer begins
    std::int64_t most_bytes = 0;
    std::int64_t read_bytes = 0;  ///< of stored KV, at most
    /// Of what decodes, from admission to the end: a preempted query keeps what it has there
    std::int64_t device_bytes = 0;
    std::int64_t charged_tokens = 0;
    bool decoding = false;
  };

  void run();
  void take_commands();
  void drop_dead(Clock::time_point now);
  void admit();
  void prepare_waiting();
  bool resume_preempted();
  void preempt(Running& running);
  bool preempt_younger_than(const Running& running);
  void reserve_for_decode();
  void begin_decode(Running& running);
  void end_dead(Running& running, Clock::time_point now);
  void reap_prepared();
  std::unique_ptr<QueryTask> make_task(NewQuery query);
  bool step_decode();
  bool step_query(bool others_decode);
  bool step_background(bool others_decode);
  bool step_prefill(bool others_decode);
  bool step_embed(bool others_decode);
  void reap();
  void number_waiting();
  void end_everything(const Status& why);
  bool make_room(std::int64_t bytes);
  bool make_room_for_query(std::int64_t bytes);
  bool suspend_background();
  Clock::time_point next_look(Clock::time_point now) const;
  void guarded(QueryTask& task, const std::function<void()>& fn);
  static std::int64_t expected_work(const QueryRequest& request);

  QueryResources& core_;
  const SchedulerLimits limits_;
  DecodeBatch batch_;
  RequestBoard board_;
  AdmissionPace pace_;
  EmbedLane embeds_;

  std::mutex mu_;
  std::vector<NewQuery> new_queries_;     // guarded by mu_
  std::vector<NewPrefill> new_prefills_;  // guarded by mu_
  bool stopping_ = false;                 // guarded by mu_
  Clock::time_point stop_at_;             // guarded by mu_
  std::atomic<std::int64_t> running_count_{0}, waiting_count_{0}, prefill_count_{0};

  // Engine thread only:
  FairQueue<NewQuery> waiting_;
  std::vector<Running> prepared_;  ///< next in turn, without pages yet
  std::vector<Running> running_;   ///< oldest first
  std::size_t turn_ = 0;
  std::int64_t reserved_bytes_ = 0;
  std::int64_t most_bytes_ = 0;    ///< all that runs could need
  std::int64_t device_bytes_ = 0;  ///< of the device, the same
  PrefillLane prefills_;
  std::int64_t prefill_bytes_ = 0;  ///< reserved by the prefill that is being computed
  /// Of QueryResources::chunk_tokens, which is less while others decode
  const std::int32_t largest_chunk_;
  ChunkSizer query_chunks_, embed_chunks_;
  double decode_step_ms_ = 0;  ///< moving average
  bool embed_turn_ = false;
  double query_ms_since_prefill_ = 0, last_prefill_ms_ = 0;
  std::thread thread_;
};

}  // namespace quire
