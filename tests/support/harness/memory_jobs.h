/// Shared jobs in memory. Replicas are alive until a test says that they are gone.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/catalog/shared_catalog.h"

namespace quire::test {

class MemoryJobs final : public SharedJobs {
 public:
  struct Entry {
    SharedJob job;
    std::string owner;
    std::map<std::string, std::string, std::less<>> parts;
    std::map<std::uint64_t, std::string> items;
    std::uint64_t number = 0;  ///< in the order in which jobs and changes were made
    std::uint64_t attempts = 0, marks = 0;
    bool begun = false;
  };
  /// What replicas share.
  struct Table {
    std::mutex mu;
    std::map<std::string, Entry, std::less<>> jobs;  // guarded by mu
    std::set<std::string> alive, left;               // guarded by mu
    int made = 0;                                    // guarded by mu
    int claims = 0;                                  // of jobs that had no living owner
    std::atomic<bool> lose_answer{false};            // of the next job that is added
    std::uint64_t order = 0;                         // guarded by mu

    /// Acts as if no replica had been heard of for the time of a lease.
    void forget_replicas() {
      const std::lock_guard lock(mu);
      alive.clear();
    }
    std::map<std::string, Entry, std::less<>> all() {
      const std::lock_guard lock(mu);
      return jobs;
    }
  };

  /// `call` is asked before each operation; an error is its result.
  MemoryJobs(Table& table, std::function<Status()> call) : t_(table), call_(std::move(call)) {
    const std::lock_guard lock(t_.mu);
    replica_ = "replica " + std::to_string(++t_.made);
  }

  /// `check` is asked before a job is added; an error is the result.
  void set_check(std::function<Status()> check) { check_ = std::move(check); }

