#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/index.h"
#include "engine/prefill/kv_writer.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Longest time until a cancelled query or a passed deadline is noticed, even if nothing else
/// happens.
constexpr auto kLook = std::chrono::milliseconds(10);
/// Ingest gets at least one part in ten of the engine's time while queries keep it busy.
constexpr double kQueryShare = 9;
/// Most computed contexts that may wait for the writer while ingest goes on, however small they
/// are.
constexpr std::size_t kMaxUnwritten = 8;

/// Longest time that prompts not yet on disk are saved when the engine stops.
constexpr auto kSaveAtEnd = std::chrono::seconds(5);

/// Longest time, as a share of a decode step, that ingest may delay decoding queries. With the step
/// itself this stays well below twice its length.
constexpr double kIngestPiece = 0.5;
/// Longest time of a chunk of another query's prompt if decode steps are shorter; such a pause is
/// not noticeable.
constexpr double kQueryPieceMs = 10;
/// Prompt tokens of a piece of a query that nobody waits for.
constexpr std::int32_t kBackgroundPiece = 64;
/// Most decode steps that follow one before the host looks at anything.
constexpr int kMostAhead = 3;
/// Most mixed decode steps in a row, so that it stays known how long one takes alone.
constexpr int kMostMixed = 32;
/// Weight of the newest step in the moving average of their length.
constexpr double kNewestStep = 0.1;

/// Returns the rows by which a chunk must be shorter where `rows` run beside it.
std::int64_t rows_beside(std::int64_t rows) {
  return (rows + ChunkSizer::kStep - 1) / ChunkSizer::kStep * ChunkSizer::kStep;
}

/// Returns an empty vector with room for so many.
template <class T>
std::vector<T> with_room(std::size_t n) {
  std::vector<T> out;
  out.reserve(n);
  return out;
}

Status stopping_status() { return Status::unavailable("the engine is stopping"); }

}  // namespace

Scheduler::Scheduler(QueryResources& core, const SchedulerLimits& limits)
    : core_(core),
      limits_(limits),
      batch_(*core.model, limits.max_running),
      embeds_(core, to_size(limits.max_embeds)),
      prepared_(with_room<Running>(kMaxPrepared)),
      running_(with_room<Running>(to_size(limits.max_running))),
      prefills_(core),
      largest_chunk_(core.chunk_tokens),
      query_chunks_(largest_chunk_),
      mixed_chunks_(largest_chunk_),
      embed_chunks_(largest_chunk_),
      thread_([this] { run(); }) {}

Scheduler::~Scheduler() { stop(std::chrono::milliseconds(0)); }

Result<QueryHandle> Scheduler::submit(QueryRequest request, std::shared_ptr<QuerySink> sink) {
  std::int64_t bytes = QueryTask::working_bytes(core_, request, request.sampling.max_tokens);
  const std::int64_t budget = core_.pool->max_bytes();
  if (budget > 0 && bytes > budget && !request.sampling.max_tokens_asked)
    bytes = shorten_answer(request);
  if (budget > 0 && bytes > budget) {
    const bool alone = request.contexts.empty();
    return Status::invalid(
        alone ? request.question_param : request.documents_param,
        "prompt and answer need up to " + std::to_string(bytes) +
            " bytes of working cache, the whole budget is " + std::to_string(budget) + ": " +
            (alone ? "send a shorter prompt, ask" : "ask over fewer or shorter documents,") +
            " for a shorter answer, or raise model.working_cache_bytes");
  }
  std::shared_ptr<RequestRecord> record;
  {
    std::lock_guard lock(mu_);
    if (stopping_) return stopping_status();
    if (waiting_count_.load() >= limits_.max_queue) {
      return Status::exhausted("the queue is full: " + std::to_string(limits_.max_queue) +
                               " queries are waiting");
    }
    const auto now = Clock::now();
    if (new_queries_.size() == new_queries_.capacity())  // before anybody sees the query
      new_queries_.reserve(2 * new_queries_.size() + 1);
    record = board_.add(request, now);
    new_queries_.push_back({std::move(request), std::move(sink), record, now, bytes});
    waiting_count_.fetch_add(1);
  }
  core_.waker->wake();
  return QueryHandle(record->cancelled());
}

