// The view of jobs for callers: snapshots, lists, cancellation, listeners; and reading jobs back at
// start.
#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "ingest/job_table.h"
#include "ingest/names.h"

namespace quire {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(250);
constexpr double kBytesPerToken = 4;           // until the first document of a job is tokenised
constexpr std::size_t kJobsWithResults = 256;  // finished jobs whose results stay in memory

}  // namespace

JobTable::JobPtr JobTable::find(std::string_view ns, std::string_view job_id) const {
  const auto it = jobs_.find(job_id);
  return it != jobs_.end() && it->second->record.ns == ns && !it->second->lost ? it->second
                                                                               : nullptr;
}

JobTable::JobPtr JobTable::find_work(const Work& work) const {
  const auto it = jobs_.find(work.job_id);
  return it != jobs_.end() ? it->second : nullptr;
}

JobProgress JobTable::make_progress(const Job& job) const {
  JobProgress p;
  double known_tokens = 0, known_bytes = 0, unknown_bytes = 0;
  for (std::size_t i = 0; i < job.record.items.size(); ++i) {
    const ItemRecord& item = job.record.items[i];
    const ItemState& state = job.states[i];
    if (item.view.finished()) {
      p.tokens_done += static_cast<std::int64_t>(item.view.tokens);
      p.tokens_total += static_cast<std::int64_t>(item.view.tokens);
    } else if (state.tokens_total > 0) {
      p.tokens_done += static_cast<std::int64_t>(state.tokens_done);
      p.tokens_total += static_cast<std::int64_t>(state.tokens_total);
    } else {
      unknown_bytes += static_cast<double>(item.input_bytes);
      continue;
    }
    const auto tokens = static_cast<double>(item.view.finished() ? item.view.tokens
                                                                 : state.tokens_total);
    if (tokens > 0) known_tokens += tokens, known_bytes += static_cast<double>(item.input_bytes);
  }
  const double per_token = known_tokens > 0 && known_bytes > 0 ? known_bytes / known_tokens
                                                               : kBytesPerToken;
  p.tokens_total += static_cast<std::int64_t>(std::ceil(unknown_bytes / per_token));
  const bool over = job.record.status >= JobStatus::kSucceeded;
  p.ratio = over                 ? 1.0
            : p.tokens_total > 0 ? std::min(1.0, static_cast<double>(p.tokens_done) /
                                                     static_cast<double>(p.tokens_total))
                                 : 0.0;
  if (job.begun) {
    const auto until = job.ended.value_or(std::chrono::steady_clock::now());
    const double seconds = std::chrono::duration<double>(until - *job.begun).count();
    if (seconds > 0)
      p.tokens_per_second = static_cast<double>(p.tokens_done - job.tokens_before) / seconds;
  }
  if (over) {
    p.eta_ms = 0;
  } else if (p.tokens_per_second > 0) {
    p.eta_ms = static_cast<std::int64_t>(
        1000.0 * static_cast<double>(p.tokens_total - p.tokens_done) / p.tokens_per_second);
  }
  return p;
}

JobSnapshot JobTable::make_snapshot(const Job& job, bool with_results) const {
  if (job.spilled) return job.summary;
  JobSnapshot s;
  s.id = job.record.id;
  s.ns = job.record.ns;
  s.type = job.record.type;
  s.status = job.record.status;
  s.created_ms = job.record.created_ms;
  s.started_ms = job.record.started_ms;
  s.finished_ms = job.record.finished_ms;
  s.counts.total = count_of(job.record.items);
  for (std::size_t i = 0; i < job.record.items.size(); ++i) {
    const ItemRecord& item = job.record.items[i];
    switch (item.view.result) {
      case ItemResult::kPending:
        s.counts.in_progress += job.states[i].stage != Stage::kQueued;
        break;
      case ItemResult::kFailed:
        ++s.counts.failed;
        break;
      case ItemResult::kCancelled:
        ++s.counts.cancelled;
        break;
      default:
        ++s.counts.completed;
        s.usage.tokens += static_cast<std::int64_t>(item.view.tokens);
    }
    s.usage.cache_write_tokens += static_cast<std::int64_t>(item.written_tokens);
    s.usage.deduplicated_tokens += static_cast<std::int64_t>(item.deduplicated_tokens);
    if (with_results) s.results.push_back(item.view);
    if (s.status == JobStatus::kFailed && !s.error) s.error = item.view.error;
  }
  s.progress = make_progress(job);
  return s;
}

