#include "ingest/ingest_service.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/log.h"
#include "ingest/catalog_view.h"
#include "ingest/document_task.h"
#include "ingest/job_table.h"
#include "ingest/metadata.h"
#include "ingest/names.h"
#include "ingest/task_pool.h"

namespace quire {
namespace {

constexpr std::size_t kPackBytes = 1
                                   << 20;  // inputs per record in bytes, unless one input is larger
constexpr std::int64_t kExpiryEveryMs = 10'000;

class IngestServiceImpl final : public IngestService {
 public:
  IngestServiceImpl(IngestOptions options, Store& store, Engine& engine)
      : options_(std::move(options)),
        store_(store),
        engine_(engine),
        pins_(options_.may_pin),
        table_(store_, options_),
        view_(store_, engine_, table_, options_) {}
  ~IngestServiceImpl() override { stop(); }

  Status start() override;
  void stop() override;

  Result<JobSnapshot> submit(std::string_view ns, std::vector<DocumentInput> documents,
                             const BatchOptions& options) override;
  Result<JobSnapshot> warm(std::string_view ns, std::string_view id) override;

  Result<JobSnapshot> job(std::string_view ns, std::string_view job_id) override {
    return table_.snapshot(ns, job_id);
  }
  Result<JobListPage> list_jobs(std::string_view ns, const JobListOptions& options) override {
    if (options.limit < 1 || options.limit > 100)
      return Status::invalid("limit", "must be 1 to 100");
    return table_.list(ns, options);
  }
  Result<JobSnapshot> cancel_job(std::string_view ns, std::string_view job_id) override {
    return table_.cancel(ns, job_id);
  }
  Result<Subscription> subscribe(std::string_view ns, std::string_view job_id,
                                 JobListener listener) override {
    return table_.subscribe(ns, job_id, std::move(listener));
  }
  Subscription when_synchronized(std::string_view ns, std::span<const std::string> ids,
                                 std::function<void()> done) override {
    return table_.when_synchronized(ns, ids, std::move(done));
  }

  Result<DocumentInfo> get(std::string_view ns, std::string_view id) override {
    return view_.get(ns, id);
  }
  Result<DocumentListPage> list(std::string_view ns, const DocumentListOptions& options) override {
    if (options.limit < 1 || options.limit > 100)
      return Status::invalid("limit", "must be 1 to 100");
    return view_.list(ns, options);
  }
  Result<DocumentCounts> counts(std::string_view ns) override { return view_.counts(ns); }
  Result<std::string> content(std::string_view ns, std::string_view id) override {
    return view_.content(ns, id);
  }
  Result<std::vector<ChunkInfo>> chunks(std::string_view ns, std::string_view id) override {
    return view_.chunks(ns, id);
  }
  Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id) override {
    return view_.blocks(ns, id);
  }
  Result<DocumentInfo> patch(std::string_view ns, std::string_view id,
                             const DocumentPatch& patch) override;
  Status remove(std::string_view ns, std::string_view id) override;
  Result<BulkDeleteResult> remove_many(std::string_view ns, const BulkDelete& request) override;

  Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                           const ResolveOptions& options) override {
    return view_.resolve(ns, ids, options);
  }
  std::string tenant(std::string_view ns) const override { return view_.tenant(ns); }
  std::array<std::uint8_t, 32> salt_digest(std::string_view cache_salt) const override {
    return to_bytes(salt_digest_of(cache_salt));
  }

  Status run_maintenance() override;
  IngestStats stats() const override;
  const IngestOptions& options() const override { return options_; }

