/// A shared catalog in memory, with faults. Several stores may have catalogs over one
/// MemoryDatabase.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/catalog/shared_catalog.h"
#include "tests/support/harness/memory_jobs.h"
#include "tests/support/harness/memory_records.h"

namespace quire::test {

/// What the catalogs over it share. Tests change it as they like.
struct MemoryDatabase {
  struct Document {
    CatalogRevision revision;
    std::uint64_t version = 0, job = 0;
    std::string head, tokens, text;
  };
  std::mutex mu;
  std::condition_variable changed;
  std::string identity = "memory";
  std::map<CatalogName, Document> documents;       // guarded by mu
  std::map<CatalogName, std::uint64_t> deletions;  // guarded by mu
  std::vector<CatalogChange> log;                  // guarded by mu
  CatalogPosition end{};                           // guarded by mu
  std::uint64_t written = 0;                       // guarded by mu
  std::uint64_t announced = 0;                     // guarded by mu
  std::atomic<int> bodies_read{0};
  /// Called before each operation; an error is its result.
  std::function<Status(std::string_view operation)> fault;  // guarded by mu
  /// Nothing answers while this is set.
  std::atomic<bool> away{false};
  /// The next change is made, and its answer lost.
  std::atomic<bool> lose_answer{false};
  /// The log seems to have no more changes than who reads it knows.
  std::atomic<bool> unseen{false};
  // These have locks of their own.
  MemoryJobs::Table jobs;
  MemoryRecords::Table records;
  MemoryReplies::Table replies;

  void set_fault(std::function<Status(std::string_view operation)> next) {
    const std::lock_guard lock(mu);
    fault = std::move(next);
  }
  void cut_log() {
    const std::lock_guard lock(mu);
    log.clear();
  }
};

class MemoryCatalog final : public SharedCatalog {
 public:
  explicit MemoryCatalog(std::shared_ptr<MemoryDatabase> database)
      : d_(std::move(database)),
        jobs_(d_->jobs, [this] { return call("jobs"); }),
        records_(d_->records, [this] { return call("records"); }),
        replies_(d_->replies, jobs_.replica(), [this] { return call("replies"); }) {
    jobs_.set_check([this] { return replies_.check_request(); });
  }

