// Jobs that are shared with other replicas: keeping and handing over, and what callers see of jobs
// that another replica has.
#include <algorithm>
#include <thread>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/format/byte_io.h"
#include "cachestore/format/catalog_keys.h"
#include "ingest/job_table.h"

namespace quire {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kShareEvery{5};  // of a job that has not ended
constexpr std::chrono::seconds kSyncEvery{1};   // while there are jobs
constexpr int kSyncsPerLease = 4;               // while there are none
/// A replica whose upkeep has not come by for so long hangs, and its jobs are for others.
constexpr std::chrono::minutes kLongestUpkeep{5};
constexpr std::chrono::milliseconds kLeastPause{10};
constexpr std::chrono::hours kPurgeEvery{1};
/// Posts that failed and whose jobs are called off where the catalog has them.
constexpr std::size_t kMostRefused = 10'000;
/// The database ends a lost transaction after the time limit of the catalog; this is far more.
constexpr int kRefusedTimeouts = 12;
/// How long a job that cannot go on here is left to others.
constexpr std::chrono::seconds kSetAside{30};
constexpr std::size_t kClaimedAtOnce = 32;
constexpr std::size_t kPartsAtOnce = 16;
constexpr std::size_t kOpenJobsLookedAt = 8;  // for a document that is not here
/// How long a caller waits for another replica to cancel a job.
constexpr std::chrono::milliseconds kCancelWait{5000}, kCancelPause{100};

SharedJob shared_form(const JobRecord& record) {
  SharedJob job;
  job.id = record.id;
  job.ns = record.ns;
  job.status = static_cast<std::uint64_t>(record.status);
  job.ended = record.status >= JobStatus::kSucceeded;
  job.record = encode_job(record);
  return job;
}

}  // namespace

// -------------------------------------------------------------------------------------------------
// This replica's jobs

Status JobTable::add_shared(const JobRecord& record, std::span<const NamedText> parts) {
  std::vector<SharedJobPart> views;
  for (const NamedText& part : parts) views.push_back({part.name, part.text});
  return shared_->add(shared_form(record), views);
}

std::optional<JobFence> JobTable::fence(const Work& work, const ItemOutcome& outcome) const {
  if (shared_ == nullptr) return std::nullopt;
  JobRecord one;
  one.id = work.job_id;
  one.ns = work.ns;
  apply(outcome, &one.items.emplace_back(work.item));
  return JobFence{work.job_id, to_size(work.item.view.index), encode_job(one),
                  work.type == JobType::kWarm};
}

Status JobTable::share(const JobPtr& job, bool soon) {
  std::unique_lock lock(mu_);
  changed_.wait(lock, [&] { return !job->sharing; });
  const bool ended = job->record.status >= JobStatus::kSucceeded;
  if (!job->share_due || job->lost) return {};
  if (!ended && !soon && SteadyClock::now() - job->shared_at < kShareEvery) return {};
  job->sharing = true;
  job->share_due = false;
  job->shared_at = SteadyClock::now();
  const SharedJob now = shared_form(job->record);
  lock.unlock();
  const Status s = shared_->save(now);
  lock.lock();
  job->sharing = false;
  if (is_job_taken_over(s) && !now.ended) {
    lose(job);
  } else if (!s.ok() && !is_job_taken_over(s)) {
    job->share_due = true;
  }
  const bool idle = job->lost && forget_if_idle(job);
  lock.unlock();
  changed_.notify_all();
  if (idle) drop_records(job);
  return s;
}

void JobTable::lose(const JobPtr& job) {
  if (job->lost) return;
  log_warning("another replica has taken over a job; nothing more is done for it here",
              {{"job_id", job->record.id}});
  for (std::size_t i = 0; i < job->states.size(); ++i) {
    ItemState& state = job->states[i];
    if (state.stage == Stage::kWorking) state.cancelled.request_stop();
    if (state.stage != Stage::kQueued) continue;
    state.stage = Stage::kDone;
    --queued_items_;
    queued_bytes_ -= job->record.items[i].input_bytes;
    release_key(job, i, /*was_working=*/false);
  }
  job->lost = true;
  job->dirty = job->share_due = false;
  unsaved_.erase(job->record.id);
  for (const auto& listener : job->listeners)
    foreign_.push_back({job->record.ns, job->record.id, listener});
  job->listeners.clear();
}

