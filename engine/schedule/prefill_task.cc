#include "engine/schedule/prefill_task.h"

#include <algorithm>
#include <iterator>

#include "base/index.h"
#include "base/log.h"
#include "base/status.h"
#include "engine/draft/draft.h"
#include "engine/prefill/kv_writer.h"
#include "engine/prefill/record_kind.h"

namespace quire {

void PrefillTask::tell(const Done& done, const Result<PrefillResult>& result) noexcept {
  try {
    done(result);
  } catch (...) {
    (void)exception_status("what follows a prefill");
  }
}

PrefillTask::PrefillTask(QueryResources& core, ContextKey key, PrefillRequest request, Done done)
    : core_(core),
      key_(key),
      token_ids_(std::move(request.token_ids)),
      left_context_(std::move(request.left_context)),
      tenant_(std::move(request.tenant)),
      salt_digest_(request.salt_digest),
      priority_(request.priority) {
  waiters_.push_back(
      {std::move(request.cancelled), std::move(request.on_progress), std::move(done)});
}

std::int64_t PrefillTask::bytes_with(PrefillRecords records) const {
  const std::int64_t before = count_of(core_.facts.ingest_prefix) + count_of(left_context_);
  std::int64_t rows = before + num_tokens();
  if (records == PrefillRecords::kRequested) rows += rows_behind(core_, num_tokens(), before);
  return (rows + kPageTokens - 1) / kPageTokens * core_.pool->format().page_bytes() *
         core_.facts.shape.num_layers;
}

PrefillRecords PrefillTask::records() const {
  const std::int64_t budget = core_.pool->max_bytes();
  return budget > 0 && bytes_with(PrefillRecords::kRequested) > budget ? PrefillRecords::kAlways
                                                                       : PrefillRecords::kRequested;
}

bool PrefillTask::continues(const PrefilledRows& rows) const {
  return !left_context_.empty() && rows.ids.size() <= left_context_.size() &&
         std::ranges::equal(rows.ids, std::span(left_context_).first(rows.ids.size()));
}

bool PrefillTask::join(PrefillRequest& request, Done& done) {
  std::lock_guard lock(mu_);
  if (completed_) return false;
  Waiter& waiter = waiters_.emplace_back();
  waiter.cancelled = std::move(request.cancelled);
  waiter.on_progress = std::move(request.on_progress);
  waiter.done = std::move(done);
  return true;
}

bool PrefillTask::completed() const {
  std::lock_guard lock(mu_);
  return completed_;
}

/// Drops cancelled callers; returns false if nobody is left.
bool PrefillTask::drop_cancelled() {
  std::vector<Waiter> gone;
  bool left = false;
  {
    std::lock_guard lock(mu_);
    const auto stays = [](const Waiter& w) { return !w.cancelled.stop_requested(); };
    const auto middle = std::stable_partition(waiters_.begin(), waiters_.end(), stays);
    std::move(middle, waiters_.end(), std::back_inserter(gone));
    waiters_.erase(middle, waiters_.end());
    left = !waiters_.empty();
    completed_ = completed_ || !left;
  }
  if (!left) draft_unwanted_->store(true);
  for (const Waiter& w : gone) tell(w.done, Status::cancelled("the prefill was cancelled"));
  return left;
}

PrefillResult PrefillTask::result_so_far() const {
  const KvLayout layout = kv_layout(core_.facts, count_of(token_ids_));
  PrefillResult r;
  r.key = key_;
  r.tokens = layout.num_tokens();
  r.blocks = layout.num_blocks();
  r.kv_bytes = layout.total_bytes();
  return r;
}

bool PrefillTask::step(const PieceLimit& limit) {
  if (!drop_cancelled()) {
    prefill_.reset();
    return true;
  }
  if (!prefill_) {
    ask_draft();
    if (auto segment = core_.store->find_segment(key_)) {
      PrefillResult r = result_so_far();
      r.sketch_bytes = static_cast<std::int64_t>((*segment)->sketch_bytes);
      r.segment = std::move(*segment);
      r.already_cached = true;
      complete(r);
      return true;
    }
    prefill_ = std::make_unique<ContextPrefill>(core_, ContextTokens{token_ids_, left_context_},
                                                records(), std::move(rows_));
  }
  const Status status = prefill_->step(limit);
  if (!status.ok()) {
    fail(status);
    return true;
  }
  if (prefill_->tokens_done() > reported_tokens_) {
    reported_tokens_ = prefill_->tokens_done();
    // Only this thread adds or removes waiters before the hand-over.
    for (const Waiter& w : waiters_) {
      if (w.on_progress) w.on_progress(reported_tokens_);
    }
  }
  if (!prefill_->done()) return false;
  hand_over();
  return true;
}

Status PrefillTask::suspend() {
  rows_.reset();
  return prefill_ ? prefill_->cache().move_out() : Status();
}

Status PrefillTask::resume() { return prefill_ ? prefill_->cache().move_in() : Status(); }

void PrefillTask::hand_over() {
  prefill_ms_ = prefill_->compute_ms();
  KvWriter::Job job;
  job.kv = prefill_->take();
  rows_ = prefill_->take_rows();
  prefill_.reset();
  job.key = key_;
  job.tenant = tenant_;
  job.done = [self = shared_from_this(), waker = core_.waker](Result<WrittenContext> written) {
    self->complete(self->result_of(std::move(written)));
    waker->wake();
  };
  core_.writer->submit(std::move(job));
}

Result<PrefillResult> PrefillTask::result_of(Result<WrittenContext> written) const noexcept {
  if (!written.ok()) return written.status();
  try {
    PrefillResult r = result_so_far();
    r.segment = std::move(written->segment);
    r.already_cached = written->already_cached;
    r.sketch_bytes = written->sketch_bytes;
    r.prefill_ms = prefill_ms_;
    r.store_ms = written->ms;
    return r;
  } catch (...) {
    return exception_status("the result of a prefill");
  }
}

/// Asks the draft to read the context on its own thread, while this one computes.
void PrefillTask::ask_draft() {
  if (core_.draft == nullptr || !core_.draft->keeps_documents()) return;
  {
    std::lock_guard lock(mu_);
    draft_reads_ = true;
  }
  core_.draft->keep({token_ids_, tenant_, salt_digest_, draft_unwanted_},
                    [self = shared_from_this(), waker = core_.waker](Result<SegmentHandle> kept) {
                      self->draft_done(std::move(kept));
                      waker->wake();
                    });
}

void PrefillTask::draft_done(Result<SegmentHandle> kept) {
  if (!kept.ok() && kept.status().code() != Code::kCancelled &&
      kept.status().code() != Code::kUnavailable) {
    log_warning("the draft's KV of a document could not be kept",
                {{"reason", kept.status().to_string()}});
  }
  std::optional<Result<PrefillResult>> result;
  {
    std::lock_guard lock(mu_);
    draft_reads_ = false;
    if (kept.ok() && !completed_) companion_ = std::move(*kept);
    result.swap(result_);
  }
  if (result) complete(std::move(*result));
}

void PrefillTask::complete(Result<PrefillResult> result) {
  std::vector<Waiter> waiters;
  {
    std::lock_guard lock(mu_);
    if (result.ok() && draft_reads_) {
      result_ = std::move(result);
      return;
    }
    if (result.ok()) result->companion = std::move(companion_);
    completed_ = true;
    waiters.swap(waiters_);
  }
  if (!result.ok()) draft_unwanted_->store(true);
  for (const Waiter& w : waiters) tell(w.done, result);
}

/// The queue may know the task for a while, so that its pages are released here.
void PrefillTask::fail(const Status& status) {
  prefill_.reset();
  complete(status);
}

}  // namespace quire
