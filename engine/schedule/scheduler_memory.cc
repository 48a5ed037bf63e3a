// This file decides which queries run and with how many pages: preparing, admission, growth,
// preemption.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "engine/residency/device_pool.h"
#include "engine/schedule/scheduler.h"

namespace quire {
namespace {

/// Tokens of an answer that have pages reserved before it begins, so that short answers never wait
/// for memory.
constexpr std::int64_t kFirstAnswerTokens = 64;
/// Share of the store's memory tier that they may prefetch together; the values stay pinned until
/// they are placed.
constexpr std::uint64_t kPreparedPart = 4;
/// Most that all admitted queries together are counted with, in budgets.
constexpr std::int64_t kMaxOvercommit = 2;

/// Returns the bytes of stored KV that the query may read.
std::int64_t bytes_to_read(const QueryResources& core, const QueryRequest& request) {
  std::int64_t tokens = 0;
  for (const QueryContext& c : request.contexts) tokens += c.key ? count_of(c.token_ids) : 0;
  const KvShape& shape = core.facts.shape;
  return tokens * shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim *
         static_cast<std::int64_t>(dtype_bytes(shape.dtype));
}

}  // namespace

/// Returns the estimated work of a query, in tokens, before it has run.
std::int64_t Scheduler::expected_work(const QueryRequest& request) {
  std::size_t n = request.prefix_ids.size() + request.suffix_ids.size();
  for (const QueryContext& c : request.contexts) n += c.token_ids.size();
  return static_cast<std::int64_t>(n) + counted_answer_tokens(request.sampling);
}

/// Shortens the answer, of which no length was asked for, to the longest that the whole budget
/// holds, and returns the bytes that it needs. They exceed the budget if not even the shortest
/// fits.
std::int64_t Scheduler::shorten_answer(QueryRequest& request) const {
  SamplingOptions& sampling = request.sampling;
  const auto bytes_with = [&](std::int32_t tokens) {
    return QueryTask::working_bytes(core_, request, tokens);
  };
  std::int32_t most = sampling.max_tokens, fits = std::min(std::max(1, sampling.min_tokens), most);
  while (fits < most) {
    const std::int32_t middle = most - (most - fits) / 2;
    if (bytes_with(middle) <= core_.pool->max_bytes())
      fits = middle;
    else
      most = middle - 1;
  }
  sampling.max_tokens = fits;
  return bytes_with(fits);
}

/// Returns whether a query may be counted with `to` bytes instead of `from`, 0 where it is not
/// admitted yet. Then whichever query gets the longest answer has room for it while all others keep
/// what they are counted with: all are answered one after the other, however long they get.
bool Scheduler::may_count(const Running& running, std::int64_t from, std::int64_t to) const {
  const std::int64_t budget = core_.pool->max_bytes();
  if (budget <= 0) return true;
  std::int64_t growth = running.most_bytes - to;
  for (const Running& r : running_)
    if (&r != &running) growth = std::max(growth, r.most_bytes - r.counted_bytes);
  return counted_bytes_ - from + to + growth <= kMaxOvercommit * budget;
}

/// Returns whether no query that runs, or is preempted, was admitted before this one.
bool Scheduler::is_oldest(const Running& running) const {
  const auto first = std::ranges::find_if(
      running_, [](const Running& r) { return r.task->state() != QueryTask::State::kDone; });
  return first != running_.end() && &*first == &running;
}

/// Returns the bytes that are left of the budget, not counting kept prompt prefixes.
std::int64_t Scheduler::unreserved_bytes() const {
  const std::int64_t budget = core_.pool->max_bytes();
  if (budget <= 0) return std::numeric_limits<std::int64_t>::max();
  return budget - reserved_bytes_ - prefill_bytes_ - embeds_.held_bytes();
}

/// Makes room for this many more bytes and returns whether they may be reserved. Cached prompt
/// prefixes are evicted if needed.
bool Scheduler::make_room(std::int64_t bytes) {
  if (core_.pool->max_bytes() <= 0) return true;
  const std::int64_t left = unreserved_bytes() - bytes;
  if (left < 0) return false;
  if (core_.prefixes != nullptr) core_.prefixes->shrink(left);
  return true;
}

/// Makes room like make_room(), and suspends ingest and embeddings if that is enough.
bool Scheduler::make_room_for_query(std::int64_t bytes) {
  while (!make_room(bytes)) {
    if (reserved_bytes_ + bytes > core_.pool->max_bytes() || !suspend_background()) return false;
  }
  return true;
}

/// Moves the pages of the lowest priority to ordinary memory: those of the context that ingest
/// computes, then those of the text being embedded. Work whose pages cannot be moved ends instead.
/// Returns false if neither has any.
bool Scheduler::suspend_background() {
  if (prefill_bytes_ > 0) {
    if (const Status moved = prefills_.suspend(); !moved.ok())
      fail_prefill(moved.with_context("the context could not make way for a query"));
    prefill_bytes_ = 0;
    return true;
  }
  if (embeds_.held_bytes() == 0) return false;
  embeds_.suspend();
  return true;
}

/// Plans the next queries in turn and requests what they need, so that the store reads while others
/// compute.
void Scheduler::prepare_waiting() {
  const auto most = static_cast<std::int64_t>(core_.store->options().dram_bytes / kPreparedPart);
  std::int64_t reading = 0;
  for (const Running& r : prepared_) reading += r.read_bytes;
  while (!waiting_.empty() && prepared_.size() < kMaxPrepared) {
    const std::int64_t read_bytes = bytes_to_read(core_, waiting_.front().request);
    if (!prepared_.empty() && reading + read_bytes > most) break;
    NewQuery q = waiting_.pop();
    Running r;
    r.record = q.record;
    r.most_bytes = q.most_bytes;
    r.counted_tokens = counted_answer_tokens(q.request.sampling);
    r.counted_bytes = QueryTask::working_bytes(core_, q.request, r.counted_tokens);
    r.prompt_bytes = std::min(q.most_bytes,
                              QueryTask::working_bytes(core_, q.request, kFirstAnswerTokens));
    r.read_bytes = read_bytes;
    r.background = q.request.background;
    r.charged_tokens = expected_work(q.request);
    r.task = make_task(q);
    if (!r.task) {
      waiting_count_.fetch_sub(1);
      continue;
    }
    // The charge is made in advance, so that a tenant's next turn comes after those of others; it
    // is settled when the query ends.
    waiting_.charge(r.task->request().tenant, r.charged_tokens);
    prepared_.push_back(std::move(r));
    reading += read_bytes;
    QueryTask& task = *prepared_.back().task;
    guarded(task, [&task] { task.prepare(); });
    attempt([&] { prepared_.back().record->set_strategy(task.strategy()); });
    prepared_.back().device_bytes = task.device_bytes();
  }
}

void Scheduler::admit() {
  const std::size_t before = prepared_.size() + waiting_.size();
  prepare_waiting();
  reap_prepared();
  while (resume_preempted() && !prepared_.empty() &&
         static_cast<std::int32_t>(running_.size()) < limits_.max_running) {
    Running& next = prepared_.front();
    if (!may_count(next, 0, next.counted_bytes)) break;
    if (core_.device->max_bytes() > 0 &&
        device_bytes_ + next.device_bytes > core_.device->max_bytes())
      break;
    if (!make_room_for_query(next.prompt_bytes)) break;
    Running r = std::move(next);
    prepared_.erase(prepared_.begin());
    r.bytes = r.prompt_bytes;
    reserved_bytes_ += r.bytes;
    counted_bytes_ += r.counted_bytes;
    device_bytes_ += r.device_bytes;
    r.record->set_queue_position(-1);
    r.record->set_state(RequestState::kPrefilling);
    r.task->count_in(running_count_);
    waiting_count_.fetch_sub(1);
    guarded(*r.task, [&r] { r.task->start(); });
    running_.push_back(std::move(r));
    prepare_waiting();
    reap_prepared();
    pace_.admitted(Clock::now(), !prepared_.empty());
  }
  if (prepared_.size() + waiting_.size() != before) number_waiting();
}

/// Removes prepared queries that ended without a turn, because nothing was left to do or they were
/// cancelled.
void Scheduler::reap_prepared() {
  std::erase_if(prepared_, [this](const Running& r) {
    if (r.task->state() != QueryTask::State::kDone) return false;
    waiting_count_.fetch_sub(1);
    waiting_.settle(r.task->request().tenant, r.charged_tokens, r.task->work_tokens());
    return true;
  });
}

/// Resumes preempted queries, oldest first. Returns true if none still waits for pages, or to be
/// counted with more of them; those behind it wait, too, as they would take what it waits for. One
/// that lacks memory although nobody will release any ends, as those behind it would wait in vain.
bool Scheduler::resume_preempted() {
  for (Running& r : running_) {
    if (r.task->state() != QueryTask::State::kPreempted) continue;
    if (r.decoding && !grow_answer(r)) return false;
    const std::int64_t bytes = r.decoding ? r.task->held_bytes() + r.task->next_row_bytes()
                                          : r.prompt_bytes;
    if (!make_room_for_query(bytes)) return false;
    Status resumed;
    guarded(*r.task, [&] { resumed = r.task->resume(); });
    if (resumed.code() == Code::kResourceExhausted && pages_come_free()) return false;
    if (!resumed.ok())
      guarded(*r.task, [&] {
        r.task->finish(resumed.with_context("the query could not go on after it made way"),
                       FinishReason::kError);
      });
    if (r.task->state() == QueryTask::State::kDone) continue;
    r.bytes = bytes;
    reserved_bytes_ += bytes;
    r.record->set_state(r.decoding ? RequestState::kDecoding : RequestState::kPrefilling);
  }
  return true;
}

/// Takes the query's pages. A query whose pages cannot be moved ends, which frees them as well.
void Scheduler::preempt(Running& running) {
  guarded(*running.task, [&running] {
    if (const Status moved = running.task->suspend(); !moved.ok())
      running.task->finish(moved.with_context("the query could not make way for an older one"),
                           FinishReason::kError);
  });
  reserved_bytes_ -= std::exchange(running.bytes, 0);
  if (running.task->state() == QueryTask::State::kPreempted)
    running.record->set_state(RequestState::kPreempted);
}

bool Scheduler::preempt_younger_than(const Running& running) {
  for (auto it = running_.rbegin(); it != running_.rend() && &*it != &running; ++it) {
    const auto state = it->task->state();
    if (state == QueryTask::State::kPreempted || state == QueryTask::State::kDone) continue;
    preempt(*it);
    return true;
  }
  return false;
}

/// Releases the extra memory of the prompt when the answer begins.
void Scheduler::begin_decode(Running& running) {
  running.decoding = true;
  running.record->set_state(RequestState::kDecoding);
  const std::int64_t first_answer = kFirstAnswerTokens / kPageTokens *
                                    core_.pool->format().page_bytes() *
                                    core_.facts.shape.num_layers;
  const std::int64_t bytes = std::min(running.bytes, running.task->held_bytes() + first_answer);
  reserved_bytes_ -= running.bytes - bytes;
  running.bytes = bytes;
}

/// Counts a decoding query with more of its answer once it has nearly come to what it is counted
/// with. The oldest always may grow, so that it ends and makes room for the next. Returns false if
/// the next token would exceed what the query may be counted with now.
bool Scheduler::grow_answer(Running& running) {
  const QueryRequest& request = running.task->request();
  const std::int64_t tokens = running.task->completion_tokens(), most = request.sampling.max_tokens;
  if (running.counted_tokens >= most || tokens + kPageTokens < running.counted_tokens) return true;
  const std::int64_t more = std::min(most, running.counted_tokens + kUnaskedAnswerTokens);
  // A prompt that has been cut meanwhile stays counted as it came.
  const std::int64_t bytes = std::max(running.counted_bytes,
                                      QueryTask::working_bytes(core_, request, more));
  if (bytes > running.counted_bytes && !is_oldest(running) &&
      !may_count(running, running.counted_bytes, bytes))
    return tokens < running.counted_tokens;
  counted_bytes_ += bytes - running.counted_bytes;
  running.counted_bytes = bytes;
  running.counted_tokens = more;
  return true;
}

/// Ensures that every decoding query has the pages of its next row, older queries first.
void Scheduler::reserve_for_decode() {
  for (Running& r : running_) {
    if (r.task->state() != QueryTask::State::kDecoding) continue;
    if (!grow_answer(r)) {
      preempt(r);
      continue;
    }
    const std::int64_t wanted = r.task->held_bytes() + r.task->next_row_bytes() - r.bytes;
    if (wanted <= 0) continue;
    bool room = make_room(wanted);
    while (!room && suspend_background()) room = make_room(wanted);
    while (!room && preempt_younger_than(r)) room = make_room(wanted);
    if (!room) {
      preempt(r);
      continue;
    }
    r.bytes += wanted;
    reserved_bytes_ += wanted;
  }
  reap();
}

/// Reserves the pages of so many further rows of every decoding query, if they are free.
bool Scheduler::reserve_ahead(std::size_t steps) {
  const auto more = static_cast<std::int64_t>(steps);
  for (Running& r : running_) {
    if (r.task->state() != QueryTask::State::kDecoding) continue;
    if (r.counted_tokens - r.task->completion_tokens() <= more) return false;
    const std::int64_t wanted = r.task->held_bytes() + r.task->next_row_bytes(1 + more) - r.bytes;
    if (wanted <= 0) continue;
    if (!make_room(wanted)) return false;
    r.bytes += wanted;
    reserved_bytes_ += wanted;
  }
  return true;
}

}  // namespace quire