void JobTable::lose(const Work& work) {
  const std::lock_guard lock(mu_);
  if (const JobPtr job = find(work.ns, work.job_id)) lose(job);
}

bool JobTable::forget_if_idle(const JobPtr& job) {
  const bool idle = std::ranges::all_of(
      job->states, [](const ItemState& state) { return state.stage == Stage::kDone; });
  if (!idle || job->persisting || job->sharing || jobs_.erase(job->record.id) == 0) return false;
  dropping_.insert(job->record.id);
  return true;
}

void JobTable::drop_records(const JobPtr& job) {
  drop_inputs(job->record);
  const Status s = store_.delete_job(job_record_name(job->record.id));
  if (!s.ok() && s.code() != Code::kNotFound)
    log_warning("the record of a job that another replica has could not be removed",
                {{"job_id", job->record.id}, {"error", s.to_string()}});
  const std::lock_guard lock(mu_);
  dropping_.erase(job->record.id);
}

// -------------------------------------------------------------------------------------------------
// Keeping and handing over

Status JobTable::take_name() {
  const auto earlier = store_.get_meta(kReplicaRecord);
  if (!earlier.ok() && earlier.code() != Code::kNotFound) return earlier.status();
  if (earlier.ok()) {
    QUIRE_RETURN_IF_ERROR(shared_->succeed(*earlier));
  } else {
    // Jobs from before the catalog was shared.
    std::vector<JobRecord> records;
    {
      const std::lock_guard lock(mu_);
      for (const auto& [id, job] : jobs_)
        if (job->record.status < JobStatus::kSucceeded) records.push_back(job->record);
    }
    for (const JobRecord& record : records) {
      std::vector<std::string> values;
      std::vector<NamedText> parts;
      values.reserve(record.num_packs + record.items.size());  // parts see them
      const auto enter = [&](std::string name, Result<std::string> value) {
        if (!value.ok()) return;
        values.push_back(std::move(*value));
        parts.push_back({std::move(name), values.back()});
      };
      for (std::uint32_t p = 0; p < record.num_packs; ++p) {
        std::string name = input_record_name(record.id, p);
        auto inputs = store_.get_job(name);
        enter(std::move(name), std::move(inputs));
      }
      for (const ItemRecord& item : record.items) {
        if (item.view.finished()) continue;
        std::string name = input_text_name(record.id, item.view.index);
        auto text = store_.get_waiting_text(name);
        enter(std::move(name), std::move(text));
      }
      const Status added = add_shared(record, parts);
      if (added.code() != Code::kFailedPrecondition) QUIRE_RETURN_IF_ERROR(added);
    }
  }
  QUIRE_RETURN_IF_ERROR(store_.put_meta(kReplicaRecord, shared_->replica()));
  const std::lock_guard lock(mu_);
  named_ = true;
  return {};
}