void Scheduler::submit(const ContextKey& key, PrefillRequest request, PrefillTask::Done done) {
  Status refused;
  {
    std::lock_guard lock(mu_);
    if (stopping_) {
      refused = stopping_status();
    } else if (prefill_count_.load() >= limits_.max_prefills) {
      refused = Status::exhausted("the ingest queue is full: " +
                                  std::to_string(limits_.max_prefills) + " contexts are waiting");
    } else {
      new_prefills_.push_back({key, std::move(request), done});
      prefill_count_.fetch_add(1);
    }
  }
  if (!refused.ok()) return done(std::move(refused));
  core_.waker->wake();
}

void Scheduler::stop(std::chrono::milliseconds grace) {
  {
    std::lock_guard lock(mu_);
    if (!stopping_) stop_at_ = Clock::now() + grace;
    stopping_ = true;
  }
  core_.waker->wake();
  if (thread_.joinable()) thread_.join();
}

void Scheduler::run() {
  set_num_threads(limits_.num_threads);
  if (limits_.mixed_steps) core_.workspace.beside = &batch_;
  for (;;) {
    bool stopping = false;
    Clock::time_point stop_at;
    {
      std::lock_guard lock(mu_);
      stopping = stopping_;
      stop_at = stop_at_;
    }
    // This follows the read of stopping_: nothing can arrive after a true one.
    take_commands();
    const auto now = Clock::now();
    if (stopping) {
      prefill_count_.fetch_sub(prefills_.fail_all(stopping_status()));
      prefill_bytes_ = 0;
      embeds_.close(stopping_status());
      if (now >= stop_at) end_everything(stopping_status());
      if (running_.empty() && prepared_.empty() && waiting_.empty()) break;
    }
    drop_dead(now);
    attempt([this] { admit(); });
    const bool decodes = start_decode();
    bool worked = step_query(decodes) || decodes;
    const bool ingest_due = query_ms_since_prefill_ >= kQueryShare * last_prefill_ms_;
    // On the CPU ingest is a few layers of a large chunk, which a step cannot run beside.
    if (!ingest_due || batch_.mixed() || core_.model->compute().on_host()) finish_decode();
    if (!worked || ingest_due) worked = step_background(decodes) || worked;
    finish_decode();
    reap();
    if (!worked && core_.prompts != nullptr && core_.prompts->ready()) worked = save_prompt_page();
    if (!worked)
      core_.waker->wait_until(
          std::min(next_look(now), stopping ? stop_at : Clock::time_point::max()));
  }
  core_.workspace.beside = nullptr;
  if (core_.prompts == nullptr) return;
  const auto until = Clock::now() + kSaveAtEnd;
  while (!core_.prompts->failed() && Clock::now() < until && save_prompt_page()) {
  }
}

/// Passes one page of a prompt to be written to disk. Returns false if none waits.
bool Scheduler::save_prompt_page() {
  try {
    const auto page = core_.prefixes->next_unsaved();
    if (!page) return false;
    PromptPage out{.key = page->key, .parent = page->parent, .token_ids = {}, .rows = {}};
    out.token_ids.assign(page->token_ids.begin(), page->token_ids.end());
    const std::int64_t bytes = core_.pool->format().page_bytes();
    out.rows.resize(to_size(bytes) * page->pages.size());
    if (!core_.pool->read_pages(page->pages, out.rows.data()).ok()) return false;
    core_.prompts->write(page->slot, std::move(out));
    return true;
  } catch (...) {
    (void)exception_status("the saving of a prompt");
    return false;
  }
}

void Scheduler::take_commands() {
  std::vector<NewQuery> queries;
  std::vector<NewPrefill> prefills;
  {
    std::lock_guard lock(mu_);
    queries.swap(new_queries_);
    prefills.swap(new_prefills_);
  }
  for (NewQuery& q : queries) {
    try {
      waiting_.push(q.request.tenant, std::move(q));  // which takes it last
    } catch (...) {
      waiting_count_.fetch_sub(1);
      refuse(q, exception_status("a query"));
    }
  }
  for (NewPrefill& p : prefills) {
    if (!prefills_.add(p.key, std::move(p.request), std::move(p.done))) prefill_count_.fetch_sub(1);
  }
  if (!queries.empty()) number_waiting();
}

bool Scheduler::cancel(const std::string& id) {
  const bool found = board_.cancel(id);
  if (found) core_.waker->wake();
  return found;
}

/// Tells the board in which order the waiting queries will get their turn.
void Scheduler::number_waiting() {
  attempt([this] {
    std::int32_t position = 0;
    for (const Running& r : prepared_) r.record->set_queue_position(position++);
    for (const NewQuery* q :
         waiting_.order([](const NewQuery& query) { return expected_work(query.request); })) {
      q->record->set_queue_position(position++);
    }
  });
}