 private:
  Status check_preconditions(std::string_view ns, const std::vector<ItemRecord>& items,
                             const BatchOptions& options);
  void pump();
  void maintenance_loop();
  std::int64_t now_ms() const {
    if (options_.clock_ms) return options_.clock_ms();
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  const IngestOptions options_;
  Store& store_;
  Engine& engine_;
  PinGate pins_;
  JobTable table_;
  CatalogView view_;
  std::unique_ptr<TaskPool> pool_;  // made by start(), before the first task
  std::unique_ptr<TaskContext> context_;
  std::atomic<std::int64_t> expired_{0};

  std::mutex mu_;
  std::condition_variable wake_;
  bool started_ = false, stop_ = false;  // guarded by mu_
  std::int64_t last_expiry_ms_ = 0;      // guarded by mu_
  std::thread timer_;
};

// -------------------------------------------------------------------------------------------------
// Life

Status IngestServiceImpl::start() {
  {
    const std::lock_guard lock(mu_);
    if (started_) return Status::precondition("the document service was started before");
    started_ = true;
  }
  pool_ = std::make_unique<TaskPool>(options_.num_workers);
  context_ = std::make_unique<TaskContext>(
      TaskContext{store_, engine_, table_, *pool_, options_, pins_, [this] { pump(); }});
  QUIRE_RETURN_IF_ERROR(table_.start());
  if (options_.maintenance_interval_ms > 0) timer_ = std::thread([this] { maintenance_loop(); });
  pump();
  return {};
}

void IngestServiceImpl::stop() {
  {
    const std::lock_guard lock(mu_);
    if (stop_) return;
    stop_ = true;
  }
  wake_.notify_all();
  if (timer_.joinable()) timer_.join();
  table_.begin_stop();
  table_.finish_stop();  // every task has reported
  if (pool_) pool_->stop();
}

void IngestServiceImpl::pump() {
  while (auto work = table_.next()) {
    auto task = std::make_shared<DocumentTask>(*context_, std::move(*work));
    pool_->post([task] { task->begin(); });
  }
}

void IngestServiceImpl::maintenance_loop() {
  const auto interval = std::chrono::milliseconds(options_.maintenance_interval_ms);
  std::unique_lock lock(mu_);
  while (!wake_.wait_for(lock, interval, [&] { return stop_; })) {
    lock.unlock();
    if (const Status s = run_maintenance(); !s.ok())
      log_warning("upkeep of documents and jobs failed; it is tried again",
                  {{"error", s.to_string()}});
    lock.lock();
  }
}

Status IngestServiceImpl::run_maintenance() {
  QUIRE_RETURN_IF_ERROR(table_.flush());
  const std::int64_t now = now_ms();
  {
    const std::lock_guard lock(mu_);
    if (options_.maintenance_interval_ms > 0 && now - last_expiry_ms_ < kExpiryEveryMs &&
        now >= last_expiry_ms_)
      return {};
    last_expiry_ms_ = now;
  }
  QUIRE_ASSIGN_OR_RETURN(const std::uint64_t expired, store_.expire(now));
  expired_ += static_cast<std::int64_t>(expired);
  return table_.purge(now);
}

IngestStats IngestServiceImpl::stats() const {
  IngestStats s;
  table_.fill(s);
  s.documents_expired = expired_;
  return s;
}

// -------------------------------------------------------------------------------------------------
// Taking documents in

Result<JobSnapshot> IngestServiceImpl::submit(std::string_view ns,
                                              std::vector<DocumentInput> documents,
                                              const BatchOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_namespace(ns));
  QUIRE_RETURN_IF_ERROR(check_batch_options(options));
  if (documents.empty()) return Status::invalid("documents", "must not be empty");
  if (documents.size() > static_cast<std::size_t>(options_.max_documents_per_call)) {
    return Status::invalid("documents", "has " + std::to_string(documents.size()) +
                                            " documents, the limit of one call is " +
                                            std::to_string(options_.max_documents_per_call) +
                                            "; send several calls");
  }
  if (documents.size() > 1 && (options.if_match || options.if_none_match_any)) {
    return Status::invalid(options.if_match ? "If-Match" : "If-None-Match",
                           "goes with a single document only");
  }
  JobRecord record;
  record.ns = ns;
  record.settings = {options.if_exists,
                     options.chunking,
                     options.ttl_seconds,
                     options.ttl_anchor,
                     options.pinned,
                     options.tier,
                     salt_digest_of(options.cache_salt),
                     options.if_match,
                     options.if_none_match_any,
                     options.in_batch};
  std::map<std::string, std::size_t, std::less<>> named;
  std::vector<std::string> packs;
  InputPack pack;
  std::size_t pack_bytes = 0;
  const auto close_pack = [&] {
    if (!pack.empty()) packs.push_back(encode_inputs(pack));
    pack.clear();
    pack_bytes = 0;
  };
  for (std::size_t i = 0; i < documents.size(); ++i) {
    DocumentInput& input = documents[i];
    ItemRecord item;
    item.view.index = static_cast<std::int32_t>(i);
    const std::string path = item_path(record.settings, item.view.index);
    auto error = check_document(input, options_, path);
    if (!error && input.id) {
      const auto [it, fresh] = named.emplace(*input.id, i);
      if (!fresh)
        error = ItemError{"invalid_value",
                          "the id is that of documents[" + std::to_string(it->second) + "] too",
                          join_path(path, "id")};
    }
    if (error) {
      if (input.id && check_document_id(*input.id).ok()) item.view.id = *input.id;
      item.view.result = ItemResult::kFailed;
      item.view.status = DocumentStatus::kFailed;
      item.view.error = std::move(error);
      record.items.push_back(std::move(item));
      continue;
    }
    item.content_hash = content_hash(input);
    item.given_id = input.id.has_value();
    item.view.id = input.id ? *input.id : id_from_hash(item.content_hash);
    item.input_bytes = input.text ? input.text->size() : 0;
    for (const std::string& c : input.chunks.value_or(std::vector<std::string>{}))
      item.input_bytes += c.size();
    item.pack = static_cast<std::uint32_t>(packs.size());
    pack.emplace_back(item.view.index, &input);
    pack_bytes += item.input_bytes;
    record.items.push_back(std::move(item));
    if (pack_bytes >= kPackBytes) close_pack();
  }
  close_pack();
  QUIRE_RETURN_IF_ERROR(check_preconditions(ns, record.items, options));
  documents.clear();
  auto job = table_.add(std::move(record), std::move(packs));
  if (job.ok()) pump();
  return job;
}

