// This file implements what JobTable does about jobs that end the process which works on them: it
// counts how often in a row that happened, and ends a job that no process survives.
#include <charconv>
#include <string>
#include <vector>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/catalog/shared_jobs.h"
#include "ingest/job_table.h"

namespace quire {
namespace {

/// What a small record says of an unfinished job, where no other process could take it.
struct Attempts {
  std::uint64_t count = 0;  ///< processes in a row that had begun the job when they died
  std::uint64_t done = 0;   ///< items that were done when the last one took it
  bool begun = false;       ///< the last one has begun it, and has not stopped since
};

std::string record_name(std::string_view id) { return "ingest/attempts/" + std::string(id); }

std::string encode(const Attempts& a) {
  return std::to_string(a.count) + " " + std::to_string(a.done) + (a.begun ? " 1" : " 0");
}

std::optional<Attempts> decode(std::string_view text) {
  std::uint64_t numbers[3] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::uint64_t& number : numbers) {
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return std::nullopt;
    at = next == end ? next : next + 1;
  }
  return Attempts{numbers[0], numbers[1], numbers[2] != 0};
}

std::uint64_t num_done(const JobRecord& record) {
  std::uint64_t n = 0;
  for (const ItemRecord& item : record.items) n += item.view.finished() ? 1 : 0;
  return n;
}

}  // namespace

Status JobTable::begin(const Work& work) {
  Attempts now;
  {
    const std::lock_guard lock(mu_);
    const JobPtr job = find(work.ns, work.job_id);
    if (!job || job->begun_here) return {};
    now = {job->attempts, num_done(job->record), true};
  }
  if (shared_ != nullptr) {
    QUIRE_RETURN_IF_ERROR(shared_->begin(work.job_id));
  } else if (const Status s = store_.put_derived(record_name(work.job_id), encode(now)); !s.ok()) {
    // The work itself is more important.
    log_warning("it could not be noted that a job has begun",
                {{"job_id", work.job_id}, {"error", s.to_string()}});
  }
  const std::lock_guard lock(mu_);
  if (const JobPtr job = find(work.ns, work.job_id)) job->begun_here = true;
  return {};
}

/// Finds out which jobs the last process had begun when it died.
Status JobTable::count_attempts() {
  if (shared_ != nullptr) return {};  // the catalog counts, as another replica may take the job
  std::vector<std::pair<std::string, std::uint64_t>> open;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [id, job] : jobs_)
      if (job->record.status < JobStatus::kSucceeded) open.emplace_back(id, num_done(job->record));
  }
  for (const auto& [id, done] : open) {
    const auto stored = store_.get_meta(record_name(id));
    if (!stored.ok()) continue;  // none: it was not begun, or that is not known
    const auto before = decode(*stored);
    if (!before) continue;
    Attempts now{before->count, done, false};
    if (before->begun) now.count = done > before->done ? 1 : before->count + 1;
    QUIRE_RETURN_IF_ERROR(store_.put_derived(record_name(id), encode(now)));
    {
      const std::lock_guard lock(mu_);
      jobs_.at(id)->attempts = now.count;
    }
    if (now.count == 0) continue;
    log_warning("a job goes on that was worked on when the process ended",
                {{"job_id", id}, {"attempts", std::to_string(now.count)}});
    if (now.count >= kMostAttempts) QUIRE_RETURN_IF_ERROR(give_up(id));
  }
  return {};
}

/// A stop is no attempt.
void JobTable::note_stop() {
  if (shared_ != nullptr) return;  // leave() says so to the catalog
  std::vector<std::pair<std::string, Attempts>> begun;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [id, job] : jobs_) {
      if (job->begun_here && job->record.status < JobStatus::kSucceeded)
        begun.emplace_back(id, Attempts{job->attempts, num_done(job->record), false});
    }
  }
  for (const auto& [id, attempts] : begun) {
    if (const Status s = store_.put_derived(record_name(id), encode(attempts)); !s.ok())
      log_warning("a stop counts as an attempt of a job, as it could not be noted",
                  {{"job_id", id}, {"error", s.to_string()}});
  }
}

Status JobTable::forget_attempts(const std::string& id) {
  if (shared_ != nullptr || !store_.get_meta(record_name(id)).ok()) return {};
  return store_.delete_meta(record_name(id));
}

/// Ends a job that no process has survived. Nothing of it runs here yet.
Status JobTable::give_up(const std::string& id) {
  ItemOutcome outcome;
  outcome.error = ItemError{
      "internal",
      std::to_string(kMostAttempts) +
          (shared_ != nullptr ? " replicas in a row ended while they"
                              : " times in a row the service ended while it") +
          " worked on this job, without any of its documents finished; the log may say why",
      ""};
  std::vector<JobPtr> ended;
  bool here = false;
  {
    const std::lock_guard lock(mu_);
    if (dropping_.contains(id)) return {};  // the next time
    const auto it = jobs_.find(id);
    here = it != jobs_.end();
    if (here) {
      const JobPtr job = it->second;
      if (job->lost || job->record.status >= JobStatus::kSucceeded) return {};
      for (std::size_t i = 0; i < job->states.size(); ++i) {
        if (job->states[i].stage != Stage::kQueued) continue;
        end_item(job, i, outcome);
        release_key(job, i, /*was_working=*/false);
      }
      if (end_job_if_done(job)) ended.push_back(job);
    }
  }
  log_error("a job is ended, as no process has survived it", {{"job_id", id}});
  conclude(ended);
  return here ? Status() : end_unseen(id, outcome);
}

}  // namespace quire
