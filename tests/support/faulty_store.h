/// A store that forwards every call. A test lets reads fail, wait or be refused, lets the n-th call
/// that writes fail, and acts in the middle of a call.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/store.h"

namespace quire::test {

class FaultyStore final : public Store {
 public:
  /// Keeps a reference to the pointer, because a test may close and reopen the inner store.
  explicit FaultyStore(std::unique_ptr<Store>& inner) : behind_(inner) {}

  /// Makes the n-th writing call from now (0: the next) and the `length - 1` after it return
  /// `status`. n < 0: none fails.
  void fail_at(int n, Status status, int length = 1) {
    status_ = std::move(status);
    length_ = length;
    countdown_ = n;
  }
  /// Returns the number of writing calls so far.
  int writes() const { return writes_; }
  bool failed() const { return failed_; }
  /// Returns how many changes of job records and of texts that wait were to be durable at once.
  int durable_job_changes() const { return durable_job_changes_; }
  /// Sets a function that is called on the reader's thread before every read of a document's head.
  /// Set it before the first read.
  void on_read_head(std::function<void()> hook) { on_read_head_ = std::move(hook); }
  /// The same for texts.
  void on_read_text(std::function<void()> hook) { on_read_text_ = std::move(hook); }
  /// Sets a function that is called after every deletion of a document, before the call returns.
  void on_deleted(std::function<void()> hook) { on_deleted_ = std::move(hook); }

  /// Sets a function that is called after every save of a job, before the call returns.
  void on_job_saved(std::function<void()> hook) { on_job_saved_ = std::move(hook); }

  /// Returns the status of a read by its index within the call of fetch_async; OK forwards it.
  std::function<Status(std::size_t index)> read_fault;
  /// The status that fetch_async itself returns; OK forwards the call.
  Status refuse_reads;
  /// The status that begin_segment returns; OK forwards the call.
  Status refuse_writes;
  /// The status that put_derived returns; OK forwards the call. Set it before the first.
  Status refuse_derived;
  /// What options() returns; none: those of the inner store. A test changes it only while nothing
  /// else uses the store.
  std::optional<StoreOptions> other_options;
  /// A save of a job that fails is on disk all the same, as after an error of a sync.
  std::atomic<bool> write_failed_jobs{false};
  /// Lets no caller find a segment that is there.
  std::atomic<bool> hide_segments{false};
  /// Runs before a segment is begun, on the writer's thread.
  std::function<void()> before_write;
  /// Runs before a document is committed, on the worker's thread. Set it before the first commit.
  std::function<void()> before_commit;

  /// Runs before texts of jobs are deleted. Set it while nothing else uses the store.
  std::function<void()> before_texts_deleted;

  /// Acts as a store with a shared tier, which is asked by this. Empty: there is none.
  std::function<void(RecallRequest request, RecallDone done)> on_recall;
  bool recalls() const override { return on_recall || behind_->recalls(); }
  void recall_async(RecallRequest request, RecallDone done) override {
    if (!on_recall) return behind_->recall_async(std::move(request), std::move(done));
    on_recall(std::move(request), std::move(done));
  }

  /// Acts as a store with a shared catalog, which is away or not.
  void set_catalog(bool up) {
    std::lock_guard lock(mu_);
    catalog_.shared = true;
    catalog_.up = up;
    catalog_.reason = up ? "" : "it is away in this test";
  }
  /// The next commit is made, and seems to have met a shared catalog that is away.
  void lose_commit_answer() { lose_commit_answer_ = true; }
  CatalogStats catalog_stats() const override {
    std::lock_guard lock(mu_);
    return catalog_;
  }

  Status confirm_document(const DocumentManifest& as_read, const JobFence& fence) override {
    return behind_->confirm_document(as_read, fence);
  }
  Status bar_document(std::string_view ns, std::string_view id) override {
    return behind_->bar_document(ns, id);
  }
  SharedJobs* shared_jobs() override { return behind_->shared_jobs(); }
  Status refresh_document(std::string_view ns, std::string_view id) override {
    return behind_->refresh_document(ns, id);
  }

  /// Makes later reads wait until release(), which answers them on the calling thread.
  void hold() {
    std::lock_guard lock(mu_);
    holding_ = true;
  }
  /// Holds values of this group of layers and those above it, except in the first `calls` calls
  /// that request any. Other reads are forwarded.
  void hold_from(std::uint32_t group, int calls = 0) {
    std::lock_guard lock(mu_);
    hold_from_ = group;
    calls_let_through_ = calls;
  }
  /// Waits until something is held and everything that was forwarded has been answered.
  void wait_for_others() {
    std::unique_lock lock(mu_);
    changed_.wait(lock, [this] { return !held_.empty() && on_their_way_ == 0; });
  }
  void release() {
    std::vector<std::function<void()>> held;
    {
      std::lock_guard lock(mu_);
      holding_ = false;
      hold_from_ = kNoGroup;
      held.swap(held_);
    }
    for (auto& f : held) f();
  }
  /// Returns the number of calls that wait.
  std::size_t held() {
    std::lock_guard lock(mu_);
    return held_.size();
  }
  int segments_begun() const { return begun_.load(); }