void Scheduler::drop_dead(Clock::time_point now) {
  const auto dead = [now](const NewQuery& q) {
    return q.record->cancelled()->load(std::memory_order_relaxed) || now >= q.request.deadline;
  };
  bool gone = false;
  while (auto q = waiting_.take_first(dead)) {
    gone = true;
    const bool cancelled = q->record->cancelled()->load(std::memory_order_relaxed);
    Status why;
    try {
      why = cancelled ? Status::cancelled("the query was cancelled")
                      : Status::deadline("the query waited past its time limit");
    } catch (...) {
      why = exception_status("a query");
    }
    end_waiting(*q, why, cancelled ? FinishReason::kCancelled : FinishReason::kError);
  }
  if (gone) number_waiting();
  for (Running& r : prepared_) end_dead(r, now);
  for (Running& r : running_) end_dead(r, now);
  reap_prepared();
  reap();
}

void Scheduler::end_dead(Running& running, Clock::time_point now) {
  guarded(*running.task, [&] {
    if (const auto why = running.task->verdict(now)) {
      running.task->finish(
          *why, why->code() == Code::kCancelled ? FinishReason::kCancelled : FinishReason::kError);
    }
  });
}

/// Ends a query that was taken out of those that wait.
void Scheduler::end_waiting(NewQuery& query, const Status& why, FinishReason reason) noexcept {
  waiting_count_.fetch_sub(1);
  if (const auto task = make_task(query)) task->finish(why, reason);
}

/// Creates the task, which removes its query from the board before the sink hears of its end. Null:
/// there was no memory for it, so that the query has ended.
std::unique_ptr<QueryTask> Scheduler::make_task(NewQuery& query) noexcept {
  std::unique_ptr<QueryTask> task;
  try {
    // A task that fails in the making takes along what it was given, so the sink is kept.
    task = std::make_unique<QueryTask>(core_, std::move(query.request), query.sink,
                                       query.record->cancelled(), query.received);
    task->before_end([this, record = query.record] { board_.remove(*record); });
    query.sink.reset();
    return task;
  } catch (...) {
    const Status why = exception_status("a query");
    if (!task) {
      refuse(query, why);
      return nullptr;
    }
    board_.remove(*query.record);
    task->finish(why, FinishReason::kError);
    return nullptr;
  }
}

/// Ends a query that there is no task for.
void Scheduler::refuse(NewQuery& query, const Status& why) noexcept {
  board_.remove(*query.record);
  attempt([&] {
    Plan plan;
    plan.query_id = query.record->id();
    query.sink->on_done(why, plan, QueryStats(), FinishReason::kError);
  });
  query.sink.reset();
}

/// Returns how many steps may follow one before the host looks at anything: none while others wait
/// for their turn.
std::size_t Scheduler::steps_ahead() const {
  if (core_.model->compute().on_host() || decode_step_ms_ <= 0) return 0;
  if (!prepared_.empty() || waiting_count_.load(std::memory_order_relaxed) > 0) return 0;
  for (const Running& r : running_) {
    const QueryTask::State state = r.task->state();
    if (state != QueryTask::State::kDecoding && state != QueryTask::State::kDone) return 0;
  }
  const double steps = std::floor(limits_.unseen_decode_ms / decode_step_ms_) - 1;
  return static_cast<std::size_t>(std::clamp(steps, 0.0, double{kMostAhead}));
}

/// Returns whether the decode step should wait for a pass of this turn, to run beside its rows.
bool Scheduler::may_mix() {
  if (core_.workspace.beside == nullptr || decode_step_ms_ <= 0 || mixed_in_a_row_ >= kMostMixed)
    return false;
  if (largest_chunk_ < 2 * rows_beside(batch_.most())) return false;
  if (const Running* next = next_runnable(); next != nullptr && next->task->runs_model())
    return true;
  return !core_.model->compute().on_host() && !prefills_.idle() && writer_has_room() &&
         query_ms_since_prefill_ >= kQueryShare * last_prefill_ms_;
}

/// Returns the most rows of a chunk: with those of a decode step that waits to run beside it no
/// more than buffers are meant for.
std::int32_t Scheduler::chunk_room() const {
  return largest_chunk_ - static_cast<std::int32_t>(rows_beside(batch_.waiting(*core_.model, 0)));
}

