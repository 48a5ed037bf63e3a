#include "engine/schedule/embed_queue.h"

#include <string>
#include <utility>

#include "base/status.h"

namespace quire {

void EmbedQueue::submit(EmbedRequest request, EmbedTask::Done done) {
  auto task = std::make_unique<EmbedTask>(core_, std::move(request), std::move(done));
  const std::int64_t budget = core_.pool->max_bytes(), bytes = task->working_bytes();
  Status refused;
  if (budget > 0 && bytes > budget) {
    refused = Status::invalid(
        "input", "the text needs " + std::to_string(bytes) +
                     " bytes of working cache, the whole budget is " + std::to_string(budget) +
                     ": embed shorter texts or raise model.working_cache_bytes");
  } else {
    const std::lock_guard lock(mu_);
    if (!closed_.ok()) {
      refused = closed_;
    } else if (waiting_.size() >= max_waiting_) {
      refused = Status::exhausted("the queue is full: " + std::to_string(max_waiting_) +
                                  " texts are waiting to be embedded");
    } else {
      waiting_.emplace_back().swap(task);
    }
  }
  if (task != nullptr) return task->fail(refused);
  core_.waker->wake();
}

bool EmbedQueue::idle() const {
  const std::lock_guard lock(mu_);
  return !current_ && waiting_.empty();
}

void EmbedQueue::suspend() {
  Status moved;
  try {
    moved = current_->suspend();
  } catch (...) {
    moved = exception_status("a text that makes way");
  }
  if (!moved.ok()) return fail_current(moved.with_context("the text could not make way"));
  suspended_ = true;
  held_bytes_ = 0;
}

Status EmbedQueue::resume() {
  try {
    QUIRE_RETURN_IF_ERROR(current_->resume());
  } catch (...) {
    return exception_status("a text that goes on");
  }
  suspended_ = false;
  held_bytes_ = current_->working_bytes();
  return {};
}

void EmbedQueue::fail_current(const Status& why) {
  current_->fail(why);
  end_current();
}

void EmbedQueue::end_current() {
  current_.reset();
  suspended_ = false;
  held_bytes_ = 0;
}

bool EmbedQueue::step(const std::function<bool(std::int64_t bytes)>& room_for,
                      bool pages_come_free) {
  if (!current_) {
    const std::lock_guard lock(mu_);
    if (waiting_.empty() || !room_for(waiting_.front()->working_bytes())) return false;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    held_bytes_ = current_->working_bytes();
  }
  if (suspended_ && !current_->cancelled()) {
    if (!room_for(current_->working_bytes())) return false;
    const Status resumed = resume();
    if (resumed.code() == Code::kResourceExhausted && pages_come_free) return false;
    if (!resumed.ok()) {
      fail_current(resumed.with_context("the text could not go on"));
      return true;
    }
  }
  bool over = true;
  try {
    over = current_->step();
  } catch (...) {
    current_->fail(exception_status("the embedding of a text"));
  }
  if (over) end_current();
  return true;
}

void EmbedQueue::close(const Status& why) {
  std::deque<std::unique_ptr<EmbedTask>> waiting;
  {
    const std::lock_guard lock(mu_);
    closed_ = why;
    waiting.swap(waiting_);
  }
  if (current_) current_->fail(why);
  end_current();
  for (const auto& task : waiting) task->fail(why);
}

}  // namespace quire