  Status fetch_async(std::vector<ReadRequest> requests, FetchDone done,
                     std::stop_token stop) override {
    if (!refuse_reads.ok()) return refuse_reads;
    auto faulty = [fault = read_fault, done](std::size_t index, Result<PinnedBytes> bytes,
                                             Tier tier) {
      const Status status = fault ? fault(index) : Status();
      if (status.ok()) return done(index, std::move(bytes), tier);
      done(index, status, tier);
    };
    std::unique_lock lock(mu_);
    if (holding_) {
      held_.push_back([this, requests = std::move(requests), faulty, stop]() mutable {
        (void)behind_->fetch_async(std::move(requests), faulty, stop);
      });
      return {};
    }
    const bool upper = std::any_of(requests.begin(), requests.end(),
                                   [this](const ReadRequest& r) { return above(r); });
    if (!upper || calls_let_through_-- > 0) {
      lock.unlock();
      return behind_->fetch_async(std::move(requests), std::move(faulty), stop);
    }
    Part now, later;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Part& part = above(requests[i]) ? later : now;
      part.requests.push_back(requests[i]);
      part.index.push_back(i);
    }
    if (!later.requests.empty())
      held_.push_back([this, later, faulty, stop] {
        (void)behind_->fetch_async(later.requests, at_places(later.index, faulty), stop);
      });
    on_their_way_ += now.requests.size();
    lock.unlock();
    changed_.notify_all();
    if (now.requests.empty()) return {};
    return behind_->fetch_async(
        now.requests,
        [this, answer = at_places(now.index, faulty)](std::size_t i, Result<PinnedBytes> bytes,
                                                      Tier tier) {
          answer(i, std::move(bytes), tier);
          std::lock_guard counted(mu_);
          --on_their_way_;
          changed_.notify_all();
        },
        stop);
  }
  Result<std::unique_ptr<SegmentWriter>> begin_segment(const ContextKey& key,
                                                       const SegmentLayout& layout,
                                                       std::uint64_t bytes, std::string_view tenant,
                                                       std::string_view fingerprint) override {
    if (before_write) before_write();
    if (!refuse_writes.ok()) return refuse_writes;
    if (fault()) return status_;
    ++begun_;
    return behind_->begin_segment(key, layout, bytes, tenant, fingerprint);
  }