Status JobTable::sync_shared() {
  const std::unique_lock turn(sync_mu_, std::try_to_lock);
  if (!turn.owns_lock()) return {};  // another thread is at it
  if (shared_ == nullptr) {
    // What is done here from now on is not shared: with a catalog again, all of it is new there.
    if (std::exchange(stands_alone_, true) || !store_.get_meta(kReplicaRecord).ok()) return {};
    return store_.delete_meta(kReplicaRecord);
  }
  last_sync_ = SteadyClock::now();
  QUIRE_RETURN_IF_ERROR(tell_foreign());
  const auto now = SteadyClock::now();
  if (now < next_sync_) return {};
  std::set<std::string, std::less<>> here;
  std::size_t room = 0;
  bool named = false;
  {
    const std::lock_guard lock(mu_);
    if (stopping_) return {};
    named = named_;
    for (const auto& [id, job] : jobs_)
      if (!job->lost && job->record.status < JobStatus::kSucceeded) here.insert(id);
    if (2 * queued_items_ < options_.max_queued_documents) room = kClaimedAtOnce;
  }
  if (!named) {
    if (const Status s = take_name(); !s.ok()) {
      if (catalog_is_away(s)) return s;
      // The next start would not know its jobs again, so none is taken until then.
      next_sync_ = now + kSyncEvery;
      if (!std::exchange(name_failure_logged_, true))
        log_error("this replica cannot say which it is, and takes no documents until it can",
                  {{"error", s.to_string()}});
      return {};
    }
    name_failure_logged_ = false;
  }
  std::vector<std::string> except(unreadable_.begin(), unreadable_.end());
  std::erase_if(set_aside_, [&](const auto& job) { return now >= job.second; });
  for (const auto& [id, until] : set_aside_) except.push_back(id);
  const auto asked = SteadyClock::now();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<OwnJob> own, shared_->renew(room, except));
  for (const OwnJob& job : own) {
    bool known = false, ended = false, refused = false;
    {
      const std::lock_guard lock(mu_);
      refused = refused_jobs_.contains(job.id);
      const auto it = jobs_.find(job.id);
      // What is left of it from before goes first, and the next time it is adopted.
      known = it != jobs_.end() || adding_.contains(job.id) || dropping_.contains(job.id);
      if (it != jobs_.end()) {
        Job& local = *it->second;
        local.attempts = job.attempts;
        ended = !local.lost && local.record.status >= JobStatus::kSucceeded && !local.dirty &&
                !local.persisting && !local.share_due && !local.sharing;
      }
    }
    if (refused) {
      QUIRE_RETURN_IF_ERROR(call_off(job.id));
    } else if (job.attempts >= kMostAttempts && !ended) {
      QUIRE_RETURN_IF_ERROR(give_up(job.id));
    } else if (!known) {
      if (const Status s = adopt(job); !s.ok()) {
        if (catalog_is_away(s)) return s;
        log_error("a job that another process left cannot go on here; it is left to others",
                  {{"job_id", job.id}, {"error", s.to_string()}});
        set_aside_[job.id] = now + kSetAside;
        QUIRE_RETURN_IF_ERROR(shared_->release(job.id));
      }
    } else if (ended) {  // it was saved here, and the service died before it told that
      const auto record = store_.get_job(job_record_name(job.id));
      const auto decoded = record.ok() ? decode_job(*record) : record.status();
      if (decoded.ok()) QUIRE_RETURN_IF_ERROR(shared_->save(shared_form(*decoded)));
    } else if (job.cancel && here.contains(job.id)) {
      std::string ns;
      {
        const std::lock_guard lock(mu_);
        if (const auto it = jobs_.find(job.id); it != jobs_.end()) ns = it->second->record.ns;
      }
      if (!ns.empty()) (void)cancel_job(ns, job.id);
    }
    here.erase(job.id);
  }
  std::vector<JobPtr> forgotten;
  {
    const std::lock_guard lock(mu_);
    for (const std::string& id : here) {
      const auto it = jobs_.find(id);
      if (it == jobs_.end()) continue;
      if (it->second->record.status < JobStatus::kSucceeded) lose(it->second);
    }
    std::vector<JobPtr> lost;
    for (const auto& [id, job] : jobs_)
      if (job->lost) lost.push_back(job);
    for (const JobPtr& job : lost)
      if (forget_if_idle(job)) forgotten.push_back(job);
    synced_ = true;
    const bool busy = std::ranges::any_of(jobs_, [](const auto& entry) {
      return entry.second->record.status < JobStatus::kSucceeded;
    });
    const std::chrono::milliseconds idle = store_.options().catalog.job_lease / kSyncsPerLease;
    next_sync_ = now + (busy ? std::min<std::chrono::milliseconds>(kSyncEvery, idle) : idle);
  }
  for (const JobPtr& job : forgotten) drop_records(job);
  forget_refused(asked);  // those that are there were called off above
  if (now >= next_purge_) {
    next_purge_ = now + kPurgeEvery;
    QUIRE_RETURN_IF_ERROR(shared_->purge(options_.job_retention_ms));
  }
  return {};
}

