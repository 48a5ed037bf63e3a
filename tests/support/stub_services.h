/// An engine and a document service whose results a test sets, for the service around them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "ingest/ingest_service.h"

namespace quire::test {

/// Answers or fails queries as the test says. It has the embedded model's tokenizer and prompt
/// format.
class StubEngine : public Engine {
 public:
  explicit StubEngine(const std::string& name = "stub") {
    const std::string folder = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
    auto tokenizer = load_tokenizer(folder);
    QUIRE_CHECK(tokenizer.ok(), tokenizer.status().to_string());
    tokenizer_ = std::move(*tokenizer);
    auto format = PromptFormat::load(folder, tokenizer_);
    QUIRE_CHECK(format.ok(), format.status().to_string());
    format_ = std::make_unique<PromptFormat>(std::move(*format));
    info_.model_name = name;
    info_.fingerprint = "m-00000000";
    info_.fingerprint_digest = {};
    info_.max_model_len = 2048;
  }
  Status query_error, done_status;            ///< set before the call
  std::vector<std::string> pieces{"answer"};  ///< the answer of every query
  std::string stop_text;                      ///< the stop string that ends it
  QueryRequest last_request;                  ///< of the last query that was taken
  std::vector<std::int32_t> last_embedded;    ///< the last text that was embedded
  bool hold = false;                          ///< keeps the sink, so that the test finishes it
  std::chrono::milliseconds wait{0};          ///< reported to a refused client

  std::shared_ptr<QuerySink> take() {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, std::chrono::seconds(20), [this] { return held_ != nullptr; });
    return std::exchange(held_, nullptr);
  }
  bool wait_cancelled() {
    for (int i = 0; i < 20000 && !(last_ && last_->load()); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return last_ && last_->load();
  }
  static Plan small_plan() {
    Plan p;
    p.strategy = "reuse";
    p.prompt_tokens = 10;
    p.fates.computed = 10;
    return p;
  }
  void finish(QuerySink& sink, const Status& status = {}) {
    QueryStats stats;
    stats.completion_tokens = 1;
    stats.stop_text = stop_text;
    sink.on_done(status, small_plan(), stats, FinishReason::kStop);
  }

  const EngineInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const PromptFormat& prompt_format() const override { return *format_; }
  const ContextNames& names() const override { return names_; }
  void prefill(PrefillRequest, std::function<void(Result<PrefillResult>)> done) override {
    done(Status::unimplemented("stub"));
  }
  Result<QueryHandle> query(QueryRequest request, std::shared_ptr<QuerySink> sink) override {
    if (!query_error.ok()) return query_error;
    last_request = std::move(request);
    last_ = std::make_shared<std::atomic<bool>>(false);
    if (hold) {
      std::lock_guard lock(mu_);
      held_ = sink;
      changed_.notify_all();
      return QueryHandle(last_);
    }
    if (done_status.ok()) {
      sink->on_plan(small_plan());
      for (const std::string& piece : pieces) (void)sink->on_token(1, piece);
    }
    finish(*sink, done_status);
    return QueryHandle(last_);
  }
  void embed(EmbedRequest request, std::function<void(Result<std::vector<float>>)> done) override {
    last_embedded = std::move(request.token_ids);
    done(std::vector<float>{0.6f, 0.8f});
  }
  Result<Plan> plan(const QueryRequest&) override { return small_plan(); }
  EngineLoad load() const override { return {.expected_wait = wait}; }
  void stop(std::chrono::milliseconds) override {}

 private:
  EngineInfo info_;
  const ContextNames names_{Digest(), 16};
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<PromptFormat> format_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::shared_ptr<QuerySink> held_;          // guarded by mu_
  std::shared_ptr<std::atomic<bool>> last_;  // the last query's cancel flag
};

/// Every call fails with `error` or returns something small.
class StubIngest : public IngestService, public DocumentCatalog, public JobBoard {
 public:
  Status error;
  std::vector<NotReadyDocument> not_ready;
  std::vector<std::string> missing;
  std::vector<JobItem> results;  ///< of every job
  std::string refused_id;        ///< of the document that admit() refuses
  bool tells_ends = false;       ///< tells who subscribes to a job at once that it has ended
  std::function<void()> on_submit;
  std::function<void(const std::vector<DocumentInput>&)> on_documents;

