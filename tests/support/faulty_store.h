/// A Store that forwards every call, fails the n-th call that writes, and lets a test act in the
/// middle of a read.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "cachestore/store.h"

namespace quire::test {

class FaultyStore final : public Store {
 public:
  explicit FaultyStore(Store& inner) : inner_(inner) {}

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
  /// Sets a function that is called on the reader's thread before every read of a document's head.
  /// Set it before the first read.
  void on_read_head(std::function<void()> hook) { on_read_head_ = std::move(hook); }
  /// Sets a function that is called after every deletion of a document, before the call returns.
  void on_deleted(std::function<void()> hook) { on_deleted_ = std::move(hook); }

  const StoreOptions& options() const override { return inner_.options(); }
  Result<DocumentManifest> commit_document(DocumentManifest m, std::optional<std::string_view> text,
                                           std::span<const SegmentHandle> segments,
                                           const CommitOptions& options) override {
    if (fault()) return status_;
    return inner_.commit_document(std::move(m), text, segments, options);
  }
  Result<DocumentManifest> get_document(std::string_view ns, std::string_view id) override {
    return inner_.get_document(ns, id);
  }
  Result<DocumentManifest> get_document_head(std::string_view ns, std::string_view id) override {
    if (on_read_head_) on_read_head_();
    return inner_.get_document_head(ns, id);
  }
  Result<std::string> get_text(std::string_view ns, std::string_view id) override {
    return inner_.get_text(ns, id);
  }
  Result<DocumentList> list_documents(std::string_view ns, const ListOptions& o) override {
    return inner_.list_documents(ns, o);
  }
  Result<DocumentManifest> update_document(std::string_view ns, std::string_view id,
                                           const std::function<Status(DocumentManifest&)>& edit,
                                           const CommitOptions& options) override {
    if (fault()) return status_;
    return inner_.update_document(ns, id, edit, options);
  }
  Status delete_document(std::string_view ns, std::string_view id) override {
    if (fault()) return status_;
    const Status s = inner_.delete_document(ns, id);
    if (on_deleted_) on_deleted_();
    return s;
  }
  void touch_document(std::string_view ns, std::string_view id) override {
    inner_.touch_document(ns, id);
  }
  std::vector<NamespaceStats> namespaces() override { return inner_.namespaces(); }
  void watch_documents(DocumentWatcher watcher) override {
    inner_.watch_documents(std::move(watcher));
  }
  Result<std::uint64_t> expire(std::int64_t now) override { return inner_.expire(now); }
  std::optional<SegmentHandle> find_segment(const ContextKey& key) override {
    return inner_.find_segment(key);
  }
  std::optional<SegmentHandle> peek_segment(const ContextKey& key) override {
    return inner_.peek_segment(key);
  }
  Result<std::unique_ptr<SegmentWriter>> begin_segment(const ContextKey& key,
                                                       const SegmentLayout& layout,
                                                       std::uint64_t bytes, std::string_view tenant,
                                                       std::string_view fingerprint) override {
    if (fault()) return status_;
    return inner_.begin_segment(key, layout, bytes, tenant, fingerprint);
  }
  Result<std::uint64_t> commit_segments(std::span<const SegmentHandle> s) override {
    if (fault()) return status_;
    return inner_.commit_segments(s);
  }
  Status discard_segment(const SegmentHandle& s) override {
    return fault() ? status_ : inner_.discard_segment(s);
  }
  Result<PinnedBytes> read_value(const SegmentHandle& s, std::uint32_t b, std::uint32_t g,
                                 Tier* t) override {
    return inner_.read_value(s, b, g, t);
  }
  Result<PinnedBytes> read_sketch(const SegmentHandle& s, std::uint32_t i, Tier* t) override {
    return inner_.read_sketch(s, i, t);
  }
  Status fetch_async(std::vector<ReadRequest> r, FetchDone d, std::stop_token s) override {
    return inner_.fetch_async(std::move(r), std::move(d), s);
  }
  Tier tier_of(const SegmentHandle& s, std::uint32_t b, std::uint32_t g) override {
    return inner_.tier_of(s, b, g);
  }
  Status put_job(std::string_view n, std::string_view v) override {
    return fault() ? status_ : inner_.put_job(n, v);
  }
  Result<std::string> get_job(std::string_view n) override { return inner_.get_job(n); }
  Status delete_job(std::string_view n) override {
    return fault() ? status_ : inner_.delete_job(n);
  }
  Result<std::vector<NamedRecord>> list_jobs(std::string_view after, std::size_t limit) override {
    return inner_.list_jobs(after, limit);
  }
  Status put_meta(std::string_view n, std::string_view v) override { return inner_.put_meta(n, v); }
  Result<std::string> get_meta(std::string_view n) override { return inner_.get_meta(n); }
  Status delete_meta(std::string_view n) override { return inner_.delete_meta(n); }
  Result<VerifyReport> verify(const std::function<bool(const VerifyReport&)>& p) override {
    return inner_.verify(p);
  }
  Result<GcReport> gc() override { return inner_.gc(); }
  StoreStats stats() override { return inner_.stats(); }
  Status flush() override { return inner_.flush(); }

 private:
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

  Store& inner_;
  std::function<void()> on_read_head_, on_deleted_;
  std::atomic<int> countdown_{kOff}, length_{1}, writes_{0};
  std::atomic<bool> failed_{false};
  Status status_;  // set before the calls that return it
};

}  // namespace quire::test