/// Says again and again that this replica is alive. The upkeep does so, too, but it may have much
/// else to do, and over a slow network each of its steps takes long. Others would take jobs that
/// are worked on here, and repeat requests that run.
void JobTable::keep_alive() {
  const auto pause = std::max<std::chrono::milliseconds>(
      store_.options().catalog.job_lease / kSyncsPerLease, kLeastPause);
  std::unique_lock lock(alive_mu_);
  while (!alive_wake_.wait_for(lock, pause, [this] { return alive_stop_; })) {
    lock.unlock();
    // A failure is the catalog's, which others tell of.
    if (SteadyClock::now() - last_sync_.load() < kLongestUpkeep) (void)shared_->beat();
    lock.lock();
  }
}

void JobTable::end_keep_alive() {
  {
    const std::lock_guard lock(alive_mu_);
    alive_stop_ = true;
  }
  alive_wake_.notify_all();
  if (alive_.joinable()) alive_.join();
}

Status JobTable::adopt(const OwnJob& own) {
  const std::string& id = own.id;
  QUIRE_ASSIGN_OR_RETURN(const SharedJob job, shared_->get(id));
  auto record = decode_job(job.record);
  if (!record.ok()) {
    unreadable_.insert(id);
    log_error("a job of the shared catalog cannot be read; a replica with a newer program may",
              {{"job_id", id}, {"error", record.status().to_string()}});
    return shared_->release(id);
  }
  QUIRE_RETURN_IF_ERROR(add_marks(&*record));
  record->cancelled = record->cancelled || job.cancel;
  QUIRE_RETURN_IF_ERROR(adopt_inputs(*record));
  QUIRE_RETURN_IF_ERROR(store_.put_job(job_record_name(id), encode_job(*record)));
  const auto left = std::ranges::count_if(
      record->items, [](const ItemRecord& item) { return !item.view.finished(); });
  log_info("a job that another process left goes on here",
           {{"job_id", id}, {"namespace", record->ns}, {"documents", std::to_string(left)}});
  const std::lock_guard lock(mu_);
  restore(std::move(*record));
  jobs_.at(id)->attempts = own.attempts;
  return {};
}

/// Ends what is left of a job that is in the catalog alone.
Status JobTable::end_unseen(const std::string& id, const ItemOutcome& outcome) {
  QUIRE_ASSIGN_OR_RETURN(const SharedJob job, shared_->get(id));
  auto record = decode_job(job.record);
  if (!record.ok()) {
    unreadable_.insert(id);
    return shared_->release(id);
  }
  QUIRE_RETURN_IF_ERROR(add_marks(&*record));
  for (ItemRecord& item : record->items)
    if (!item.view.finished()) apply(outcome, &item);
  record->status = end_status(*record);
  record->finished_ms = options_.now_ms();
  return shared_->save(shared_form(*record));
}

Status JobTable::add_marks(JobRecord* record) {
  QUIRE_ASSIGN_OR_RETURN(const auto items, shared_->items(record->id));
  for (const SharedJobItem& item : items) {
    const auto mark = decode_job(item.mark);
    if (mark.ok() && mark->items.size() == 1 && item.item < record->items.size())
      record->items[to_size(item.item)] = mark->items[0];
  }
  return {};
}

/// Remembers a job to call off, in place of the oldest where there are too many.
void JobTable::refuse(const std::string& id) {
  std::string lost;
  bool first = false;
  {
    const std::lock_guard lock(mu_);
    refused_jobs_.emplace(id, SteadyClock::now());
    if (refused_jobs_.size() > kMostRefused) {  // names of jobs begin with their time
      lost = refused_jobs_.begin()->first;
      refused_jobs_.erase(refused_jobs_.begin());
      first = !std::exchange(refused_lost_, true);
    }
  }
  if (first)
    log_warning(
        "too many posts failed while the shared catalog was away: if it has one of the first of "
        "them, the job is carried out although its caller was told that it was not taken",
        {{"job_id", lost}});
}

/// Forgets jobs that are not in the catalog, as was asked at this time, and cannot come any more.
void JobTable::forget_refused(SteadyClock::time_point asked) {
  const auto until = asked - kRefusedTimeouts * store_.options().catalog.timeout;
  const std::lock_guard lock(mu_);
  std::erase_if(refused_jobs_, [&](const auto& job) { return job.second < until; });
  if (refused_jobs_.empty()) refused_lost_ = false;
}