Result<JobSnapshot> JobTable::job(std::string_view ns, std::string_view job_id) {
  JobSnapshot summary;
  bool here = false;
  {
    const std::lock_guard lock(mu_);
    const JobPtr found = find(ns, job_id);
    here = found != nullptr;
    if (here && !found->spilled) return make_snapshot(*found, true);
    if (here) summary = found->summary;
  }
  if (!here) return foreign_job(ns, job_id);
  QUIRE_ASSIGN_OR_RETURN(const std::string bytes, store_.get_job(job_record_name(job_id)));
  QUIRE_ASSIGN_OR_RETURN(const JobRecord record, decode_job(bytes));
  for (const ItemRecord& item : record.items) summary.results.push_back(item.view);
  return summary;
}

Result<JobListPage> JobTable::list_jobs(std::string_view ns, const JobListOptions& options) {
  if (options.limit < 1 || options.limit > 100) return Status::invalid("limit", "must be 1 to 100");
  if (shared_ != nullptr) {
    auto all = list_all(ns, options);
    if (all.ok()) return all;
  }
  JobListPage page;
  const std::lock_guard lock(mu_);
  const auto take = [&](const JobPtr& job) {
    if (job->lost || job->record.ns != ns ||
        (options.status && job->record.status != *options.status))
      return true;
    if (page.jobs.size() == options.limit) {
      page.has_more = true;
      return false;
    }
    page.jobs.push_back(make_snapshot(*job, false));
    return true;
  };
  if (!options.descending) {
    for (auto it = jobs_.upper_bound(options.after); it != jobs_.end() && take(it->second); ++it) {
    }
  } else {
    auto it = options.after.empty() ? jobs_.end() : jobs_.lower_bound(options.after);
    while (it != jobs_.begin() && take((--it)->second)) {
    }
  }
  return page;
}

Result<JobSnapshot> JobTable::cancel_job(std::string_view ns, std::string_view job_id) {
  std::vector<JobPtr> ended;
  JobPtr found;
  if (shared_ != nullptr) {
    bool open = false;
    {
      const std::lock_guard lock(mu_);
      found = find(ns, job_id);
      open = found && found->record.status < JobStatus::kSucceeded;
    }
    // Who takes the job if this replica dies must know of it, too.
    if (open) QUIRE_RETURN_IF_ERROR(shared_->cancel(ns, job_id));
  }
  {
    const std::lock_guard lock(mu_);
    found = find(ns, job_id);
    if (found && found->record.status < JobStatus::kSucceeded) {
      found->record.cancelled = true;
      set_unsaved(found);
      for (std::size_t i = 0; i < found->states.size(); ++i) cancel_item(found, i);
      if (end_job_if_done(found)) ended.push_back(found);
    }
  }
  if (!found) return cancel_foreign(ns, job_id);
  if (ended.empty()) {
    QUIRE_RETURN_IF_ERROR(save(found));
  } else {
    conclude(ended);
  }
  return job(ns, job_id);
}

JobTable::CommitHold::CommitHold(JobTable& table, std::string_view ns, std::string_view id)
    : table_(table), key_(std::string(ns), std::string(id)) {
  std::unique_lock lock(table_.mu_);
  ++table_.commit_holds_[key_];
  // A commit under way takes the item's text, so the item could not be repeated after a crash. It
  // ends as what it did.
  table_.changed_.wait(lock, [this] {
    const auto it = table_.active_.find(key_);
    return it == table_.active_.end() ||
           std::ranges::none_of(it->second.refs, [](const ItemRef& ref) {
             return ref.job->states[ref.item].stage == Stage::kCommitting;
           });
  });
}

JobTable::CommitHold::~CommitHold() {
  {
    const std::lock_guard lock(table_.mu_);
    const auto it = table_.commit_holds_.find(key_);
    if (--it->second == 0) table_.commit_holds_.erase(it);
  }
  table_.changed_.notify_all();
}

JobTable::Cancelled JobTable::cancel_document(std::string_view ns, std::string_view id) {
  Cancelled out(*this);
  const std::lock_guard lock(mu_);
  const auto it = active_.find({std::string(ns), std::string(id)});
  if (it == active_.end()) return out;
  const std::deque<ItemRef> refs = it->second.refs;  // those cancelled are taken out of it
  for (const ItemRef& ref : refs) {
    if (ref.job->record.items[ref.item].view.finished()) continue;
    ++out.num_items_;
    // Equal documents without ids are two items of one job, which stand side by side here. It is
    // held once: release() would wait for a second hold of its own.
    if (out.held_.empty() || out.held_.back() != ref.job) {
      ++ref.job->save_holds;
      out.held_.push_back(ref.job);
    }
    cancel_item(ref.job, ref.item);
    if (end_job_if_done(ref.job)) out.ended_.push_back(ref.job);
  }
  return out;
}

