#include "engine/schedule/scheduler.h"

#include <algorithm>
#include <exception>
#include <new>

#include "engine/pipeline/kv_writer.h"
#include "kernels/base/log.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// A cancelled query or a passed deadline is noticed within this time even when nothing else happens.
constexpr auto kLook = std::chrono::milliseconds(10);
/// Ingest gets at least one part in ten of the engine's time while queries keep it busy.
constexpr double kQueryShare = 9;
/// Computed contexts the writer may be behind; each holds a context's KV in memory.
constexpr std::size_t kMaxUnwritten = 8;

Status stopping_status() { return Status::unavailable("the engine is stopping"); }

}  // namespace

Scheduler::Scheduler(EngineCore& core, const SchedulerLimits& limits)
    : core_(core), limits_(limits), batch_(*core.model), thread_([this] { run(); }) {}

Scheduler::~Scheduler() { stop(std::chrono::milliseconds(0)); }

Result<QueryHandle> Scheduler::submit(QueryRequest request, std::shared_ptr<QuerySink> sink) {
  auto cancelled = std::make_shared<std::atomic<bool>>(false);
  const std::int64_t bytes = QueryTask::working_bytes(core_, request);
  const std::int64_t budget = core_.pool->max_bytes();
  if (budget > 0 && bytes > budget) {
    return Status::exhausted("the prompt needs " + std::to_string(bytes) + " bytes of working cache, the whole budget is " +
                             std::to_string(budget) + ": ask over fewer documents or raise model.working_cache_bytes");
  }
  {
    std::lock_guard lock(mu_);
    if (stopping_) return stopping_status();
    if (waiting_count_.load() >= limits_.max_queue) {
      return Status::exhausted("the queue is full: " + std::to_string(limits_.max_queue) + " queries are waiting");
    }
    waiting_count_.fetch_add(1);
    new_queries_.push_back({std::move(request), std::move(sink), cancelled, Clock::now(), bytes});
  }
  core_.waker->wake();
  return QueryHandle(std::move(cancelled));
}

void Scheduler::submit(const ContextKey& key, PrefillRequest request, PrefillTask::Done done) {
  Status refused;
  {
    std::lock_guard lock(mu_);
    if (stopping_) {
      refused = stopping_status();
    } else if (prefill_count_.load() >= limits_.max_prefills) {
      refused = Status::exhausted("the ingest queue is full: " + std::to_string(limits_.max_prefills) + " contexts are waiting");
    } else {
      prefill_count_.fetch_add(1);
      new_prefills_.push_back({key, std::move(request), std::move(done)});
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
  for (;;) {
    bool stopping = false;
    Clock::time_point stop_at;
    {
      std::lock_guard lock(mu_);
      stopping = stopping_;
      stop_at = stop_at_;
    }
    // After the look at stopping_: nothing can arrive behind a true one.
    take_commands();
    const auto now = Clock::now();
    if (stopping) {
      for (const auto& task : prefills_) task->fail(stopping_status());
      prefill_count_.fetch_sub(static_cast<std::int64_t>(prefills_.size()));
      prefills_.clear();
      if (now >= stop_at) end_everything(stopping_status());
      if (running_.empty() && waiting_.empty()) break;
    }
    drop_dead(now);
    admit();
    bool worked = step_decode();
    worked = step_query() || worked;
    reap();
    const bool ingest_due = query_ms_since_prefill_ >= kQueryShare * last_prefill_ms_;
    if (!worked || ingest_due) worked = step_prefill() || worked;
    if (!worked) core_.waker->wait_until(std::min(next_look(now), stopping ? stop_at : Clock::time_point::max()));
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
  for (NewQuery& q : queries) waiting_.push_back(std::move(q));
  for (NewPrefill& p : prefills) add_prefill(std::move(p));
}

void Scheduler::add_prefill(NewPrefill prefill) {
  std::erase_if(in_flight_, [](const auto& entry) { return entry.second->completed(); });
  const auto found = in_flight_.find(prefill.key);
  if (found != in_flight_.end() && found->second->join(prefill.request, prefill.done)) {
    prefill_count_.fetch_sub(1);
    return;
  }
  auto task = std::make_shared<PrefillTask>(core_, prefill.key, std::move(prefill.request), std::move(prefill.done));
  const std::int64_t budget = core_.pool->max_bytes();
  if (budget > 0 && task->working_bytes() > budget) {
    prefill_count_.fetch_sub(1);
    task->fail(Status::exhausted("the context needs " + std::to_string(task->working_bytes()) + " bytes of working cache, the whole budget is " +
                                 std::to_string(budget) + ": cut documents into smaller chunks or raise model.working_cache_bytes"));
    return;
  }
  in_flight_[prefill.key] = task;
  prefills_.push_back(std::move(task));
}

void Scheduler::drop_dead(Clock::time_point now) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const bool cancelled = it->cancelled->load(std::memory_order_relaxed);
    if (!cancelled && now < it->request.deadline) {
      ++it;
      continue;
    }
    QueryTask task(core_, std::move(it->request), std::move(it->sink), it->cancelled, it->received);
    it = waiting_.erase(it);
    waiting_count_.fetch_sub(1);
    task.finish(cancelled ? Status::cancelled("the query was cancelled") : Status::deadline("the query waited past its time limit"),
                cancelled ? FinishReason::kCancelled : FinishReason::kError);
  }
  for (Running& r : running_) {
    if (const auto why = r.task->verdict(now)) {
      r.task->finish(*why, why->code() == Code::kCancelled ? FinishReason::kCancelled : FinishReason::kError);
    }
  }
  reap();
}

bool Scheduler::room_for(std::int64_t bytes) const {
  const std::int64_t budget = core_.pool->max_bytes();
  return budget <= 0 || reserved_bytes_ + prefill_bytes_ + bytes <= budget;
}

void Scheduler::admit() {
  while (!waiting_.empty() && static_cast<std::int32_t>(running_.size()) < limits_.max_running && room_for(waiting_.front().bytes)) {
    NewQuery q = std::move(waiting_.front());
    waiting_.pop_front();
    reserved_bytes_ += q.bytes;
    running_.push_back({std::make_unique<QueryTask>(core_, std::move(q.request), std::move(q.sink), std::move(q.cancelled), q.received), q.bytes});
    QueryTask& task = *running_.back().task;
    task.count_in(running_count_);
    waiting_count_.fetch_sub(1);
    guarded(task, [&task] { task.start(); });
  }
  reap();
}

/// A task that runs out of memory, or breaks, ends alone.
template <class Fn>
void Scheduler::guarded(QueryTask& task, Fn&& fn) {
  try {
    fn();
  } catch (const std::bad_alloc&) {
    task.finish(Status::exhausted("out of memory"), FinishReason::kError);
  } catch (const std::exception& e) {
    log_error("query failed by an exception", {{"error", e.what()}});
    task.finish(Status::internal(e.what()), FinishReason::kError);
  }
}

bool Scheduler::step_decode() {
  std::vector<DecodeRow> rows;
  std::vector<QueryTask*> tasks;
  for (Running& r : running_) {
    if (r.task->state() != QueryTask::State::kDecoding) continue;
    rows.push_back(r.task->decode_row());
    tasks.push_back(r.task.get());
  }
  if (rows.empty()) return false;
  const auto started = Clock::now();
  Status status;
  try {
    status = batch_.step(rows);
  } catch (const std::bad_alloc&) {
    status = Status::exhausted("out of memory");
  }
  const double ms = ms_between(started, Clock::now());
  core_.meter->add_decode(static_cast<std::int64_t>(rows.size()), ms);
  query_ms_since_prefill_ += ms;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!status.ok()) rows[i].status = status;
    guarded(*tasks[i], [&] { tasks[i]->decoded(rows[i]); });
  }
  return true;
}

