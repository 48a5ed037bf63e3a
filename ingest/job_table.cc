#include "ingest/job_table.h"

#include <algorithm>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "ingest/names.h"

namespace quire {
namespace {

constexpr std::chrono::seconds kRequeuePause{1};
/// Documents that wait while others have their room: each holds its text.
constexpr std::size_t kMostAside = 16;

}  // namespace

JobTable::JobTable(Store& store, const IngestOptions& options)
    : store_(store), options_(options), shared_(store.shared_jobs()) {}

JobTable::~JobTable() {
  begin_stop();
  finish_stop();
}

// -------------------------------------------------------------------------------------------------
// Queue

Status JobTable::admit(std::size_t items, std::uint64_t bytes) const {
  if (stopping_)
    return Status::unavailable("the service is stopping; try again on another replica or later");
  if (queued_items_ + items > options_.max_queued_documents) {
    return Status::exhausted("the ingest queue holds " + std::to_string(queued_items_) +
                             " documents, the limit is " +
                             std::to_string(options_.max_queued_documents) + "; try again later");
  }
  if (queued_items_ > 0 && queued_bytes_ + bytes > options_.max_queued_bytes) {
    return Status::exhausted("the ingest queue holds " + std::to_string(queued_bytes_) +
                             " bytes of text, the limit is " +
                             std::to_string(options_.max_queued_bytes) + "; try again later");
  }
  return {};
}

Result<JobSnapshot> JobTable::add(JobRecord record, std::vector<SavedPack> packs) {
  // So there are never more of them than calls at a time.
  if (const Status s = end_refused(); !s.ok()) return s.with_context("the job could not be saved");
  std::size_t items = 0;
  std::uint64_t bytes = 0;
  for (const ItemRecord& item : record.items) {
    if (!item.view.finished()) ++items, bytes += item.input_bytes;
  }
  auto job = std::make_shared<Job>();
  {
    const std::lock_guard lock(mu_);
    QUIRE_RETURN_IF_ERROR(admit(items, bytes));
    queued_items_ += items;  // space is reserved before the record is written
    queued_bytes_ += bytes;
    record.created_ms = options_.now_ms();
    record.id = last_id_ = make_job_id(record.created_ms, last_id_);
    record.num_packs = static_cast<std::uint32_t>(packs.size());
    adding_.insert(record.id);
  }
  Status written;
  if (shared_ != nullptr) {
    std::vector<NamedText> parts;
    for (std::uint32_t p = 0; p < packs.size(); ++p) {
      parts.push_back({input_record_name(record.id, p), packs[p].inputs});
      for (const auto& [index, text] : packs[p].texts)
        parts.push_back({input_text_name(record.id, index), text});
    }
    written = add_shared(record, parts);
  }
  std::uint32_t done = 0;
  for (; done < packs.size() && written.ok(); ++done) {
    std::vector<NamedText> texts;
    for (const auto& [index, text] : packs[done].texts)
      texts.push_back({input_text_name(record.id, index), text});
    // The record of the job, which is written last, makes all of it durable.
    written = store_.put_job_and_texts(input_record_name(record.id, done), packs[done].inputs,
                                       texts, Durable::kWithNext);
    packs[done] = {};
  }
  const bool asked = written.ok();  // the disk, for the record of the job
  if (asked) written = store_.put_job(job_record_name(record.id), encode_job(record));
  if (!written.ok()) {
    const std::string id = record.id;
    // It may be there, or come later, unless the name is that of another replica's job.
    const bool unknown = shared_ != nullptr && written.code() != Code::kFailedPrecondition;
    if (unknown) refuse(id);
    if (!asked || shared_ != nullptr) record.num_packs = done;
    if (asked && shared_ == nullptr) refuse_here(record);
    drop_inputs(record);
    const std::lock_guard lock(mu_);
    adding_.erase(id);
    queued_items_ -= items;
    queued_bytes_ -= bytes;
    return written.with_context("the job could not be saved");
  }
  job->settings = std::make_shared<const JobSettings>(record.settings);
  job->record = std::move(record);
  job->has_inputs = !packs.empty();
  std::vector<JobPtr> ended;
  {
    const std::lock_guard lock(mu_);
    queued_items_ -= items;  // enqueue() counts them again
    queued_bytes_ -= bytes;
    jobs_.emplace(job->record.id, job);
    adding_.erase(job->record.id);
    for (const ItemRecord& item : job->record.items)
      totals_.documents_failed += item.view.result == ItemResult::kFailed;
    enqueue(job);
    if (end_job_if_done(job)) ended.push_back(job);
  }
  conclude(ended);
  const std::lock_guard lock(mu_);
  return make_snapshot(*job, true);
}

void JobTable::enqueue(const JobPtr& job) {
  job->states.assign(job->record.items.size(), ItemState{});
  for (std::size_t i = 0; i < job->states.size(); ++i) {
    const ItemRecord& item = job->record.items[i];
    if (item.view.finished()) {
      job->tokens_before += static_cast<std::int64_t>(item.view.tokens);
      continue;
    }
    job->states[i].stage = Stage::kQueued;
    job->states[i].cancelled = std::stop_source();
    job->states[i].place = ++last_place_;
    ActiveKey& active = active_[{job->record.ns, item.view.id}];
    active.refs.push_back({job, i});
    offer(active);
    ++queued_items_;
    queued_bytes_ += item.input_bytes;
  }
}

/// Puts the first item of an id into the queue, unless one of them is at work.
void JobTable::offer(const ActiveKey& active) {
  if (active.busy || active.refs.empty()) return;
  const ItemRef& first = active.refs.front();
  queue_.emplace(first.job->states[first.item].place, first);
}

std::optional<Work> JobTable::next() {
  const CatalogStats catalog = store_.catalog_stats();
  if (catalog.shared && !catalog.up) return std::nullopt;
  const std::lock_guard lock(mu_);
  if (shared_ != nullptr && !synced_) return std::nullopt;
  if (std::chrono::steady_clock::now() < none_before_) return std::nullopt;
  if (stopping_ || halted_ ||
      in_flight_ - aside_ >= static_cast<std::size_t>(options_.max_documents_in_flight))
    return std::nullopt;
  if (queue_.empty()) return std::nullopt;
  const bool alone = queue_.begin()->second.job->attempts >= kAttemptsTogether;
  if (in_flight_ > aside_ && (alone || alone_.job)) return std::nullopt;
  const ItemRef first = queue_.extract(queue_.begin()).mapped();
  Job& job = *first.job;
  ItemState& state = job.states[first.item];
  const ItemRecord& item = job.record.items[first.item];
  active_[{job.record.ns, item.view.id}].busy = true;  // an id waits for its earlier items
  state.stage = Stage::kWorking;
  if (!job.begun) job.begun = std::chrono::steady_clock::now();
  if (job.record.status == JobStatus::kQueued) {
    job.record.status = JobStatus::kRunning;
    job.record.started_ms = options_.now_ms();
    job.share_due = shared_ != nullptr;
  }
  --queued_items_;
  queued_bytes_ -= item.input_bytes;
  ++in_flight_;
  if (alone) alone_ = first;
  Work work{job.record.id,
            job.record.ns,
            job.record.type,
            job.record.created_ms,
            item,
            job.settings,
            state.cancelled.get_token()};
  mark_progress(first.job);
  return work;
}

// -------------------------------------------------------------------------------------------------
// Reports of the worker

void JobTable::set_status(const Work& work, DocumentStatus status) {
  const std::lock_guard lock(mu_);
  const JobPtr job = find(work.ns, work.job_id);
  if (!job) return;
  JobItem& view = job->record.items[at(work.item.view.index)].view;
  if (view.finished()) return;  // cancelled
  view.status = status;
  mark_progress(job);
}

void JobTable::set_tokens_total(const Work& work, std::uint64_t tokens) {
  const std::lock_guard lock(mu_);
  if (const JobPtr job = find(work.ns, work.job_id))
    job->states[at(work.item.view.index)].tokens_total = tokens;
}

void JobTable::set_tokens_done(const Work& work, std::uint64_t tokens) {
  const std::lock_guard lock(mu_);
  const JobPtr job = find(work.ns, work.job_id);
  if (!job) return;
  job->states[at(work.item.view.index)].tokens_done = tokens;
  mark_progress(job);
}

bool JobTable::begin_commit(const Work& work) {
  std::unique_lock lock(mu_);
  const Key key{work.ns, work.item.view.id};
  changed_.wait(lock, [&] { return !commit_holds_.contains(key); });
  if (work.cancelled.stop_requested()) return false;
  const JobPtr job = find(work.ns, work.job_id);
  if (!job) return false;
  job->states[at(work.item.view.index)].stage = Stage::kCommitting;
  return true;
}

void JobTable::finish(const Work& work, ItemOutcome outcome) {
  std::vector<JobPtr> ended;
  JobPtr forgotten;
  {
    const std::lock_guard lock(mu_);
    const JobPtr job = find_work(work);
    if (!job) return;
    const auto i = to_size(work.item.view.index);
    // The caller was already told that it is cancelled.
    if (job->record.items[i].view.finished()) outcome = cancelled_outcome();
    if (job->lost) {
      job->states[i].stage = Stage::kDone;
    } else {
      end_item(job, i, std::move(outcome));
    }
    release_key(job, i, /*was_working=*/true);
    if (job->lost && forget_if_idle(job)) forgotten = job;
    if (end_job_if_done(job)) ended.push_back(job);
  }
  changed_.notify_all();
  if (forgotten) drop_records(forgotten);
  conclude(ended);
}

bool JobTable::requeue(const Work& work) {
  {
    const std::lock_guard lock(mu_);
    const JobPtr job = find(work.ns, work.job_id);
    const auto i = to_size(work.item.view.index);
    if (!job || job->record.items[i].view.finished()) return false;
    ItemState& state = job->states[i];
    state = {Stage::kQueued, 0, 0, std::stop_source(), state.place};
    job->record.items[i].view.status = DocumentStatus::kQueued;
    ActiveKey& active = active_[{job->record.ns, work.item.view.id}];
    active.busy = false;
    offer(active);
    --in_flight_;
    if (alone_.job == job && alone_.item == i) alone_ = {};
    ++queued_items_;
    queued_bytes_ += work.item.input_bytes;
    none_before_ = std::chrono::steady_clock::now() + kRequeuePause;
  }
  changed_.notify_all();
  return true;
}

bool JobTable::set_aside() {
  const std::lock_guard lock(mu_);
  if (aside_ >= kMostAside) return false;
  ++aside_;
  return true;
}

bool JobTable::take_back() {
  const std::lock_guard lock(mu_);
  if (!stopping_ &&
      in_flight_ - aside_ >= static_cast<std::size_t>(options_.max_documents_in_flight))
    return false;
  --aside_;
  return true;
}

void JobTable::take_back_to_end() {
  const std::lock_guard lock(mu_);
  --aside_;
}

void JobTable::halt() {
  const std::lock_guard lock(mu_);
  halted_ = true;
}

ItemOutcome JobTable::cancelled_outcome() {
  ItemOutcome o;
  o.result = ItemResult::kCancelled;
  return o;
}

void JobTable::cancel_item(const JobPtr& job, std::size_t i) {
  ItemState& state = job->states[i];
  if (state.stage == Stage::kQueued) {
    end_item(job, i, cancelled_outcome());
    release_key(job, i, /*was_working=*/false);
  } else if (state.stage == Stage::kWorking) {
    // It is reported and saved as cancelled from now on; the worker ends it at its next step.
    state.cancelled.request_stop();
    job->record.items[i].view.result = ItemResult::kCancelled;
    job->record.items[i].view.status = DocumentStatus::kFailed;
    set_unsaved(job);
  }
}

void JobTable::apply(const ItemOutcome& outcome, ItemRecord* item) {
  item->view.result = outcome.result;
  item->view.status = outcome.status;
  item->view.tokens = outcome.tokens;
  item->view.blocks = outcome.blocks;
  item->view.error = outcome.error;
  item->written_tokens = outcome.written_tokens;
  item->deduplicated_tokens = outcome.deduplicated_tokens;
}

void JobTable::set_unsaved(const JobPtr& job) {
  job->dirty = true;
  unsaved_.emplace(job->record.id, job);
}

void JobTable::end_item(const JobPtr& job, std::size_t i, ItemOutcome outcome) {
  ItemState& state = job->states[i];
  ItemRecord& item = job->record.items[i];
  if (state.stage == Stage::kQueued) {
    --queued_items_;
    queued_bytes_ -= item.input_bytes;
  }
  state.stage = Stage::kDone;
  apply(outcome, &item);
  set_unsaved(job);
  if (outcome.result == ItemResult::kFailed) {
    ++totals_.documents_failed;
  } else if (outcome.result == ItemResult::kCancelled) {
    ++totals_.documents_cancelled;
  } else {
    ++totals_.documents_ready;
    totals_.tokens += static_cast<std::int64_t>(outcome.tokens);
  }
  totals_.cache_write_tokens += static_cast<std::int64_t>(outcome.written_tokens);
  totals_.deduplicated_tokens += static_cast<std::int64_t>(outcome.deduplicated_tokens);
  mark_progress(job);
}

void JobTable::release_key(const JobPtr& job, std::size_t i, bool was_working) {
  const Key key{job->record.ns, job->record.items[i].view.id};
  if (was_working) {
    --in_flight_;
    if (alone_.job == job && alone_.item == i) alone_ = {};
  }
  const auto it = active_.find(key);
  if (it == active_.end()) return;
  auto& refs = it->second.refs;
  const auto at = std::ranges::find_if(
      refs, [&](const ItemRef& r) { return r.job == job && r.item == i; });
  if (at != refs.end()) refs.erase(at);
  queue_.erase(job->states[i].place);
  if (was_working) it->second.busy = false;
  offer(it->second);
  if (!refs.empty()) return;
  active_.erase(it);
  std::erase_if(waiters_, [&](const std::weak_ptr<Waiter>& weak) {
    const auto waiter = weak.lock();
    if (!waiter) return true;
    waiter->keys.erase(key);
    if (!waiter->keys.empty()) return false;
    settled_.push_back(waiter);
    return true;
  });
  if (!settled_.empty()) notify_.notify_all();
}

JobStatus JobTable::end_status(const JobRecord& record) {
  std::size_t failed = 0, cancelled = 0;
  for (const ItemRecord& item : record.items) {
    failed += item.view.result == ItemResult::kFailed;
    cancelled += item.view.result == ItemResult::kCancelled;
  }
  const std::size_t completed = record.items.size() - failed - cancelled;
  if (cancelled > 0 && (record.cancelled || completed + failed == 0)) return JobStatus::kCancelled;
  if (completed == 0) return JobStatus::kFailed;
  return failed + cancelled > 0 ? JobStatus::kPartial : JobStatus::kSucceeded;
}

bool JobTable::end_job_if_done(const JobPtr& job) {
  JobRecord& record = job->record;
  if (job->lost || record.status >= JobStatus::kSucceeded) return false;
  for (const ItemState& state : job->states)
    if (state.stage != Stage::kDone) return false;
  record.status = end_status(record);
  record.finished_ms = options_.now_ms();
  if (record.started_ms == 0) record.started_ms = record.finished_ms;
  job->ended = std::chrono::steady_clock::now();
  set_unsaved(job);
  job->summary = make_snapshot(*job, false);
  return true;
}

void JobTable::conclude(const std::vector<JobPtr>& ended) {
  for (const JobPtr& job : ended) {
    if (const Status s = save(job); !s.ok()) {
      log_error("a finished job could not be saved; it is tried again",
                {{"job_id", job->record.id}, {"error", s.to_string()}});
    } else {
      drop_inputs_once_saved(job);
    }
    {
      const std::lock_guard lock(mu_);
      ended_.push_back(job);
      notify_.notify_all();
    }
    // Whoever waits for the job here has its answer by now.
    if (const Status s = share(job, /*soon=*/true); !s.ok() && !is_job_taken_over(s))
      log_warning("the end of a job could not be told to the other replicas; it is tried again",
                  {{"job_id", job->record.id}, {"error", s.to_string()}});
  }
}

/// Drops the inputs of a job that has ended and is saved.
void JobTable::drop_inputs_once_saved(const JobPtr& job) {
  JobRecord record;
  {
    const std::lock_guard lock(mu_);
    if (job->dirty || job->record.status < JobStatus::kSucceeded || !job->has_inputs) return;
    job->has_inputs = false;
    record.id = job->record.id;
    record.num_packs = job->record.num_packs;
    record.items = job->record.items;
  }
  drop_inputs(record);
}

void JobTable::drop_inputs(const JobRecord& record) {
  if (record.num_packs == 0) return;
  std::vector<std::string> texts;
  for (const ItemRecord& item : record.items)
    texts.push_back(input_text_name(record.id, item.view.index));
  // A start drops what it finds of a job that has ended.
  if (const Status s = store_.delete_waiting_texts(texts, Durable::kWithNext); !s.ok()) {
    log_warning("texts that no document took could not be removed; the next start removes them",
                {{"job_id", record.id}, {"error", s.to_string()}});
  }
  for (std::uint32_t p = 0; p < record.num_packs; ++p) {
    const Status s = store_.delete_job(input_record_name(record.id, p), Durable::kWithNext);
    if (!s.ok() && s.code() != Code::kNotFound) {
      log_warning("an input record could not be removed; the next start removes it",
                  {{"job_id", record.id}, {"error", s.to_string()}});
    }
  }
}

/// Remembers a job without shared jobs that may be on disk although its caller was refused.
void JobTable::refuse_here(JobRecord record) {
  record.cancelled = true;
  record.status = JobStatus::kCancelled;
  record.finished_ms = record.started_ms = options_.now_ms();
  for (ItemRecord& item : record.items)
    if (!item.view.finished()) apply(cancelled_outcome(), &item);
  const std::lock_guard lock(mu_);
  std::string id = record.id;
  refused_here_.emplace(std::move(id), std::move(record));
}

/// Writes refused jobs as cancelled and removes them, behind writes that failed and may be in a
/// log. On a full disk they are removed alone, which takes no room.
Status JobTable::end_refused() {
  std::vector<JobRecord> refused;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [id, record] : refused_here_) refused.push_back(record);
  }
  for (const JobRecord& record : refused) {
    const std::string name = job_record_name(record.id);
    const Status put = store_.put_job(name, encode_job(record));
    if (!put.ok() && put.code() != Code::kResourceExhausted) return put;
    drop_inputs(record);
    // If this fails after the record was written, the next start shows the job as cancelled.
    const Status gone = store_.delete_job(name, put.ok() ? Durable::kWithNext : Durable::kNow);
    if (!put.ok() && !gone.ok() && gone.code() != Code::kNotFound) return put;
    const std::lock_guard lock(mu_);
    refused_here_.erase(record.id);
  }
  return {};
}