  Status start() override { return {}; }
  void stop() override {}
  Result<JobSnapshot> submit(std::string_view, std::vector<DocumentInput> documents,
                             const BatchOptions&) override {
    if (on_submit) on_submit();
    if (on_documents) on_documents(documents);
    return job();
  }
  Result<JobSnapshot> warm(std::string_view, std::string_view) override { return job(); }
  Result<Admission> admit(const DocumentManifest& document, std::uint64_t) override {
    if (document.id == refused_id) return Status::exhausted("no room");
    return Admission();
  }
  DocumentCatalog& documents() override { return *this; }
  JobBoard& jobs() override { return *this; }
  Result<JobSnapshot> job(std::string_view, std::string_view) override { return job(); }
  Result<JobListPage> list_jobs(std::string_view, const JobListOptions&) override {
    return or_error(JobListPage{});
  }
  Result<JobSnapshot> cancel_job(std::string_view, std::string_view) override { return job(); }
  Result<Subscription> subscribe(std::string_view, std::string_view,
                                 JobListener listener) override {
    if (const auto ended = job(); tells_ends && ended.ok()) listener(JobEvent::kDone, *ended);
    return or_error(Subscription{});
  }
  Subscription when_synchronized(std::string_view, std::span<const std::string>,
                                 std::function<void()>) override {
    return {};
  }
  Result<DocumentInfo> get(std::string_view, std::string_view id) override {
    DocumentInfo d;
    d.id = id;
    return or_error(d);
  }
  Result<DocumentListPage> list(std::string_view, const DocumentListOptions&) override {
    return or_error(DocumentListPage{});
  }
  Result<DocumentCounts> counts(std::string_view) override { return or_error(DocumentCounts{}); }
  Result<std::string> content(std::string_view, std::string_view) override {
    return or_error(std::string("text"));
  }
  Result<std::vector<TextMark>> marks(std::string_view, std::string_view) override {
    return std::vector<TextMark>();
  }
  Result<std::vector<ChunkInfo>> chunks(std::string_view, std::string_view) override {
    return or_error(std::vector<ChunkInfo>{});
  }
  Result<std::vector<BlockInfo>> blocks(std::string_view, std::string_view) override {
    return or_error(std::vector<BlockInfo>{});
  }
  Result<DocumentInfo> patch(std::string_view ns, std::string_view id,
                             const DocumentPatch&) override {
    return get(ns, id);
  }
  using DocumentCatalog::remove;
  Status remove(std::string_view, std::string_view, const DocumentCondition&) override {
    return error;
  }
  Result<BulkDeleteResult> remove_many(std::string_view, const BulkDelete&) override {
    return or_error(BulkDeleteResult{});
  }
  Result<std::optional<std::string>> replacing_job(std::string_view, std::string_view) override {
    return or_error(std::optional<std::string>());
  }
  Status settle(std::string_view, std::string_view) override { return error; }
  Result<Resolved> resolve(std::string_view, std::span<const std::string>,
                           const ResolveOptions&) override {
    Resolved r;
    r.not_ready = not_ready;
    r.missing = missing;
    return or_error(r);
  }
  std::unique_ptr<ModelDocuments> documents_of(Engine&) override { return nullptr; }
  std::string tenant(std::string_view ns) const override { return std::string(ns); }
  std::array<std::uint8_t, 32> salt_digest(std::string_view) const override { return {}; }
  Status run_maintenance() override { return {}; }
  IngestStats stats() const override { return {}; }
  const IngestOptions& options() const override { return options_; }

 private:
  template <class T>
  Result<T> or_error(T value) {
    if (!error.ok()) return error;
    return value;
  }
  Result<JobSnapshot> job() {
    JobSnapshot j;
    j.id = "job_1";
    j.status = JobStatus::kSucceeded;
    j.results = results;
    return or_error(j);
  }
  IngestOptions options_;
};

}  // namespace quire::test