  const StoreOptions& options() const override {
    return other_options ? *other_options : behind_->options();
  }
  Result<DocumentManifest> commit_document(DocumentManifest m, std::optional<std::string_view> text,
                                           std::span<const SegmentHandle> s,
                                           const CommitOptions& o) override {
    if (fault()) return status_;
    if (before_commit) before_commit();
    QUIRE_RETURN_IF_ERROR(catalog_status(catalog_stats()));
    auto done = behind_->commit_document(std::move(m), text, s, o);
    if (done.ok() && lose_commit_answer_.exchange(false)) return catalog_away("answer lost");
    return done;
  }
  Result<DocumentManifest> get_document(std::string_view ns, std::string_view id) override {
    return behind_->get_document(ns, id);
  }
  Result<DocumentManifest> get_document_head(std::string_view ns, std::string_view id) override {
    if (on_read_head_) on_read_head_();
    return behind_->get_document_head(ns, id);
  }
  Result<std::string> get_text(std::string_view ns, std::string_view id) override {
    if (on_read_text_) on_read_text_();
    return behind_->get_text(ns, id);
  }
  Result<DocumentList> list_documents(std::string_view ns, const ListOptions& o) override {
    return behind_->list_documents(ns, o);
  }
  Result<DocumentManifest> update_document(std::string_view ns, std::string_view id,
                                           const std::function<Status(DocumentManifest&)>& edit,
                                           const CommitOptions& o) override {
    if (fault()) return status_;
    QUIRE_RETURN_IF_ERROR(catalog_status(catalog_stats()));
    return behind_->update_document(ns, id, edit, o);
  }
  Status add_companions(const DocumentManifest& document,
                        std::span<const ContextKey> keys) override {
    if (fault()) return status_;
    return behind_->add_companions(document, keys);
  }
  Status delete_document(std::string_view ns, std::string_view id,
                         const CommitOptions& o) override {
    if (fault()) return status_;
    const Status deleted = behind_->delete_document(ns, id, o);
    if (on_deleted_) on_deleted_();
    return deleted;
  }
  void touch_document(std::string_view ns, std::string_view id) override {
    behind_->touch_document(ns, id);
  }
  std::vector<NamespaceStats> namespaces() override { return behind_->namespaces(); }
  Result<NamespaceStats> namespace_stats(std::string_view ns) override {
    return behind_->namespace_stats(ns);
  }
  void watch_documents(DocumentWatcher watcher) override {
    behind_->watch_documents(std::move(watcher));
  }
  Result<std::uint64_t> expire(std::int64_t now_ms) override { return behind_->expire(now_ms); }
  std::optional<SegmentHandle> find_segment(const ContextKey& key) override {
    return hide_segments ? std::nullopt : behind_->find_segment(key);
  }
  std::optional<SegmentHandle> peek_segment(const ContextKey& key) override {
    return hide_segments ? std::nullopt : behind_->peek_segment(key);
  }
  Result<std::uint64_t> commit_segments(std::span<const SegmentHandle> s) override {
    if (fault()) return status_;
    return behind_->commit_segments(s);
  }
  Status discard_segment(const SegmentHandle& s) override {
    return fault() ? status_ : behind_->discard_segment(s);
  }
  Result<PinnedBytes> read_value(const SegmentHandle& s, std::uint32_t b, std::uint32_t g,
                                 Tier* t) override {
    return behind_->read_value(s, b, g, t);
  }
  Result<PinnedBytes> read_sketch(const SegmentHandle& s, std::uint32_t i, Tier* t) override {
    return behind_->read_sketch(s, i, t);
  }
  Tier tier_of(const SegmentHandle& s, std::uint32_t b, std::uint32_t g) override {
    return behind_->tier_of(s, b, g);
  }
  Status put_job(std::string_view n, std::string_view v) override {
    if (fault()) {
      if (write_failed_jobs) (void)behind_->put_job(n, v);
      return status_;
    }
    (void)counted(Durable::kNow);
    const Status s = behind_->put_job(n, v);
    if (on_job_saved_) on_job_saved_();
    return s;
  }
  Result<std::string> get_job(std::string_view n) override { return behind_->get_job(n); }
  Status delete_job(std::string_view n, Durable when) override {
    return fault() ? status_ : behind_->delete_job(n, counted(when));
  }
  Result<std::vector<NamedRecord>> list_jobs(std::string_view after, std::size_t limit) override {
    return behind_->list_jobs(after, limit);
  }
  Status put_job_and_texts(std::string_view n, std::string_view v, std::span<const NamedText> t,
                           Durable when) override {
    return fault() ? status_ : behind_->put_job_and_texts(n, v, t, counted(when));
  }
  Result<std::string> get_waiting_text(std::string_view n) override {
    return behind_->get_waiting_text(n);
  }
  Status delete_waiting_texts(std::span<const std::string> n, Durable when) override {
    if (before_texts_deleted) before_texts_deleted();
    return fault() ? status_ : behind_->delete_waiting_texts(n, counted(when));
  }
  Result<std::vector<std::string>> list_waiting_texts(std::string_view after,
                                                      std::size_t limit) override {
    return behind_->list_waiting_texts(after, limit);
  }
  Status put_meta(std::string_view n, std::string_view v) override {
    return behind_->put_meta(n, v);
  }
  Status put_derived(std::string_view n, std::string_view v) override {
    return refuse_derived.ok() ? behind_->put_derived(n, v) : refuse_derived;
  }
  Result<std::string> get_meta(std::string_view n) override { return behind_->get_meta(n); }
  Status delete_meta(std::string_view n) override { return behind_->delete_meta(n); }
  Result<VerifyReport> verify(const std::function<bool(const VerifyReport&)>& p) override {
    return behind_->verify(p);
  }
  Result<GcReport> gc() override { return behind_->gc(); }
  StoreStats stats() override { return behind_->stats(); }
  Status flush() override { return behind_->flush(); }

 private:
  static constexpr std::uint32_t kNoGroup = ~0u;
  struct Part {
    std::vector<ReadRequest> requests;
    std::vector<std::size_t> index;  ///< indices in the original call
  };
  bool above(const ReadRequest& r) const {
    return r.kind == ReadKind::kValue && r.group >= hold_from_;
  }
  static FetchDone at_places(std::vector<std::size_t> index, FetchDone done) {
    return [index = std::move(index), done = std::move(done)](
               std::size_t i, Result<PinnedBytes> bytes, Tier tier) {
      done(index[i], std::move(bytes), tier);
    };
  }

  bool fault() {
    ++writes_;
    const int n = countdown_.load();
    if (n == kOff) return false;
    countdown_ = n - 1;
    if (n > 0 || n <= -length_.load()) return false;
    failed_ = true;
    return true;
  }
  static constexpr int kOff = INT32_MIN / 2;
  Durable counted(Durable when) {
    if (when == Durable::kNow) ++durable_job_changes_;
    return when;
  }

  std::unique_ptr<Store>& behind_;
  mutable std::mutex mu_;
  CatalogStats catalog_;  // guarded by mu_
  std::atomic<bool> lose_commit_answer_{false};
  std::condition_variable changed_;
  bool holding_ = false;                // guarded by mu_
  std::uint32_t hold_from_ = kNoGroup;  // guarded by mu_
  // Guarded by mu_; the number of calls above hold_from_ that are still let through.
  int calls_let_through_ = 0;
  std::size_t on_their_way_ = 0;             // guarded by mu_; forwarded but not answered
  std::vector<std::function<void()>> held_;  // guarded by mu_
  std::atomic<int> begun_{0};
  std::function<void()> on_read_head_, on_read_text_, on_deleted_;
  std::function<void()> on_job_saved_;
  std::atomic<int> countdown_{kOff}, length_{1}, writes_{0}, durable_job_changes_{0};
  std::atomic<bool> failed_{false};
  Status status_;  // set before the calls that return it
};

}  // namespace quire::test