Status IngestServiceImpl::check_preconditions(std::string_view ns,
                                              const std::vector<ItemRecord>& items,
                                              const BatchOptions& options) {
  if (!options.if_match && !options.if_none_match_any) return {};
  if (items[0].view.finished()) return {};  // already refused
  const auto head = store_.get_document_head(ns, items[0].view.id);
  if (!head.ok() && head.code() != Code::kNotFound) return head.status();
  const bool ready = head.ok() && head->status == DocumentStatus::kReady;
  if (options.if_none_match_any && ready)
    return Status(Code::kFailedPrecondition, "the document exists", "If-None-Match");
  if (options.if_match &&
      (!ready || (*options.if_match != "*" && *options.if_match != head->content_hash))) {
    return Status(Code::kFailedPrecondition,
                  ready ? "the document's content hash is " + head->content_hash + ", not " +
                              *options.if_match
                        : "the document does not exist",
                  "If-Match");
  }
  return {};
}

Result<JobSnapshot> IngestServiceImpl::warm(std::string_view ns, std::string_view id) {
  const auto head = store_.get_document_head(ns, id);
  if (!head.ok())
    return head.code() == Code::kNotFound ? Status::not_found("no document " + std::string(id))
                                          : head.status();
  if (head->status != DocumentStatus::kReady)
    return Status::precondition("document " + std::string(id) + " is not ready");
  JobRecord record;
  record.ns = ns;
  record.type = JobType::kWarm;
  record.settings.salt_digest = head->salt_digest;
  record.settings.in_batch = false;
  ItemRecord item;
  item.view.id = id;
  item.content_hash = head->content_hash;
  item.input_bytes = head->text_bytes;
  item.given_id = true;
  record.items.push_back(std::move(item));
  auto job = table_.add(std::move(record), {});
  if (job.ok()) pump();
  return job;
}

// -------------------------------------------------------------------------------------------------
// Changing and deleting

Result<DocumentInfo> IngestServiceImpl::patch(std::string_view ns, std::string_view id,
                                              const DocumentPatch& patch) {
  if (patch.title) {
    DocumentInput probe;
    probe.title = *patch.title;
    probe.text = "x";
    if (const auto error = check_document(probe, options_, ""))
      return Status::invalid("title", error->message);
  }
  if (patch.ttl_seconds && *patch.ttl_seconds && patch.expires_at_ms && *patch.expires_at_ms) {
    return Status::invalid("expires_at", "give either ttl_seconds or expires_at");
  }
  if (patch.ttl_seconds && *patch.ttl_seconds &&
      (**patch.ttl_seconds == 0 || **patch.ttl_seconds > 100ull * 366 * 86400)) {
    return Status::invalid("ttl_seconds", "must be at least 1 and at most 100 years");
  }
  if (patch.expires_at_ms && *patch.expires_at_ms && **patch.expires_at_ms <= now_ms())
    return Status::invalid("expires_at", "lies in the past");
  const auto pending = table_.pending(ns, id);
  PinGate::Grant pin;  // until the store counts the document as pinned
  auto changed = store_.update_document(ns, id, [&](DocumentManifest& m) -> Status {
    if (m.status != DocumentStatus::kReady)
      return Status::precondition("document " + m.id + " is not ready");
    if (patch.metadata_json) {
      QUIRE_ASSIGN_OR_RETURN(m.metadata_json,
                             merge_metadata(m.metadata_json, *patch.metadata_json,
                                            static_cast<std::size_t>(options_.max_metadata_bytes)));
    }
    if (patch.title) m.title = *patch.title;
    if (patch.pinned && *patch.pinned && !m.pinned) {
      QUIRE_ASSIGN_OR_RETURN(pin, pins_.grant({stored_bytes(store_, {&m, 1}).disk, 0}));
    }
    if (patch.pinned) m.pinned = *patch.pinned;
    if (patch.ttl_anchor) m.ttl_anchor = *patch.ttl_anchor;
    if (patch.ttl_seconds) {
      m.ttl_seconds = *patch.ttl_seconds;
      // The later setting takes precedence, including its removal of the end.
      m.expires_at_ms.reset();
    }
    if (patch.expires_at_ms) m.expires_at_ms = *patch.expires_at_ms;
    return {};
  });
  if (!changed.ok()) {
    if (changed.code() != Code::kNotFound) return changed.status();
    if (pending) return Status::precondition("document " + std::string(id) + " is not ready");
    return Status::not_found("no document " + std::string(id));
  }
  return view_.describe(*changed, /*with_cache=*/true);
}