bool Scheduler::step_query() {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const std::size_t at = (turn_ + i) % running_.size();
    QueryTask& task = *running_[at].task;
    if (task.state() != QueryTask::State::kRunnable) continue;
    turn_ = at + 1;
    const auto started = Clock::now();
    guarded(task, [&task] { task.step(); });
    query_ms_since_prefill_ += ms_between(started, Clock::now());
    return true;
  }
  return false;
}

bool Scheduler::step_prefill() {
  if (prefills_.empty() || core_.writer->pending() >= kMaxUnwritten) return false;
  const std::shared_ptr<PrefillTask> task = prefills_.front();
  if (prefill_bytes_ == 0) {
    if (!room_for(task->working_bytes())) return false;
    prefill_bytes_ = task->working_bytes();
  }
  const auto started = Clock::now();
  bool over = true;
  try {
    over = task->step();
  } catch (const std::exception& e) {
    task->fail(Status::exhausted(std::string("prefill failed: ") + e.what()));
  }
  last_prefill_ms_ = ms_between(started, Clock::now());
  query_ms_since_prefill_ = 0;
  if (over) {
    prefills_.pop_front();
    prefill_count_.fetch_sub(1);
    prefill_bytes_ = 0;
  }
  return true;
}

void Scheduler::reap() {
  std::erase_if(running_, [this](const Running& r) {
    if (r.task->state() != QueryTask::State::kDone) return false;
    reserved_bytes_ -= r.bytes;
    return true;
  });
}

void Scheduler::end_everything(const Status& why) {
  for (NewQuery& q : waiting_) {
    QueryTask(core_, std::move(q.request), std::move(q.sink), std::move(q.cancelled), q.received).finish(why, FinishReason::kError);
    waiting_count_.fetch_sub(1);
  }
  waiting_.clear();
  for (Running& r : running_) r.task->finish(why, FinishReason::kError);
  reap();
}

Clock::time_point Scheduler::next_look(Clock::time_point now) const {
  if (!running_.empty() || !waiting_.empty() || !prefills_.empty()) return now + kLook;
  return now + std::chrono::hours(1);
}

}  // namespace quire
