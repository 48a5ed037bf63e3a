#include "engine/schedule/prefill_queue.h"

#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace quire {
namespace {

/// Most parts of the time that recomputing gets for one part of ingest while both wait.
constexpr double kRecomputeShare = 9;

}  // namespace

PrefillQueue::PrefillQueue(QueryResources& core)
    : core_(core), sizer_(core.chunk_tokens), mixed_sizer_(core.chunk_tokens) {}

bool PrefillQueue::add(const ContextKey& key, PrefillRequest request,
                       PrefillTask::Done done) noexcept {
  std::shared_ptr<PrefillTask> task;
  try {
    std::erase_if(in_flight_, [](const auto& entry) { return entry.second->completed(); });
    const PrefillPriority priority = request.priority;
    if (const auto found = in_flight_.find(key);
        found != in_flight_.end() && found->second->join(request, done)) {
      raise(found->second, priority);
      return false;
    }
    // A task that fails in the making takes along what it was given.
    PrefillTask::Done given = done;
    task = std::make_shared<PrefillTask>(core_, key, std::move(request), std::move(given));
    const std::int64_t budget = core_.pool->max_bytes();
    if (budget > 0 && task->working_bytes() > budget) {
      task->fail(Status::invalid(
          "chunking.max_tokens",
          "the context needs " + std::to_string(task->working_bytes()) +
              " bytes of working cache, the whole budget is " + std::to_string(budget) +
              ": lower chunking.max_tokens or chunking.context_tokens, or raise "
              "model.working_cache_bytes"));
      return false;
    }
    in_flight_[key] = task;
    queue_of(task->priority()).push(task->tenant(), task);
    return true;
  } catch (...) {
    const Status why = exception_status("a context of ingest");
    if (task)
      task->fail(why);
    else
      PrefillTask::tell(done, why);
    return false;
  }
}

/// Gives a task the priority of a caller that joined it, if that one is more urgent.
void PrefillQueue::raise(const std::shared_ptr<PrefillTask>& task,
                         PrefillPriority priority) noexcept {
  if (priority >= task->priority()) return;
  const auto is_task = [&task](const std::shared_ptr<PrefillTask>& other) { return other == task; };
  try {
    Queue& from = queue_of(task->priority());
    if (from.holds(is_task)) {
      queue_of(priority).push(task->tenant(), task);
      (void)from.take_first(is_task);
    }
    task->raise(priority);
  } catch (...) {
    (void)exception_status("a context that is wanted sooner");  // it waits as before
  }
}

bool PrefillQueue::pick() {
  if (current_) return true;
  if (recompute_.empty() && ingest_.empty()) return false;
  const bool both = !recompute_.empty() && !ingest_.empty();
  if (!both) recompute_ms_ = ingest_ms_ = 0;
  const bool ingest = recompute_.empty() || (both && recompute_ms_ > kRecomputeShare * ingest_ms_);
  Queue& queue = ingest ? ingest_ : recompute_;
  current_ = queue.pop();
  charge(queue);
  return true;
}

void PrefillQueue::charge(Queue& queue) {
  queue.charge(current_->tenant(), current_->num_tokens());
  charged_ = &queue;
}

/// Settles where it was charged, as the context's priority may have been raised since.
void PrefillQueue::settle(const PrefillTask& task, std::int64_t tokens_done) {
  charged_->settle(task.tenant(), task.num_tokens(), tokens_done);
}

Status PrefillQueue::suspend() {
  try {
    QUIRE_RETURN_IF_ERROR(current_->suspend());
  } catch (...) {
    return exception_status("a context of ingest that makes way");
  }
  suspended_ = true;
  return {};
}

Status PrefillQueue::resume() {
  try {
    QUIRE_RETURN_IF_ERROR(current_->resume());
  } catch (...) {
    return exception_status("a context of ingest that goes on");
  }
  suspended_ = false;
  return {};
}

void PrefillQueue::fail_current(const Status& why) {
  current_->fail(why);
  settle(*current_, 0);
  current_.reset();
  suspended_ = false;
}

bool PrefillQueue::step(double allowed_ms, double beside_ms) {
  const auto started = Clock::now();
  PieceLimit limit;
  ChunkSizer& sizer = beside_ms > 0 ? mixed_sizer_ : sizer_;
  if (allowed_ms > 0) {
    limit.max_tokens = sizer.size();
    limit.max_ms = allowed_ms;
    limit.whole_chunk = beside_ms > 0;
  }
  bool over = true;
  try {
    over = current_->step(limit);
  } catch (...) {
    current_->fail(exception_status("a context of ingest"));
  }
  const double ms = ms_between(started, Clock::now());
  // Of a call that the decode step did not run beside nothing is learned for those that it does.
  const RowsBeside* const beside = core_.workspace.beside;
  const bool entered = beside_ms > 0 && beside != nullptr && beside->waiting(*core_.model, 0) == 0;
  if (allowed_ms > 0 && entered == (beside_ms > 0))
    sizer.measured(limit.max_tokens, std::max(0.0, ms - beside_ms), allowed_ms);
  (current_->priority() == PrefillPriority::kRecompute ? recompute_ms_ : ingest_ms_) += ms;
  if (over) {
    const std::shared_ptr<PrefillTask> done = std::move(current_);
    current_.reset();
    settle(*done, done->num_tokens());
    go_on_from(done->take_rows(), done->tenant());
  }
  return over;
}

/// The next chunk of a document goes on from the rows of the one before, whatever waits before it:
/// else the rows would have to be kept or computed again. The tenant is charged for it as ever. The
/// chunk of another tenant does not, although its tokens may be the same: the time that this saves
/// would tell one tenant what another one stored.
void PrefillQueue::go_on_from(std::unique_ptr<PrefilledRows> rows, const std::string& tenant) {
  if (rows == nullptr) return;
  for (Queue* queue : {&recompute_, &ingest_}) {
    auto next = queue->take_first([&](const std::shared_ptr<PrefillTask>& task) {
      return task->tenant() == tenant && task->continues(*rows);
    });
    if (!next) continue;
    current_ = std::move(*next);
    charge(*queue);
    current_->go_on_from(std::move(rows));
    return;
  }
}

void PrefillQueue::drop_rows() {
  if (current_) current_->take_rows();
}

std::int64_t PrefillQueue::fail_all(const Status& status) {
  std::int64_t count = 0;
  const auto fail = [&](const std::shared_ptr<PrefillTask>& task) {
    task->fail(status);
    ++count;
  };
  if (current_) {
    fail(current_);
    settle(*current_, 0);
  }
  current_.reset();
  suspended_ = false;
  const auto every = [](const auto&) { return true; };
  for (Queue* queue : {&recompute_, &ingest_}) {
    while (const auto task = queue->take_first(every)) fail(*task);
  }
  return count;
}

}  // namespace quire