Status IngestServiceImpl::remove(std::string_view ns, std::string_view id) {
  auto cancelled = table_.cancel_document(ns, id);
  // An item that ended but is not saved would be repeated after a crash. Saving comes before the
  // deletion, because the repeated item may be an older version than the deleted one. It comes
  // again after the deletion and before the reply, for the items cancelled here.
  Status s = table_.flush_others();
  if (s.ok()) s = store_.delete_document(ns, id);
  cancelled.release();
  const Status saved = table_.flush();
  if (s.code() == Code::kNotFound && cancelled.num_items() == 0)
    return Status::not_found("no document " + std::string(id));
  if (!s.ok() && s.code() != Code::kNotFound) return s;
  return saved;
}

Result<BulkDeleteResult> IngestServiceImpl::remove_many(std::string_view ns,
                                                        const BulkDelete& request) {
  if (request.ids.empty() == !request.filter)
    return Status::invalid(request.filter ? "filter" : "ids", "give either ids or filter");
  if (request.filter && request.filter->empty())
    return Status::invalid("filter", "must not be empty; it would delete everything");
  std::vector<std::string> ids = request.ids;
  if (request.filter) {
    DocumentListOptions page;
    page.limit = 100;
    page.descending = false;
    page.filter = *request.filter;
    page.with_cache = false;
    while (true) {
      QUIRE_ASSIGN_OR_RETURN(const DocumentListPage found, view_.list(ns, page));
      for (const DocumentInfo& d : found.documents) ids.push_back(d.id);
      if (!found.has_more || found.documents.empty()) break;
      page.after = found.documents.back().id;
    }
  }
  BulkDeleteResult out;
  std::set<std::string> seen;
  for (const std::string& id : ids) {
    if (!seen.insert(id).second) continue;
    const Status s = request.dry_run ? view_.get(ns, id).status() : remove(ns, id);
    if (s.ok()) {
      out.deleted.push_back(id);
    } else if (s.code() == Code::kNotFound) {
      out.not_found.push_back(id);
    } else {
      out.failed.emplace_back(id, s);
    }
  }
  return out;
}

Status check_positive(std::int64_t value, const char* name) {
  if (value >= 1) return {};
  return Status::invalid(name, "must be at least 1, not " + std::to_string(value));
}

}  // namespace

Result<std::unique_ptr<IngestService>> create_ingest_service(IngestOptions options, Store& store,
                                                             Engine& engine) {
  QUIRE_RETURN_IF_ERROR(
      check_positive(options.max_documents_per_call, "limits.documents_per_call"));
  QUIRE_RETURN_IF_ERROR(check_positive(options.max_document_tokens, "limits.document_tokens"));
  QUIRE_RETURN_IF_ERROR(check_positive(options.max_metadata_bytes, "limits.metadata_bytes"));
  QUIRE_RETURN_IF_ERROR(check_positive(options.num_workers, "ingest.workers"));
  QUIRE_RETURN_IF_ERROR(
      check_positive(options.max_documents_in_flight, "ingest.documents_in_flight"));
  QUIRE_RETURN_IF_ERROR(
      check_positive(options.max_prefills_in_flight, "ingest.prefills_in_flight"));
  return std::unique_ptr<IngestService>(
      std::make_unique<IngestServiceImpl>(std::move(options), store, engine));
}

}  // namespace quire