  const std::string& replica() const override { return replica_; }
  Status add(const SharedJob& job, std::span<const SharedJobPart> parts) override {
    QUIRE_RETURN_IF_ERROR(call_());
    if (check_) QUIRE_RETURN_IF_ERROR(check_());
    const std::lock_guard lock(t_.mu);
    t_.alive.insert(replica_);
    const auto [it, fresh] = t_.jobs.try_emplace(job.id, Entry{job, replica_, {}, {}});
    if (!fresh)
      return it->second.owner == replica_ ? Status() : Status::precondition("another has it");
    it->second.number = ++t_.order;
    for (const SharedJobPart& p : parts)
      it->second.parts.emplace(std::string(p.name), std::string(p.value));
    if (t_.lose_answer.exchange(false)) return catalog_away("the answer was lost");
    return {};
  }
  Status save(const SharedJob& job) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto it = t_.jobs.find(job.id);
    if (it == t_.jobs.end() || it->second.owner != replica_) return job_taken_over();
    const bool cancel = it->second.job.cancel;
    it->second.job = job;
    it->second.job.cancel = cancel;
    if (!job.ended) return {};
    it->second.parts.clear();
    it->second.items.clear();
    return {};
  }
  Result<SharedJob> get(std::string_view id) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto it = t_.jobs.find(id);
    if (it == t_.jobs.end()) return Status::not_found("no job " + std::string(id));
    return it->second.job;
  }
  Result<std::vector<SharedJob>> list(std::string_view ns, const SharedJobList& o) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    std::vector<SharedJob> all, out;
    for (const auto& [id, entry] : t_.jobs)
      if (entry.job.ns == ns && (o.status == kAnyJobStatus || o.status == entry.job.status))
        all.push_back(entry.job);
    if (o.descending) all = {all.rbegin(), all.rend()};
    for (const SharedJob& job : all) {
      const bool behind = o.after.empty() || (o.descending ? job.id < o.after : job.id > o.after);
      if (behind && out.size() < o.limit) out.push_back(job);
    }
    return out;
  }
  Result<std::vector<SharedJob>> open_with(std::string_view ns, std::string_view bytes,
                                           std::size_t limit) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    std::map<std::uint64_t, SharedJob, std::greater<>> found;
    for (const auto& [id, entry] : t_.jobs)
      if (entry.job.ns == ns && !entry.job.ended &&
          entry.job.record.find(bytes) != std::string::npos)
        found[entry.number] = entry.job;
    std::vector<SharedJob> out;
    for (const auto& [number, job] : found)
      if (out.size() < limit) out.push_back(job);
    return out;
  }
  Status cancel(std::string_view ns, std::string_view id) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto it = t_.jobs.find(id);
    if (it != t_.jobs.end() && it->second.job.ns == ns && !it->second.job.ended)
      it->second.job.cancel = true;
    return {};
  }
  Result<std::vector<StoredJobPart>> parts(std::string_view id, std::string_view after,
                                           std::size_t limit) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    std::vector<StoredJobPart> out;
    const auto it = t_.jobs.find(id);
    if (it == t_.jobs.end()) return out;
    for (auto p = it->second.parts.upper_bound(after);
         p != it->second.parts.end() && out.size() < limit; ++p)
      out.push_back({p->first, p->second});
    return out;
  }
  Result<std::vector<SharedJobItem>> items(std::string_view id) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    std::vector<SharedJobItem> out;
    if (const auto it = t_.jobs.find(id); it != t_.jobs.end())
      for (const auto& [item, mark] : it->second.items) out.push_back({item, mark});
    return out;
  }
  Status succeed(std::string_view earlier) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    t_.alive.insert(replica_);
    t_.alive.erase(std::string(earlier));
    for (auto& [id, entry] : t_.jobs)
      if (entry.owner == earlier && !entry.job.ended) take(entry);
    return {};
  }
  Status beat() override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    t_.alive.insert(replica_);
    return {};
  }
  Result<std::vector<OwnJob>> renew(std::size_t limit,
                                    std::span<const std::string> except) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    t_.alive.insert(replica_);
    std::vector<OwnJob> own;
    for (auto& [id, entry] : t_.jobs) {
      if (entry.job.ended) continue;
      if (!t_.alive.contains(entry.owner) && limit > 0 &&
          std::ranges::find(except, id) == except.end()) {
        ++t_.claims;
        take(entry);
        --limit;
      }
      if (entry.owner == replica_) own.push_back({id, entry.job.cancel, entry.attempts});
    }
    return own;
  }
  Status begin(std::string_view id) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto it = t_.jobs.find(id);
    if (it == t_.jobs.end() || it->second.owner != replica_ || it->second.job.ended)
      return job_taken_over();
    it->second.begun = true;
    return {};
  }
  Status release(std::string_view id) override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    const auto it = t_.jobs.find(id);
    if (it != t_.jobs.end() && it->second.owner == replica_) it->second.owner.clear();
    return {};
  }
  Status leave() override {
    QUIRE_RETURN_IF_ERROR(call_());
    const std::lock_guard lock(t_.mu);
    t_.alive.erase(replica_);
    t_.left.insert(replica_);
    return {};
  }
  Status purge(std::int64_t) override { return call_(); }

  /// Returns the number of a job that this replica has.
  Result<std::uint64_t> hold(const JobFence& fence) {
    const std::lock_guard lock(t_.mu);
    const auto it = t_.jobs.find(fence.job);
    if (it == t_.jobs.end() || it->second.owner != replica_ || it->second.job.ended)
      return job_taken_over();
    return it->second.number;
  }
  std::uint64_t next_number() {
    const std::lock_guard lock(t_.mu);
    return ++t_.order;
  }
  void mark(const JobFence& fence) {
    const std::lock_guard lock(t_.mu);
    t_.jobs.at(fence.job).items[fence.item] = fence.mark;
  }

 private:
  void take(Entry& entry) {  // requires mu
    const bool has_left = entry.owner.empty() || t_.left.contains(entry.owner);
    if (std::exchange(entry.begun, false) && !has_left)
      entry.attempts = entry.items.size() > entry.marks ? 1 : entry.attempts + 1;
    entry.marks = entry.items.size();
    entry.owner = replica_;
  }

  Table& t_;
  const std::function<Status()> call_;
  std::function<Status()> check_;
  std::string replica_;
};

}  // namespace quire::test