/// Ends a job that reached the catalog although its caller was told that it did not.
Status JobTable::call_off(const std::string& id) {
  QUIRE_ASSIGN_OR_RETURN(const SharedJob job, shared_->get(id));
  QUIRE_ASSIGN_OR_RETURN(JobRecord record, decode_job(job.record));
  record.status = JobStatus::kCancelled;
  record.cancelled = true;
  record.finished_ms = options_.now_ms();
  for (ItemRecord& item : record.items)
    if (!item.view.finished()) apply(cancelled_outcome(), &item);
  QUIRE_RETURN_IF_ERROR(shared_->save(shared_form(record)));
  const std::lock_guard lock(mu_);
  refused_jobs_.erase(id);
  return {};
}

/// Stores what the work on a job needs here, where it is found as if the job had been posted here.
Status JobTable::adopt_inputs(const JobRecord& record) {
  std::set<std::string, std::less<>> needed;
  for (const ItemRecord& item : record.items)
    if (!item.view.finished()) needed.insert(input_text_name(record.id, item.view.index));
  StoredJobPart inputs;  // texts are written with a record, whichever that is
  std::string after;
  for (bool more = record.num_packs > 0; more;) {
    QUIRE_ASSIGN_OR_RETURN(auto parts, shared_->parts(record.id, after, kPartsAtOnce));
    more = parts.size() == kPartsAtOnce;
    std::vector<NamedText> texts;
    for (StoredJobPart& part : parts) {
      after = part.name;
      if (part.name.starts_with(kInputPrefix)) {
        QUIRE_RETURN_IF_ERROR(store_.put_job(part.name, part.value));
        inputs = part;
      } else if (needed.contains(part.name)) {
        texts.push_back({part.name, part.value});
      }
    }
    if (!texts.empty() && !inputs.name.empty())
      QUIRE_RETURN_IF_ERROR(store_.put_job_and_texts(inputs.name, inputs.value, texts));
  }
  return {};
}

// -------------------------------------------------------------------------------------------------
// Jobs that another replica has

JobSnapshot JobTable::view_of(JobRecord record, bool with_results) const {
  Job job;
  job.record = std::move(record);
  job.states.assign(job.record.items.size(), ItemState{});
  for (std::size_t i = 0; i < job.states.size(); ++i) {
    const JobItem& view = job.record.items[i].view;
    if (!view.finished())
      job.states[i].stage = view.status == DocumentStatus::kQueued ? Stage::kQueued
                                                                   : Stage::kWorking;
  }
  return make_snapshot(job, with_results);
}

Result<JobSnapshot> JobTable::foreign_job(std::string_view ns, std::string_view job_id) {
  const Status none = Status::not_found("no job " + std::string(job_id));
  if (shared_ == nullptr) return none;
  QUIRE_ASSIGN_OR_RETURN(const SharedJob job, shared_->get(job_id));
  if (job.ns != ns) return none;
  QUIRE_ASSIGN_OR_RETURN(JobRecord record, merged(job));
  return view_of(std::move(record), /*with_results=*/true);
}

/// The replica that has a job tells of it only every few seconds, but marks items as done at once.
Result<JobRecord> JobTable::merged(const SharedJob& job) {
  QUIRE_ASSIGN_OR_RETURN(JobRecord record, decode_job(job.record));
  if (job.ended) return record;
  QUIRE_RETURN_IF_ERROR(add_marks(&record));
  const bool begun = std::ranges::any_of(
      record.items, [](const ItemRecord& item) { return item.view.finished(); });
  if (begun && record.status == JobStatus::kQueued) record.status = JobStatus::kRunning;
  return record;
}