Status JobTable::settle(std::string_view ns, std::string_view id, std::string_view except) {
  const auto ended = [&](const ItemRecord& i) { return i.view.id == id && i.view.finished(); };
  const auto concerns = [&](const JobRecord& record) {
    return record.ns == ns && std::ranges::any_of(record.items, ended);
  };
  std::vector<JobPtr> jobs;
  bool refused = false;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [name, job] : unsaved_)
      if (name != except && concerns(job->record)) jobs.push_back(job);
    refused = std::ranges::any_of(refused_here_, [&](const auto& e) { return concerns(e.second); });
  }
  if (refused) QUIRE_RETURN_IF_ERROR(end_refused());
  for (const JobPtr& job : jobs) {
    QUIRE_RETURN_IF_ERROR(save(job));
    drop_inputs_once_saved(job);
  }
  return {};
}

Status JobTable::save(const JobPtr& job, bool skip_held) {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return !job->persisting && (skip_held || job->save_holds == 0); });
  if (!job->dirty || job->save_holds > 0 || job->lost) return {};
  job->persisting = true;
  job->dirty = false;
  const std::string name = job_record_name(job->record.id), bytes = encode_job(job->record);
  lock.unlock();
  Status s = store_.put_job(name, bytes);
  lock.lock();
  job->persisting = false;
  if (!s.ok()) job->dirty = true;
  if (!job->dirty) unsaved_.erase(job->record.id);
  if (s.ok() && shared_ != nullptr) job->share_due = true;
  lock.unlock();
  changed_.notify_all();
  return s;
}