void JobTable::Cancelled::release() {
  if (held_.empty()) return;
  // The oldest job is saved first. A crash in between then repeats the newest item at most, so the
  // document is what it would be without the deletion, and never something older.
  for (const JobPtr& job : held_) {
    {
      const std::lock_guard lock(table_.mu_);
      --job->save_holds;
    }
    table_.changed_.notify_all();
    // An error leaves the job to be saved by the next flush, which reports it.
    (void)table_.save(job);
  }
  held_.clear();
  table_.conclude(ended_);
}

Result<Subscription> JobTable::subscribe(std::string_view ns, std::string_view job_id,
                                         JobListener listener) {
  {
    const std::lock_guard lock(mu_);
    const JobPtr job = find(ns, job_id);
    if (job && !job->published) {
      auto box = std::make_shared<ListenerBox>(ListenerBox{std::move(listener)});
      job->listeners.push_back(box);
      mark_progress(job);
      return Subscription(std::move(box));
    }
  }
  QUIRE_ASSIGN_OR_RETURN(const JobSnapshot last, job(ns, job_id));
  if (last.finished()) {
    listener(JobEvent::kDone, last);
    return Subscription();
  }
  auto box = std::make_shared<ListenerBox>(ListenerBox{std::move(listener)});
  const std::lock_guard lock(mu_);
  foreign_.push_back({std::string(ns), std::string(job_id), box});
  return Subscription(std::move(box));
}

Subscription JobTable::when_synchronized(std::string_view ns, std::span<const std::string> ids,
                                         std::function<void()> done) {
  auto waiter = std::make_shared<Waiter>();
  {
    const std::lock_guard lock(mu_);
    for (const std::string& id : ids) {
      Key key{std::string(ns), id};
      if (active_.contains(key)) waiter->keys.insert(std::move(key));
    }
    if (!waiter->keys.empty()) {
      waiter->done = std::move(done);
      waiters_.push_back(waiter);
      return Subscription(std::move(waiter));
    }
  }
  done();
  return Subscription();
}

PendingDocument JobTable::describe(const ItemRef& ref) const {
  const ItemRecord& item = ref.job->record.items[ref.item];
  const ItemState& state = ref.job->states[ref.item];
  PendingDocument p{ref.job->record.id,
                    item.view.id,
                    item.content_hash,
                    ref.job->record.created_ms,
                    item.view.index,
                    item.pack,
                    item.input_bytes,
                    state.tokens_total,
                    ref.job->record.type,
                    item.view.status,
                    0,
                    ref.job->settings};
  if (state.tokens_total > 0)
    p.progress = std::min(
        1.0, static_cast<double>(state.tokens_done) / static_cast<double>(state.tokens_total));
  return p;
}

std::optional<PendingDocument> JobTable::pending(std::string_view ns, std::string_view id) {
  const std::lock_guard lock(mu_);
  const auto it = active_.find({std::string(ns), std::string(id)});
  return it == active_.end() ? std::nullopt : latest(it->second);
}

Result<std::optional<PendingDocument>> JobTable::pending_post(std::string_view ns,
                                                              std::string_view id) {
  {
    const std::lock_guard lock(mu_);
    const auto it = active_.find({std::string(ns), std::string(id)});
    if (it != active_.end())
      if (auto post = latest(it->second, Which::kPosts)) return post;
  }
  return pending_elsewhere(ns, id, Which::kPosts);
}

/// Returns the last one that was not cancelled.
std::optional<PendingDocument> JobTable::latest(const ActiveKey& active, Which which) const {
  for (auto ref = active.refs.rbegin(); ref != active.refs.rend(); ++ref) {
    const JobRecord& record = ref->job->record;
    if (which == Which::kPosts && record.type != JobType::kIngest) continue;
    if (!record.items[ref->item].view.finished()) return describe(*ref);
  }
  return std::nullopt;
}

std::vector<PendingDocument> JobTable::pending_in(std::string_view ns) {
  return pending_after(ns, {}, /*descending=*/false, SIZE_MAX);
}