/// Returns whether ingest may go on: what it computed holds a context's KV in memory until it is
/// written.
bool Scheduler::writer_has_room() const {
  return core_.writer->pending() < kMaxUnwritten && core_.writer->has_room(0);
}

/// Begins the decode step of this turn and, unless it may mix with a pass, runs it. Returns whether
/// any query decodes.
bool Scheduler::start_decode() {
  const auto started = Clock::now();
  reserve_for_decode();
  const bool mix = may_mix();
  std::size_t ahead = mix ? 0 : steps_ahead();
  if (ahead > 0 && !reserve_ahead(ahead)) ahead = 0;
  for (Running& r : running_) {
    if (r.task->state() != QueryTask::State::kDecoding) continue;
    guarded(*r.task, [&] {
      decoding_.push_back(&r);
      rows_.push_back(r.task->decode_row(ahead));
    });
    decoding_.resize(rows_.size());  // without one that has just failed
  }
  if (rows_.empty()) return false;
  Status status;
  try {
    batch_.begin(rows_, mix);
  } catch (...) {
    status = exception_status("a decode step");
  }
  started_ms_ = ms_between(started, Clock::now());
  if (!status.ok()) end_decode(status);
  if (!mix) finish_decode();
  return true;
}

/// Ends the decode step, if one has begun, and hands the tokens to its queries.
void Scheduler::finish_decode() {
  if (rows_.empty()) return;
  const auto started = Clock::now();
  const bool mixed = batch_.mixed();
  Status status;
  try {
    status = batch_.end();
  } catch (...) {
    status = exception_status("a decode step");
  }
  std::size_t steps = 1;
  for (const DecodeRow& row : rows_) steps = std::max(steps, 1 + row.drawn_ahead.size());
  const double all_ms = started_ms_ + ms_between(started, Clock::now()),
               ms = all_ms / static_cast<double>(steps);
  if (!mixed) {
    for (std::size_t i = 0; i < steps; ++i) core_.meter->add_decode(count_of(rows_), ms);
    decode_step_ms_ = decode_step_ms_ == 0 ? ms
                                           : decode_step_ms_ + kNewestStep * (ms - decode_step_ms_);
  }
  mixed_in_a_row_ = mixed ? mixed_in_a_row_ + 1 : 0;
  (mixed ? steps_mixed_ : steps_alone_)
      .fetch_add(static_cast<std::int64_t>(steps), std::memory_order_relaxed);
  query_ms_since_prefill_ += all_ms;
  end_decode(status);
}

/// Hands the results of the decode step to its queries; `status` is the whole step's.
void Scheduler::end_decode(const Status& status) {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!status.ok()) rows_[i].status = status;
    Running& running = *decoding_[i];
    guarded(*running.task, [&] { running.task->decoded(rows_[i]); });
    running.record->set_completion_tokens(running.task->completion_tokens());
  }
  rows_.clear();
  decoding_.clear();
}

/// Returns the query whose turn it is to compute; null: none can.
Scheduler::Running* Scheduler::next_runnable() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Running& running = running_[(turn_ + i) % running_.size()];
    if (running.task->state() == QueryTask::State::kRunnable) return &running;
  }
  return nullptr;
}

bool Scheduler::step_query(bool others_decode) {
  Running* const running = next_runnable();
  if (running == nullptr) return false;
  QueryTask& task = *running->task;
  turn_ = to_size(running - running_.data()) + 1;
  const auto started = Clock::now();
  const bool mix = batch_.waiting(*core_.model, 0) > 0;
  ChunkSizer& sizer = mix ? mixed_chunks_ : query_chunks_;
  std::int32_t rows = others_decode ? sizer.size() : largest_chunk_;
  rows = std::min(rows, chunk_room());
  if (running->background) rows = std::min(rows, kBackgroundPiece);
  core_.chunk_tokens = rows;
  core_.unreserved_bytes = unreserved_bytes();
  const bool runs_model = task.runs_model();
  guarded(task, [&task] { task.step(); });
  core_.chunk_tokens = largest_chunk_;
  const double ms = ms_between(started, Clock::now());
  if (others_decode && runs_model && mix == batch_.mixed())
    sizer.measured(rows, mix ? std::max(0.0, ms - decode_step_ms_) : ms,
                   std::max(decode_step_ms_, kQueryPieceMs));
  if (task.state() == QueryTask::State::kDecoding) begin_decode(*running);
  attempt([&] { running->record->set_strategy(task.strategy()); });
  query_ms_since_prefill_ += ms;
  return true;
}