Status JobTable::flush(bool skip_held) {
  std::vector<JobPtr> dirty;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [id, job] : jobs_) {
      if (job->dirty || job->persisting || job->share_due) dirty.push_back(job);
    }
  }
  Status first = end_refused();
  for (const JobPtr& job : dirty) {
    Status s = save(job, skip_held);
    if (s.ok()) {
      drop_inputs_once_saved(job);
      s = share(job, /*soon=*/stopping());
      if (is_job_taken_over(s) || catalog_is_away(s)) s = {};  // sync_shared() sees to it
    }
    if (!s.ok() && first.ok()) first = s;
  }
  return first;
}

void JobTable::fill(IngestStats& stats) const {
  const std::lock_guard lock(mu_);
  stats = totals_;
  stats.documents_waiting = static_cast<std::int64_t>(queued_items_);
  stats.bytes_waiting = queued_bytes_;
  stats.documents_in_flight = static_cast<std::int64_t>(in_flight_);
  stats.accepting = !stopping_;
  stats.jobs_refused = static_cast<std::int64_t>(refused_jobs_.size() + refused_here_.size());
  for (const auto& [id, job] : jobs_) {
    if (job->lost) continue;
    stats.jobs_queued += job->record.status == JobStatus::kQueued;
    stats.jobs_running += job->record.status == JobStatus::kRunning;
  }
}