  Result<std::string> identity() override {
    QUIRE_RETURN_IF_ERROR(call("identity"));
    return d_->identity;
  }
  Result<std::uint64_t> put(const CatalogPut& p, std::uint64_t expected) override {
    QUIRE_RETURN_IF_ERROR(call("put"));
    if (!p.fence) QUIRE_RETURN_IF_ERROR(replies_.check_request());
    const CatalogName name{std::string(p.ns), std::string(p.id)};
    std::unique_lock lock(d_->mu);
    const auto it = d_->documents.find(name);
    std::uint64_t job = 0;
    if (p.fence) {
      QUIRE_ASSIGN_OR_RETURN(job, jobs_.hold(*p.fence));
      const auto deletion = d_->deletions.find(name);
      if ((it != d_->documents.end() && it->second.job > job) ||
          (deletion != d_->deletions.end() && deletion->second > job))
        return change_overtaken();
    }
    if ((it == d_->documents.end() ? 0 : it->second.revision.number) != expected)
      return Status::precondition("changed");
    if (p.fence) jobs_.mark(*p.fence);
    auto& document = d_->documents[name];
    const bool is_later = !p.fence || !p.fence->says_nothing_new;
    if (is_later && (p.fence || p.tokens)) document.job = p.fence ? job : jobs_.next_number();
    const std::uint64_t number = log_change(name);
    document.revision.number = number;
    document.version = p.version;
    document.head = p.head;
    if (p.tokens) document.tokens = *p.tokens;
    if (p.text) document.text = *p.text;
    if (p.tokens || p.text) document.revision.body = number;
    lock.unlock();
    return answer(number);
  }
  Result<std::uint64_t> remove(std::string_view ns, std::string_view id, std::uint64_t expected,
                               bool expired) override {
    QUIRE_RETURN_IF_ERROR(call("remove"));
    QUIRE_RETURN_IF_ERROR(replies_.check_request());
    const CatalogName name{std::string(ns), std::string(id)};
    std::unique_lock lock(d_->mu);
    const auto it = d_->documents.find(name);
    if (it == d_->documents.end() || it->second.revision.number != expected)
      return Status::precondition("changed");
    std::uint64_t& deletion = d_->deletions[name];
    deletion = std::max(deletion, expired ? it->second.job : jobs_.next_number());
    d_->documents.erase(it);
    const std::uint64_t number = log_change(name);
    lock.unlock();
    return answer(number);
  }
  Status confirm(std::string_view ns, std::string_view id, std::uint64_t expected,
                 const JobFence& fence) override {
    QUIRE_RETURN_IF_ERROR(call("confirm"));
    const std::lock_guard lock(d_->mu);
    QUIRE_ASSIGN_OR_RETURN(const std::uint64_t job, jobs_.hold(fence));
    const auto it = d_->documents.find({std::string(ns), std::string(id)});
    if (it != d_->documents.end() && it->second.job > job) return change_overtaken();
    if (it == d_->documents.end() || it->second.revision.number != expected)
      return Status::precondition("changed");
    it->second.job = job;
    jobs_.mark(fence);
    return {};
  }
  Status bar(std::string_view ns, std::string_view id) override {
    QUIRE_RETURN_IF_ERROR(call("bar"));
    QUIRE_RETURN_IF_ERROR(replies_.check_request());
    const CatalogName name{std::string(ns), std::string(id)};
    const std::lock_guard lock(d_->mu);
    if (d_->documents.contains(name)) return Status::precondition("made meanwhile");
    d_->deletions[name] = jobs_.next_number();
    return {};
  }
  Result<std::vector<CatalogEntry>> heads(std::span<const CatalogName> names) override {
    QUIRE_RETURN_IF_ERROR(call("heads"));
    const std::lock_guard lock(d_->mu);
    std::vector<CatalogEntry> out;
    for (const CatalogName& n : names)
      if (const auto it = d_->documents.find(n); it != d_->documents.end())
        out.push_back({n, it->second.revision, it->second.head});
    return out;
  }
  Result<std::vector<CatalogBody>> bodies(std::span<const CatalogName> names) override {
    QUIRE_RETURN_IF_ERROR(call("bodies"));
    const std::lock_guard lock(d_->mu);
    std::vector<CatalogBody> out;
    for (const CatalogName& n : names)
      if (const auto it = d_->documents.find(n); it != d_->documents.end()) {
        ++d_->bodies_read;
        out.push_back({n, it->second.revision.body, it->second.tokens, it->second.text});
      }
    return out;
  }
  Result<std::vector<CatalogEntry>> list(const CatalogName& after, std::size_t limit) override {
    QUIRE_RETURN_IF_ERROR(call("list"));
    const std::lock_guard lock(d_->mu);
    std::vector<CatalogEntry> out;
    for (auto it = d_->documents.upper_bound(after);
         it != d_->documents.end() && out.size() < limit; ++it)
      out.push_back({it->first, it->second.revision, {}});
    return out;
  }
  Result<CatalogPosition> end() override {
    QUIRE_RETURN_IF_ERROR(call("end"));
    const std::lock_guard lock(d_->mu);
    return d_->end;
  }
  Result<CatalogChanges> changes(const CatalogPosition& after, std::size_t limit) override {
    QUIRE_RETURN_IF_ERROR(call("changes"));
    const std::lock_guard lock(d_->mu);
    CatalogChanges out;
    out.end = d_->unseen ? after : d_->end;
    for (const CatalogChange& c : d_->log) {
      if (c.number > out.end[c.shard]) continue;
      if (c.number == after[c.shard]) out.before[c.shard] = c.writer;
      if (c.number > after[c.shard] && out.changes.size() < limit) out.changes.push_back(c);
    }
    return out;
  }
  Status trim() override { return call("trim"); }
  void wait(std::chrono::milliseconds longest) override {
    std::unique_lock lock(d_->mu);
    const std::uint64_t before = std::exchange(seen_, d_->announced);
    if (before != seen_) return;
    d_->changed.wait_for(lock, longest, [&] { return stop_ || d_->announced != seen_; });
    seen_ = d_->announced;
  }
  void stop() override {
    stop_ = true;
    const std::lock_guard lock(d_->mu);
    d_->changed.notify_all();
  }
  std::uint64_t failures() const override { return failures_; }
  SharedJobs& jobs() override { return jobs_; }
  SharedRecords& records() override { return records_; }
  SharedReplies& replies() override { return replies_; }

 private:
  Status call(std::string_view operation) {
    std::function<Status(std::string_view)> fault;
    {
      const std::lock_guard lock(d_->mu);
      fault = d_->fault;
    }
    if (fault) QUIRE_RETURN_IF_ERROR(fault(operation));
    if (!stop_ && !d_->away) return {};
    ++failures_;
    return catalog_away("it is away in this test");
  }
  std::uint64_t log_change(const CatalogName& name) {  // requires mu
    const std::uint32_t shard = catalog_shard(name.ns, name.id);
    d_->log.push_back({shard, ++d_->end[shard], name, std::to_string(++d_->written)});
    ++d_->announced;
    d_->changed.notify_all();
    return d_->end[shard];
  }
  Result<std::uint64_t> answer(std::uint64_t number) {
    if (d_->lose_answer.exchange(false)) return catalog_away("the answer was lost");
    return number;
  }

  const std::shared_ptr<MemoryDatabase> d_;
  MemoryJobs jobs_;
  MemoryRecords records_;
  MemoryReplies replies_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> failures_{0};
  std::uint64_t seen_ = 0;  // of the thread in wait()
};

}  // namespace quire::test
