#include "ingest/ingest_service.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "ingest/context_resolver.h"
#include "ingest/document_task.h"
#include "ingest/job_table.h"
#include "ingest/model_view.h"
#include "ingest/names.h"
#include "ingest/prepared_text.h"
#include "ingest/store_catalog.h"
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
        catalog_(store_, engine_, table_, pins_, options_),
        resolver_(store_, engine_, table_, options_, nullptr,
                  [this](const std::string& ns, const std::string& id) { refresh(ns, id); }) {}
  ~IngestServiceImpl() override { stop(); }

  Status start() override;
  void stop() override;

  Result<JobSnapshot> submit(std::string_view ns, std::vector<DocumentInput> documents,
                             const BatchOptions& options) override;
  Result<JobSnapshot> warm(std::string_view ns, std::string_view id) override;
  Result<Admission> admit(const DocumentManifest& document, std::uint64_t text_bytes) override;

  DocumentCatalog& documents() override { return catalog_; }
  JobBoard& jobs() override { return table_; }

  Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                           const ResolveOptions& options) override {
    return resolver_.resolve(ns, ids, options);
  }
  std::unique_ptr<ModelDocuments> documents_of(Engine& engine) override {
    return std::make_unique<ModelView>(store_, engine, table_, pins_, options_);
  }
  std::string tenant(std::string_view ns) const override { return options_.tenant(ns); }
  std::array<std::uint8_t, 32> salt_digest(std::string_view cache_salt) const override {
    return to_bytes(salt_digest_of(cache_salt));
  }

  Status run_maintenance() override;
  IngestStats stats() const override;
  const IngestOptions& options() const override { return options_; }

 private:
  Status check_preconditions(std::string_view ns, const std::vector<ItemRecord>& items,
                             const BatchOptions& options);
  void refresh(const std::string& ns, const std::string& id);
  void pump();
  void maintenance_loop();

  const IngestOptions options_;
  Store& store_;
  Engine& engine_;
  PinGate pins_;
  NamespaceRoom room_;
  JobTable table_;
  StoreCatalog catalog_;
  ContextResolver resolver_;
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
      TaskContext{store_, engine_, table_, *pool_, options_, pins_, room_, [this] { pump(); }});
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
  // A full disk keeps jobs from being saved, and the rest is what makes room on it.
  Status first = table_.flush();
  const auto note = [&first](const Status& s) {
    if (first.ok()) first = s;
  };
  if (const Status s = table_.sync_shared(); !catalog_is_away(s)) note(s);
  pump();  // documents that were put back go on, such as those that waited for a shared catalog
  const std::int64_t now = options_.now_ms();
  {
    const std::lock_guard lock(mu_);
    if (options_.maintenance_interval_ms > 0 && now - last_expiry_ms_ < kExpiryEveryMs &&
        now >= last_expiry_ms_)
      return first;
    last_expiry_ms_ = now;
  }
  const auto expired = store_.expire(now);
  if (expired.ok()) expired_ += static_cast<std::int64_t>(*expired);
  note(expired.status());
  note(table_.purge(now));
  return first;
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
  // A job that cannot go on is not taken, though it would not be lost.
  QUIRE_RETURN_IF_ERROR(catalog_status(store_.catalog_stats()));
  QUIRE_RETURN_IF_ERROR(check_batch_options(options));
  if (options.chunking.related_tokens > 0 && !options_.find_chunks)
    return Status::invalid(
        "chunking.related_tokens",
        "chunking.related_tokens needs the index of words; set retrieve.enabled = "
        "true, or leave it out");
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
                     options.in_batch,
                     options.kv,
                     !options.chunking.lead_in.has_value()};
  if (record.settings.lead_in_by_default)
    record.settings.chunking.lead_in = options_.lead_in && options_.lead_in(ns);
  std::map<std::string, std::size_t, std::less<>> named;
  std::vector<SavedPack> packs;
  InputPack pack;
  std::size_t pack_bytes = 0;
  const auto close_pack = [&] {
    if (pack.empty()) return;
    SavedPack& saved = packs.emplace_back();
    saved.inputs = encode_inputs(pack);
    for (const auto& [index, input] : pack)
      saved.texts.emplace_back(index, take_document_text(*input));
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

Result<Admission> IngestServiceImpl::admit(const DocumentManifest& document,
                                           std::uint64_t text_bytes) {
  const EngineInfo& info = engine_.info();
  std::uint64_t tokens = 0;
  for (const DocumentChunk& c : document.chunks) tokens += c.num_tokens;
  RoomNeed need{.wanted = text_bytes + kv_bytes(info, tokens)};
  const auto existing = store_.get_document_head(document.ns, document.id);
  if (existing.ok()) need.replaced = existing->text_bytes + kv_bytes(info, existing->num_tokens);
  Admission out;
  QUIRE_ASSIGN_OR_RETURN(
      out.room, reserve_room(store_, info, room_, document.ns, options_.namespace_bytes, need));
  if (!document.pinned || kv_policy(document) == KvPolicy::kTextOnly) return out;
  if (existing.ok() && existing->status == DocumentStatus::kReady && existing->pinned)
    tokens -= std::min(tokens, existing->num_tokens);
  if (tokens == 0) return out;
  QUIRE_ASSIGN_OR_RETURN(out.pin, pins_.grant({kv_bytes(info, tokens), 0}));
  return out;
}

Status IngestServiceImpl::check_preconditions(std::string_view ns,
                                              const std::vector<ItemRecord>& items,
                                              const BatchOptions& options) {
  if (!options.if_match && !options.if_none_match_any) return {};
  if (items[0].view.finished()) return {};  // already refused
  // The tag may be that of a change of another replica that is not here yet.
  QUIRE_RETURN_IF_ERROR(store_.refresh_document(ns, items[0].view.id));
  const auto head = store_.get_document_head(ns, items[0].view.id);
  if (!head.ok() && head.code() != Code::kNotFound) return head.status();
  const bool ready = head.ok() && head->status == DocumentStatus::kReady;
  if (options.if_none_match_any && ready)
    return Status(Code::kFailedPrecondition, "the document exists", "If-None-Match");
  if (options.if_match &&
      (!ready || !tags_match(*options.if_match, document_tag(*head), head->content_hash))) {
    return Status(Code::kFailedPrecondition,
                  ready ? "the document has changed: its tag is " + document_tag(*head)
                        : "the document does not exist",
                  "If-Match");
  }
  return {};
}

Result<JobSnapshot> IngestServiceImpl::warm(std::string_view ns, std::string_view id) {
  auto head = store_.get_document_head(ns, id);
  if (head.code() == Code::kNotFound) {  // here; another replica may have made it a moment ago
    QUIRE_RETURN_IF_ERROR(store_.refresh_document(ns, id));
    head = store_.get_document_head(ns, id);
  }
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

/// Has a document's KV made anew, unless a job is at it.
void IngestServiceImpl::refresh(const std::string& ns, const std::string& id) {
  if (!pool_ || table_.pending(ns, id)) return;
  pool_->post([this, ns, id] {
    if (table_.pending(ns, id)) return;
    const auto job = warm(ns, id);
    log_info("a document's KV has seen texts that are changed or deleted; it is made anew",
             {{"namespace", ns},
              {"document_id", id},
              {"job_id", job.ok() ? job->id : ""},
              {"error", job.ok() ? "" : job.status().to_string()}});
  });
}

Status check_positive(std::int64_t value, const char* name) {
  if (value >= 1) return {};
  return Status::invalid(name, "must be at least 1, not " + std::to_string(value));
}

}  // namespace

std::int64_t IngestOptions::now_ms() const {
  if (clock_ms) return clock_ms();
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string IngestOptions::tenant(std::string_view ns) const {
  return share_across_namespaces ? std::string() : std::string(ns);
}

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