bool JobTable::has_unsaved(std::string_view ns, std::string_view id) const {
  const auto concerns = [&](const JobRecord& record) {
    return record.ns == ns && std::ranges::any_of(record.items, [&](const ItemRecord& item) {
             return item.view.id == id;
           });
  };
  const std::lock_guard lock(mu_);
  return std::ranges::any_of(jobs_,
                             [&](const auto& entry) {
                               const Job& job = *entry.second;
                               return (job.dirty || job.persisting) && concerns(job.record);
                             }) ||
         std::ranges::any_of(refused_here_, [&](const auto& e) { return concerns(e.second); });
}

bool JobTable::knows(std::string_view job_id) const {
  const std::lock_guard lock(mu_);
  return jobs_.contains(job_id);
}

bool JobTable::stopping() const {
  const std::lock_guard lock(mu_);
  return stopping_;
}

void JobTable::begin_stop() {
  const std::lock_guard lock(mu_);
  stopping_ = true;
  for (auto& [key, active] : active_) {
    if (!active.busy) continue;
    for (const ItemRef& ref : active.refs) {
      ItemState& state = ref.job->states[ref.item];
      if (state.stage == Stage::kWorking) state.cancelled.request_stop();
    }
  }
}

void JobTable::finish_stop() {
  {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [&] { return in_flight_ == 0; });
  }
  if (const Status s = flush(); !s.ok())
    log_error("jobs could not be saved at the end", {{"error", s.to_string()}});
  note_stop();
  end_keep_alive();
  bool leaves = false;
  {
    const std::lock_guard lock(mu_);
    leaves = std::exchange(named_, false);
  }
  // Others go on with its jobs at once. If they do not hear this, they do so after the lease.
  if (leaves) (void)shared_->leave();
  {
    const std::lock_guard lock(mu_);
    notifier_stop_ = true;
  }
  notify_.notify_all();
  if (notifier_.joinable()) notifier_.join();
}

}  // namespace quire