Result<std::optional<PendingDocument>> JobTable::pending_elsewhere(std::string_view ns,
                                                                   std::string_view id,
                                                                   Which which) {
  if (shared_ == nullptr) return std::optional<PendingDocument>();
  ByteWriter named;  // as records have it, so that a part of an id is none
  named.text32(id);
  QUIRE_ASSIGN_OR_RETURN(const auto jobs, shared_->open_with(ns, named.take(), kOpenJobsLookedAt));
  for (const SharedJob& job : jobs) {
    {
      const std::lock_guard lock(mu_);
      if (find(ns, job.id)) continue;  // more is known of it here
    }
    auto record = merged(job);
    if (catalog_is_away(record.status())) return record.status();
    if (!record.ok() || (which == Which::kPosts && record->type != JobType::kIngest)) continue;
    for (auto item = record->items.rbegin(); item != record->items.rend(); ++item) {
      if (item->view.id != id || item->view.finished()) continue;
      PendingDocument p;
      p.job_id = record->id;
      p.id = id;
      p.content_hash = item->content_hash;
      p.job_created_ms = record->created_ms;
      p.index = item->view.index;
      p.input_bytes = item->input_bytes;
      p.type = record->type;
      p.status = item->view.status;
      p.settings = std::make_shared<const JobSettings>(record->settings);
      p.elsewhere = true;
      return std::optional(std::move(p));
    }
  }
  return std::optional<PendingDocument>();
}

Result<JobListPage> JobTable::list_all(std::string_view ns, const JobListOptions& options) {
  SharedJobList wanted;
  wanted.after = options.after;
  wanted.limit = options.limit + 1;
  wanted.descending = options.descending;
  if (options.status) wanted.status = static_cast<std::uint64_t>(*options.status);
  QUIRE_ASSIGN_OR_RETURN(const auto jobs, shared_->list(ns, wanted));
  JobListPage page;
  page.has_more = jobs.size() > options.limit;
  const auto here = [&](const SharedJob& job) -> std::optional<JobSnapshot> {
    const std::lock_guard lock(mu_);
    const JobPtr local = find(ns, job.id);
    return local ? std::optional(make_snapshot(*local, false)) : std::nullopt;
  };
  for (std::size_t i = 0; i < jobs.size() && i < options.limit; ++i) {
    std::optional<JobSnapshot> job = here(jobs[i]);  // which knows more
    if (!job) {
      auto record = merged(jobs[i]);
      if (catalog_is_away(record.status())) return record.status();
      if (!record.ok()) continue;  // of a newer program
      job = view_of(std::move(*record), /*with_results=*/false);
    }
    if (!options.status || job->status == *options.status) page.jobs.push_back(std::move(*job));
  }
  return page;
}

Result<JobSnapshot> JobTable::cancel_foreign(std::string_view ns, std::string_view job_id) {
  QUIRE_ASSIGN_OR_RETURN(JobSnapshot job, foreign_job(ns, job_id));
  if (job.finished()) return job;
  QUIRE_RETURN_IF_ERROR(shared_->cancel(ns, job_id));
  const auto until = SteadyClock::now() + kCancelWait;
  while (!job.finished() && SteadyClock::now() < until) {
    std::this_thread::sleep_for(kCancelPause);
    QUIRE_ASSIGN_OR_RETURN(job, this->job(ns, job_id));
  }
  return job;
}

Status JobTable::tell_foreign() {
  std::vector<Foreign> listeners;
  {
    const std::lock_guard lock(mu_);
    if (foreign_.empty()) return {};
    std::erase_if(foreign_, [](const Foreign& f) { return f.listener.expired(); });
    // A job may have come here meanwhile; its listeners then hear of it as of any.
    std::erase_if(foreign_, [&](const Foreign& f) {
      const JobPtr local = find(f.ns, f.job_id);
      if (!local || local->published) return false;
      local->listeners.push_back(f.listener);
      mark_progress(local);
      return true;
    });
    listeners = foreign_;
  }
  // Those who listen since the copy was taken have not been told, though their job may be over too.
  std::set<std::weak_ptr<ListenerBox>, std::owner_less<>> told;
  for (const Foreign& f : listeners) {
    const auto box = f.listener.lock();
    if (!box) continue;
    const auto now = job(f.ns, f.job_id);
    if (catalog_is_away(now.status())) return now.status();
    if (!now.ok()) {
      told.insert(f.listener);  // it ended long ago
      continue;
    }
    if (now->finished()) told.insert(f.listener);
    box->call(now->finished() ? JobEvent::kDone : JobEvent::kProgress, *now);
  }
  const std::lock_guard lock(mu_);
  std::erase_if(foreign_, [&](const Foreign& f) { return told.contains(f.listener); });
  return {};
}

}  // namespace quire