bool Scheduler::step_background(bool others_decode) {
  const auto started = Clock::now();
  const bool mixed_before = batch_.mixed();
  embed_turn_ = !embed_turn_;
  const bool worked = embed_turn_ ? step_embed(others_decode) || step_prefill(others_decode)
                                  : step_prefill(others_decode) || step_embed(others_decode);
  if (!worked) return false;
  // A decode step that ran beside it is no time of its own.
  const bool mixed = batch_.mixed() && !mixed_before;
  last_prefill_ms_ = ms_between(started, Clock::now());
  query_ms_since_prefill_ = mixed ? std::min(decode_step_ms_, last_prefill_ms_) : 0;
  last_prefill_ms_ -= query_ms_since_prefill_;
  return true;
}

bool Scheduler::step_prefill(bool others_decode) {
  if (!writer_has_room()) return false;
  if (!prefills_.pick()) return false;
  if (prefill_bytes_ == 0) {
    const std::int64_t bytes = prefills_.needed_bytes();
    if (!make_room(bytes)) return false;
    if (prefills_.suspended()) {
      const Status resumed = prefills_.resume();
      if (resumed.code() == Code::kResourceExhausted && pages_come_free()) return false;
      if (!resumed.ok()) {
        fail_prefill(resumed.with_context("the context could not go on"));
        return true;
      }
    }
    prefill_bytes_ = bytes;
  }
  const bool mix = batch_.waiting(*core_.model, 0) > 0;
  core_.chunk_tokens = chunk_room();
  const bool over = prefills_.step(others_decode ? kIngestPiece * decode_step_ms_ : 0,
                                   mix ? decode_step_ms_ : 0);
  core_.chunk_tokens = largest_chunk_;
  if (over) {
    prefill_count_.fetch_sub(1);
    prefill_bytes_ = 0;
    // A context that goes on from the rows of this one holds their pages already.
    const std::int64_t bytes = prefills_.needed_bytes();
    if (bytes > 0 && make_room(bytes)) {
      prefill_bytes_ = bytes;
    } else {
      prefills_.drop_rows();
    }
  }
  return true;
}

/// Ends the current context of ingest, whose pages are free afterwards.
void Scheduler::fail_prefill(const Status& why) {
  prefills_.fail_current(why);
  prefill_count_.fetch_sub(1);
  prefill_bytes_ = 0;
}

bool Scheduler::step_embed(bool others_decode) {
  const auto started = Clock::now();
  const std::int32_t rows = std::min(others_decode ? embed_chunks_.size() : largest_chunk_,
                                     chunk_room());
  const bool mixed_before = batch_.mixed();
  core_.chunk_tokens = rows;
  const bool worked = embeds_.step([this](std::int64_t bytes) { return make_room(bytes); },
                                   pages_come_free());
  core_.chunk_tokens = largest_chunk_;
  const double beside_ms = batch_.mixed() && !mixed_before ? decode_step_ms_ : 0;
  if (worked && others_decode)
    embed_chunks_.measured(rows, std::max(0.0, ms_between(started, Clock::now()) - beside_ms),
                           kIngestPiece * decode_step_ms_);
  return worked;
}

void Scheduler::reap() {
  std::erase_if(running_, [this](const Running& r) {
    if (r.task->state() != QueryTask::State::kDone) return false;
    reserved_bytes_ -= r.bytes;
    counted_bytes_ -= r.counted_bytes;
    device_bytes_ -= r.device_bytes;
    waiting_.settle(r.task->request().tenant, r.charged_tokens, r.task->work_tokens());
    return true;
  });
}

void Scheduler::end_everything(const Status& why) {
  while (auto q = waiting_.take_first([](const NewQuery&) { return true; }))
    end_waiting(*q, why, FinishReason::kError);
  for (std::vector<Running>* tasks : {&prepared_, &running_}) {
    for (Running& r : *tasks) r.task->finish(why, FinishReason::kError);
  }
  reap_prepared();
  reap();
}

Clock::time_point Scheduler::next_look(Clock::time_point now) const {
  if (!running_.empty() || !prepared_.empty() || !waiting_.empty() || !prefills_.idle() ||
      !embeds_.idle())
    return now + kLook;
  return now + std::chrono::hours(1);
}

}  // namespace quire