std::vector<PendingDocument> JobTable::pending_after(std::string_view ns, std::string_view after,
                                                     bool descending, std::size_t limit) {
  std::vector<PendingDocument> some;
  const std::lock_guard lock(mu_);
  const auto take = [&](const auto& entry) {
    if (entry.first.first != ns || some.size() >= limit) return false;
    if (auto p = latest(entry.second)) some.push_back(std::move(*p));
    return true;
  };
  const Key at{std::string(ns), std::string(after)};
  if (!descending) {
    for (auto it = active_.upper_bound(at); it != active_.end() && take(*it); ++it) {
    }
    return some;
  }
  // No id is empty, so the first key behind a namespace is that of its name and a zero byte.
  auto it = active_.lower_bound(after.empty() ? Key{std::string(ns) + '\0', ""} : at);
  while (it != active_.begin() && take(*--it)) {
  }
  return some;
}

Result<DocumentInput> JobTable::input(const PendingDocument& pending) {
  QUIRE_ASSIGN_OR_RETURN(SavedInput saved,
                         saved_input(pending.job_id, pending.pack, pending.index));
  return with_text(pending.job_id, std::move(saved), pending.index);
}

Result<SavedInput> JobTable::saved_input(std::string_view job_id, std::uint32_t pack,
                                         std::int32_t index) {
  QUIRE_ASSIGN_OR_RETURN(const std::string bytes, store_.get_job(input_record_name(job_id, pack)));
  return decode_input(bytes, index);
}

Result<DocumentInput> JobTable::with_text(std::string_view job_id, SavedInput saved,
                                          std::int32_t index) {
  if (!saved.text_apart) return std::move(saved.input);
  QUIRE_ASSIGN_OR_RETURN(std::string text, store_.get_waiting_text(input_text_name(job_id, index)));
  return attach_text(std::move(saved), std::move(text));
}

// -------------------------------------------------------------------------------------------------
// Notifier

void JobTable::mark_progress(const JobPtr& job) {
  if (job->listeners.empty()) return;
  job->progress_due = true;
  if (!any_progress_) {
    any_progress_ = true;
    notify_.notify_all();
  }
}

void JobTable::notify_loop() {
  auto next_progress = std::chrono::steady_clock::now();
  std::unique_lock lock(mu_);
  const auto urgent = [&] { return notifier_stop_ || !ended_.empty() || !settled_.empty(); };
  while (true) {
    if (any_progress_) {
      notify_.wait_until(lock, next_progress, urgent);
    } else {
      notify_.wait(lock, [&] { return urgent() || any_progress_; });
    }
    std::vector<std::function<void()>> calls;
    const auto tell = [&](Job& job, JobEvent event, const std::shared_ptr<JobSnapshot>& s) {
      for (const auto& weak : job.listeners) {
        calls.push_back([weak, event, s] {
          if (const auto box = weak.lock()) box->call(event, *s);
        });
      }
    };
    for (const JobPtr& job : ended_) {
      tell(*job, JobEvent::kDone, std::make_shared<JobSnapshot>(make_snapshot(*job, true)));
      job->listeners.clear();
      job->published = true;
      unspilled_.push_back(job->record.id);
    }
    ended_.clear();
    for (const auto& waiter : std::exchange(settled_, {})) {
      calls.push_back([weak = std::weak_ptr<Waiter>(waiter)] {
        if (const auto w = weak.lock()) w->done();
      });
    }
    if (any_progress_ && std::chrono::steady_clock::now() >= next_progress) {
      any_progress_ = false;
      next_progress = std::chrono::steady_clock::now() + kProgressInterval;
      for (const auto& [id, job] : jobs_) {
        if (!std::exchange(job->progress_due, false) || job->published ||
            job->record.status >= JobStatus::kSucceeded)
          continue;
        std::erase_if(job->listeners, [](const auto& weak) { return weak.expired(); });
        if (!job->listeners.empty())
          tell(*job, JobEvent::kProgress,
               std::make_shared<JobSnapshot>(make_snapshot(*job, false)));
      }
    }
    while (unspilled_.size() > kJobsWithResults) {
      const auto it = jobs_.find(unspilled_.front());
      unspilled_.pop_front();
      // Only the record in memory is complete.
      if (it == jobs_.end() || it->second->dirty || it->second->persisting ||
          it->second->share_due || it->second->sharing)
        continue;
      it->second->spilled = true;
      it->second->record.items = {};
      it->second->states = {};
    }
    const bool stop = notifier_stop_ && ended_.empty() && settled_.empty();
    lock.unlock();
    for (const auto& call : calls) call();
    if (stop) return;
    lock.lock();
  }
}

// -------------------------------------------------------------------------------------------------
// Start and retention

Status JobTable::start() {
  QUIRE_RETURN_IF_ERROR(load());
  QUIRE_RETURN_IF_ERROR(drop_stale_inputs());
  QUIRE_RETURN_IF_ERROR(drop_stale_texts());
  QUIRE_RETURN_IF_ERROR(count_attempts());
  {
    const std::lock_guard lock(mu_);
    stopping_ = false;
    notifier_ = std::thread([this] { notify_loop(); });
  }
  // Without the catalog its jobs wait until it is back.
  if (const Status s = sync_shared(); !s.ok() && !catalog_is_away(s)) return s;
  if (shared_ != nullptr && options_.maintenance_interval_ms > 0)
    alive_ = std::thread([this] { keep_alive(); });
  return {};
}

Status JobTable::load() {
  std::string after(kJobPrefix);
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const auto records, store_.list_jobs(after, 64));
    if (records.empty()) return {};
    for (const NamedRecord& r : records) {
      after = r.name;
      if (!r.name.starts_with(kJobPrefix)) return {};
      auto record = decode_job(r.value);
      if (!record.ok()) {
        log_error("a job record is damaged and left out",
                  {{"record", r.name}, {"error", record.status().to_string()}});
        continue;
      }
      const std::lock_guard lock(mu_);
      restore(std::move(*record));
    }
  }
}

void JobTable::restore(JobRecord record) {
  auto job = std::make_shared<Job>();
  job->settings = std::make_shared<const JobSettings>(record.settings);
  job->record = std::move(record);
  last_id_ = std::max(last_id_, job->record.id);
  if (job->record.status >= JobStatus::kSucceeded) {
    job->states.assign(job->record.items.size(), ItemState{});
    job->published = true;
    job->summary = make_snapshot(*job, false);
    job->spilled = true;
    job->record.items = {};
    job->states = {};
  } else {
    for (ItemRecord& item : job->record.items) {
      if (item.view.finished()) continue;
      item.view.status = DocumentStatus::kQueued;
      if (job->record.cancelled) item.view.result = ItemResult::kCancelled;
    }
    job->has_inputs = job->record.num_packs > 0;
    enqueue(job);
    if (end_job_if_done(job)) job->published = true;  // saved by the next flush()
  }
  jobs_.emplace(job->record.id, job);
}

Status JobTable::drop_stale_inputs() {
  std::string after(kInputPrefix);
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const auto records, store_.list_jobs(after, 4));
    if (records.empty() || !records.front().name.starts_with(kInputPrefix)) return {};
    for (const NamedRecord& r : records) {
      if (!r.name.starts_with(kInputPrefix)) return {};
      const std::string id = r.name.substr(kInputPrefix.size(),
                                           r.name.rfind('/') - kInputPrefix.size());
      const auto it = jobs_.find(id);
      if (it != jobs_.end() && it->second->record.status < JobStatus::kSucceeded) {
        after = std::string(kInputPrefix) + id + "/~";  // still needed: skip to the next job
        break;
      }
      after = r.name;
      QUIRE_RETURN_IF_ERROR(store_.delete_job(r.name));
    }
  }
}

/// Drops the texts that wait for a job which is unknown or has ended.
Status JobTable::drop_stale_texts() {
  std::string after;
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const auto names, store_.list_waiting_texts(after, 1000));
    if (names.empty()) return {};
    after = names.back();
    std::vector<std::string> stale;
    for (const std::string& name : names) {
      const auto it = jobs_.find(std::string_view(name).substr(0, name.rfind('/')));
      if (it == jobs_.end() || it->second->record.status >= JobStatus::kSucceeded)
        stale.push_back(name);
    }
    QUIRE_RETURN_IF_ERROR(store_.delete_waiting_texts(stale));
  }
}

Status JobTable::purge(std::int64_t now) {
  std::vector<std::string> old;
  {
    const std::lock_guard lock(mu_);
    const auto ended = [](const Job& job) {
      // One that the replicas were not told of yet would be taken for lost, and done again.
      return job.published && !job.dirty && !job.persisting && !job.share_due && !job.sharing;
    };
    std::size_t num_ended = 0;
    for (const auto& [id, job] : jobs_) num_ended += ended(*job);
    for (auto it = jobs_.begin(); it != jobs_.end();) {
      const Job& job = *it->second;
      const bool over = ended(job) && (num_ended > options_.max_finished_jobs ||
                                       job.record.finished_ms + options_.job_retention_ms <= now);
      num_ended -= over;
      if (over) old.push_back(it->first);
      it = over ? jobs_.erase(it) : std::next(it);
    }
  }
  for (const std::string& id : old) {
    const Status s = store_.delete_job(job_record_name(id));
    if (!s.ok() && s.code() != Code::kNotFound) return s;
    QUIRE_RETURN_IF_ERROR(forget_attempts(id));
  }
  return {};
}

}  // namespace quire
