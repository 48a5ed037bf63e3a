#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdint>
#include <map>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/store_admin.h"
#include "server/handlers/common.h"
#include "server/handlers/files/files.h"
#include "server/handlers/handlers.h"
#include "server/handlers/ingest_answer.h"
#include "server/handlers/retrieve.h"
#include "server/json/vector_store_codec.h"
#include "server/reply/document_reply.h"
#include "server/reply/list_reply.h"
#include "server/support/request_id.h"
#include "server/vector_stores/file_batches.h"
#include "server/vector_stores/vector_stores.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostStores = 1000;  // of a namespace, since one record holds them
constexpr std::size_t kPage = 100;         // documents looked at in one go
constexpr std::chrono::milliseconds kCachingTime{595'000};

Status no_such_store() { return Status::not_found("no such vector store"); }

Problem no_store(const Call& call, const std::string& id) {
  // This service's copy of the list may be older than the vector store.
  if (const Status away = catalog_status(call.services.store->catalog_stats()); !away.ok())
    return ingest_problem(away);
  return make_problem(
      "vector_store_not_found",
      "there is no vector store '" + id.substr(0, 256) + "' in the namespace '" + call.ns + "'",
      "vector_store_id");
}

/// Calls `visit` with each document of a vector store, in the order of ids.
template <class Visit>
Status each_file(Services& services, const std::string& ns, const std::string& store_id,
                 Visit visit) {
  DocumentListOptions options;
  options.limit = kPage;
  options.descending = false;
  options.with_cache = false;
  options.filter.metadata = files_of_vector_store(store_id);
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const DocumentListPage page,
                           services.ingest->documents().list(ns, options));
    for (const DocumentInfo& d : page.documents) QUIRE_RETURN_IF_ERROR(visit(d));
    if (!page.has_more || page.documents.empty()) return {};
    options.after = page.documents.back().id;
  }
}

/// Returns the files that batches have yet to attach, each once and ordered. Some may be in the
/// vector store already.
std::vector<std::string> waiting_files(Call& call, const VectorStore& s) {
  std::vector<std::string> out = call.services.file_batches->waiting(call.ns, s.id, s.batches);
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

/// Returns a page of the files that are on their way into a vector store: documents of it that are
/// being cached for the first time, and what batches have yet to attach.
Result<DocumentListPage> files_in_progress(Call& call, const VectorStore& store,
                                           DocumentListOptions options) {
  DocumentCatalog& documents = call.services.ingest->documents();
  const auto before = [&](const std::string& a, const std::string& b) {
    return options.descending ? a > b : a < b;
  };
  std::map<std::string, DocumentInfo, decltype(before)> found(before);
  bool more = false;
  using enum DocumentStatus;
  for (const DocumentStatus status : {kQueued, kTokenizing, kPrefilling, kStoring}) {
    options.filter.status = status;
    QUIRE_ASSIGN_OR_RETURN(DocumentListPage page, documents.list(call.ns, options));
    more = more || page.has_more;
    for (DocumentInfo& d : page.documents) found.insert_or_assign(d.id, std::move(d));
  }
  std::vector<std::string> waiting = waiting_files(call, store);
  if (options.descending) std::ranges::reverse(waiting);
  std::size_t taken = 0;
  for (const std::string& id : waiting) {
    if (found.contains(id) || (!options.after.empty() && !before(options.after, id))) continue;
    // More of them than the page takes cannot be on it.
    if (++taken > options.limit + 1) break;
    auto d = documents.get(call.ns, id);
    if (d.ok()) found.emplace(id, std::move(*d));  // else it is deleted, and will fail
  }
  DocumentListPage out;
  for (auto& [id, d] : found) {
    if (out.documents.size() == options.limit) {
      more = true;
      break;
    }
    out.documents.push_back(std::move(d));
  }
  out.has_more = more;
  return out;
}

/// Counts the files of a vector store, or returns what was counted before, where nothing is under
/// way and no document of the namespace has changed since.
Result<FileCounts> count_files(Call& call, const VectorStore& s) {
  Services& services = call.services;
  FileCountCache& cache = services.file_batches->counts();
  const std::uint64_t changes = services.retrieval ? services.retrieval->changes(call.ns) : 0;
  const std::vector<std::string> waiting = waiting_files(call, s);
  bool settled = services.retrieval && waiting.empty();
  if (settled) {
    QUIRE_ASSIGN_OR_RETURN(const DocumentCounts all, services.ingest->documents().counts(call.ns));
    settled = all.in_progress == 0;
  }
  if (settled) {
    if (const auto known = cache.find(call.ns, s.id, changes, unix_ms_now())) return *known;
  }
  FileCounts n;
  // A batch may attach a document that is in the vector store already.
  n.in_progress = waiting.size();
  QUIRE_RETURN_IF_ERROR(each_file(services, call.ns, s.id, [&](const DocumentInfo& d) {
    n.bytes += d.bytes;
    if (d.expires_at_ms) n.until_ms = std::min(n.until_ms.value_or(INT64_MAX), *d.expires_at_ms);
    if (std::ranges::binary_search(waiting, d.id)) return Status();
    ++(d.progress ? n.in_progress : d.status == DocumentStatus::kFailed ? n.failed : n.completed);
    return Status();
  }));
  if (settled) cache.keep(call.ns, s.id, changes, n);
  return n;
}

/// Fails the call and returns no value where the documents cannot be counted.
std::optional<json::object> store_json(Call& call, const VectorStore& s) {
  const auto counted = count_files(call, s);
  if (!counted.ok()) {
    call.fail(ingest_problem(counted.status()));
    return std::nullopt;
  }
  const FileCounts& n = *counted;
  json::object out{{"id", s.id},
                   {"object", "vector_store"},
                   {"created_at", s.created_ms / 1000},
                   {"name", s.name},
                   {"description", s.description},
                   {"usage_bytes", n.bytes},
                   {"file_counts",
                    {{"in_progress", n.in_progress},
                     {"completed", n.completed},
                     {"failed", n.failed},
                     {"cancelled", 0},
                     {"total", n.completed + n.failed + n.in_progress}}},
                   {"status", n.in_progress > 0 ? "in_progress" : "completed"},
                   {"expires_after", nullptr},
                   {"expires_at", nullptr},
                   {"last_active_at", nullptr},
                   {"metadata", s.metadata}};
  return out;
}

/// Attaches documents one after the other, and waits for those that are being cached or cut again.
/// It holds no thread while it waits. While the service drains it waits for one of them at most,
/// and as long as once_draining() gives it.
class Attaching : public std::enable_shared_from_this<Attaching> {
 public:
  using Done = std::function<void(Call& call, const DocumentInfo& last)>;
  /// Takes back what was done before, as the call fails.
  using Undo = std::function<void(Call& call)>;
  /// `param` names the member that errors are about.
  Attaching(std::shared_ptr<Call> call, std::string store_id, std::string param,
            std::vector<FileToAttach> files, Done done, Undo undo = {})
      : call_(std::move(call)),
        store_id_(std::move(store_id)),
        param_(std::move(param)),
        files_(std::move(files)),
        done_(std::move(done)),
        undo_(std::move(undo)) {}

  void run() {
    Services& services = call_->services;
    const auto fence = call_->fence_changes();
    for (; next_ < files_.size(); ++next_) {
      AttachStep s = attach_file_to(services, call_->ns, store_id_, files_[next_], MayCut::kYes);
      if (s.at == AttachStep::At::kWorking) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            end_ - std::chrono::steady_clock::now());
        if (services.draining && waited_)
          return fail(make_problem("draining",
                                   "the service is shutting down, and the document '" +
                                       files_[next_].id.substr(0, 256) +
                                       "' is not attached; the job " + s.job_id +
                                       " goes on with it, after the next start if need be. "
                                       "Attach it then",
                                   param_));
        if (left.count() <= 0)
          return fail(make_problem("document_not_ready",
                                   "the document '" + files_[next_].id.substr(0, 256) +
                                       "' is still worked on by the job " + s.job_id,
                                   param_));
        waited_ = true;
        return when_job_ends(services, call_->ns, s.job_id, left,
                             [self = shared_from_this()] { self->run(); });
      }
      if (s.at != AttachStep::At::kAttached) return fail(make_problem(s.code, s.message, param_));
      last_ = std::move(s.document);
    }
    done_(*call_, last_);
  }

 private:
  void fail(const Problem& problem) {
    if (undo_) undo_(*call_);
    call_->fail(problem);
  }

  const std::shared_ptr<Call> call_;
  const std::string store_id_, param_;
  std::vector<FileToAttach> files_;
  const Done done_;
  const Undo undo_;
  const std::chrono::steady_clock::time_point end_ = std::chrono::steady_clock::now() +
                                                     kCachingTime;
  std::size_t next_ = 0;
  bool waited_ = false;
  DocumentInfo last_;
};

/// Removes a vector store with its batches, and from its documents, which stay. (disk, catalog)
/// Errors: no_such_store(), those of change_vector_stores() and of listing documents; the vector
/// store is gone after the latter.
Status remove_store(Call& call, const std::string& id) {
  Services& services = call.services;
  std::vector<std::string> batches;
  QUIRE_RETURN_IF_ERROR(
      change_vector_stores(services, call.ns, [&](std::vector<VectorStore>& stores) {
        const auto it = std::ranges::find(stores, id, &VectorStore::id);
        if (it == stores.end()) return no_such_store();
        batches = std::move(it->batches);
        stores.erase(it);
        return Status();
      }));
  services.file_batches->forget(call.ns, batches);
  // Nothing finds the id any more. A document that keeps it, because it is being replaced now,
  // loses it with the next version.
  std::vector<std::string> files;
  QUIRE_RETURN_IF_ERROR(each_file(services, call.ns, id, [&](const DocumentInfo& d) {
    files.push_back(d.id);
    return Status();
  }));
  for (const std::string& file : files)
    (void)change_membership(services, call.ns, file,
                            {.change = Membership::Change::kDetach, .store_id = id});
  return {};
}

void reply_store(Call& call, const VectorStore& s) {
  if (const auto body = store_json(call, s)) call.reply_json(200, *body);
}

/// Fails the call for an error of change_membership() or of looking a document up.
void fail_file(Call& call, const Status& status, const std::string& store_id,
               const std::string& id) {
  if (!is_not_in_vector_store(status)) return fail_document(call, status, id);
  call.fail(make_problem(
      "document_not_found",
      "the document '" + id.substr(0, 256) + "' is not in the vector store '" + store_id + "'",
      "file_id"));
}

/// Returns the document of the path if it is in the vector store; none: the call was failed.
std::optional<DocumentInfo> file_of_path(Call& call, const VectorStore& store) {
  const std::string id = call.path_param("file");
  auto d = call.services.ingest->documents().get(call.ns, id);
  if (d.ok() && is_in_vector_store(*d, store.id)) return std::move(*d);
  fail_file(call, d.ok() ? not_in_vector_store() : d.status(), store.id, id);
  return std::nullopt;
}

}  // namespace

void fail_store(Call& call, const Status& status, const std::string& id) {
  if (status.code() == Code::kNotFound) return call.fail(no_store(call, id));
  if (status.code() == Code::kResourceExhausted && status.field() == "vector_stores")
    return call.fail(make_problem("cache_full", status.message()));
  call.fail(ingest_problem(status));
}

std::optional<VectorStore> store_of_path(Call& call) {
  const std::string id = call.path_param("id");
  auto stores = vector_stores_of(call.services, call.ns);
  if (!stores.ok()) {
    fail_store(call, stores.status(), id);
    return std::nullopt;
  }
  const auto it = std::ranges::find(*stores, id, &VectorStore::id);
  if (it == stores->end()) {
    call.fail(no_store(call, id));
    return std::nullopt;
  }
  return std::move(*it);
}

json::object file_of_store_json(const Services& services, const DocumentInfo& d,
                                const std::string& store_id) {
  const bool bad = d.status == DocumentStatus::kFailed;
  json::object chunking{{"type", "other"}};
  if (const auto cut = chunking_of_file(services, d.ns, d.id))
    chunking = {{"type", "static"},
                {"static",
                 {{"max_chunk_size_tokens", cut->max_tokens},
                  {"chunk_overlap_tokens", cut->overlap_tokens}}}};
  return {{"id", d.id},
          {"object", "vector_store.file"},
          {"created_at", d.created_ms / 1000},
          {"vector_store_id", store_id},
          {"status", d.progress ? "in_progress"
                     : bad      ? "failed"
                                : "completed"},
          {"last_error", bad && d.error
                             ? json::value{{"code", "invalid_file"}, {"message", d.error->message}}
                             : json::value(nullptr)},
          {"usage_bytes", d.bytes},
          {"attributes", file_attributes(metadata_object(d.metadata_json))},
          {"chunking_strategy", std::move(chunking)}};
}

bool has_vector_stores(Call& call, const std::vector<std::string>& ids) {
  if (ids.empty()) return true;
  const auto stores = vector_stores_of(call.services, call.ns);
  for (const std::string& id : ids) {
    if (!stores.ok()) {
      fail_store(call, stores.status(), id);
      return false;
    }
    if (std::ranges::find(*stores, id, &VectorStore::id) != stores->end()) continue;
    call.fail(no_store(call, id));
    return false;
  }
  return true;
}

namespace handlers {

void create_vector_store(std::shared_ptr<Call> call) {
  const auto parsed = body_json(*call);
  if (!parsed) return;
  VectorStoreBody body;
  if (failed(*call, read_vector_store(*parsed, VectorStoreChange::kCreate, body))) return;
  if (const auto missing = missing_ids(*call, body.file_ids); !missing.empty())
    return call->fail(missing_documents(call->ns, missing, "file_ids"));
  VectorStore store;
  store.id = make_id("vs_");
  store.name = body.name.value_or("");
  store.description = body.description.value_or("");
  store.metadata = body.metadata.value_or(json::object());
  store.created_ms = unix_ms_now();
  const Status made = change_vector_stores(
      call->services, call->ns, [&](std::vector<VectorStore>& stores) {
        if (stores.size() >= kMostStores)
          return Status::exhausted("the namespace has " + std::to_string(kMostStores) +
                                   " vector stores, which is the most; delete one")
              .with_field("vector_stores");
        if (std::ranges::find(stores, store.id, &VectorStore::id) == stores.end())
          stores.push_back(store);
        return Status();
      });
  if (!made.ok()) return fail_store(*call, made, store.id);
  if (body.file_ids.empty()) return reply_store(*call, store);
  std::vector<FileToAttach> files;
  for (std::string& id : body.file_ids)
    files.push_back({.id = std::move(id), .chunking = body.chunking});
  std::make_shared<Attaching>(
      std::move(call), store.id, "file_ids", std::move(files),
      [store](Call& done, const DocumentInfo&) { reply_store(done, store); },
      [id = store.id](Call& failed) {
        // A client that tries again must not leave one behind with each try.
        if (const Status gone = remove_store(failed, id); !gone.ok())
          log_warning("a vector store whose files could not be attached stays",
                      {{"id", id}, {"reason", gone.to_string()}});
      })
      ->run();
}

void list_vector_stores(std::shared_ptr<Call> call) {
  const auto list = list_query(*call);
  if (!list) return;
  auto stores = vector_stores_of(call->services, call->ns);
  if (!stores.ok()) return fail_store(*call, stores.status(), "");
  if (list->descending) std::ranges::reverse(*stores);
  auto at = stores->begin();
  if (!list->after.empty()) {
    at = std::ranges::find(*stores, list->after, &VectorStore::id);
    if (at == stores->end()) return call->fail(no_store(*call, list->after));
    ++at;
  }
  json::array data;
  for (; at != stores->end() && data.size() < to_size(list->limit); ++at) {
    auto one = store_json(*call, *at);
    if (!one) return;
    data.push_back(std::move(*one));
  }
  call->reply_json(200, list_json(std::move(data), at != stores->end()));
}

void get_vector_store(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  if (const auto store = store_of_path(*call)) reply_store(*call, *store);
}

void modify_vector_store(std::shared_ptr<Call> call) {
  const auto parsed = body_json(*call);
  if (!parsed) return;
  VectorStoreBody body;
  if (failed(*call, read_vector_store(*parsed, VectorStoreChange::kModify, body))) return;
  const std::string id = call->path_param("id");
  VectorStore now;
  const Status changed = change_vector_stores(
      call->services, call->ns, [&](std::vector<VectorStore>& stores) {
        const auto it = std::ranges::find(stores, id, &VectorStore::id);
        if (it == stores.end()) return no_such_store();
        if (body.name) it->name = *body.name;
        if (body.metadata) it->metadata = *body.metadata;
        now = *it;
        return Status();
      });
  if (!changed.ok()) return fail_store(*call, changed, id);
  reply_store(*call, now);
}

void delete_vector_store(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  if (const Status gone = remove_store(*call, id); !gone.ok()) return fail_store(*call, gone, id);
  call->reply_json(200,
                   json::object{{"id", id}, {"object", "vector_store.deleted"}, {"deleted", true}});
}

void attach_file(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const auto parsed = body_json(*call);
  if (!parsed) return;
  VectorStoreFileBody body;
  if (failed(*call, read_vector_store_file(*parsed, VectorStoreChange::kCreate, body))) return;
  std::vector<FileToAttach> files;
  files.push_back({.id = std::move(body.file_id),
                   .attributes = std::move(body.attributes),
                   .chunking = body.chunking});
  std::make_shared<Attaching>(std::move(call), store->id, "file_id", std::move(files),
                              [id = store->id](Call& done, const DocumentInfo& d) {
                                done.reply_json(200, file_of_store_json(done.services, d, id));
                              })
      ->run();
}

void list_vector_store_files(std::shared_ptr<Call> call) {
  const auto list = list_query(*call, {"filter"});
  if (!list || !check_after(*call, list->after)) return;
  const auto store = store_of_path(*call);
  if (!store) return;
  DocumentListOptions options;
  options.after = list->after;
  options.limit = to_size(list->limit);
  options.descending = list->descending;
  options.with_cache = false;
  options.filter.metadata = files_of_vector_store(store->id);
  const auto* filter = call->request().param("filter");
  const bool in_progress = filter && *filter == "in_progress";
  const bool none = filter && *filter == "cancelled";  // what was not attached is no file of it
  if (filter && *filter == "completed") {
    options.filter.status = DocumentStatus::kReady;
  } else if (filter && *filter == "failed") {
    options.filter.status = DocumentStatus::kFailed;
  } else if (filter && !in_progress && !none) {
    return call->fail(make_problem("invalid_value",
                                   "filter is '" + filter->substr(0, 64) +
                                       "'; use in_progress, completed, failed or cancelled",
                                   "filter"));
  }
  DocumentListPage page;
  if (!none) {
    auto found = in_progress ? files_in_progress(*call, *store, options)
                             : call->services.ingest->documents().list(call->ns, options);
    if (!found.ok()) return call->fail(ingest_problem(found.status()));
    page = std::move(*found);
  }
  json::array data;
  for (const DocumentInfo& d : page.documents) {
    json::object file = file_of_store_json(call->services, d, store->id);
    // A document that a batch has yet to attach may be ready, or have failed before.
    if (in_progress) {
      file["status"] = "in_progress";
      file["last_error"] = nullptr;
    }
    data.push_back(std::move(file));
  }
  call->reply_json(200, list_json(std::move(data), page.has_more));
}

void get_vector_store_file(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const auto store = store_of_path(*call);
  if (!store) return;
  if (const auto d = file_of_path(*call, *store))
    call->reply_json(200, file_of_store_json(call->services, *d, store->id));
}

void vector_store_file_content(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const auto store = store_of_path(*call);
  if (!store) return;
  const auto d = file_of_path(*call, *store);
  if (!d) return;
  auto text = call->services.ingest->documents().content(call->ns, d->id);
  if (!text.ok()) return fail_file(*call, text.status(), store->id, d->id);
  json::array data;
  data.push_back(json::object{{"type", "text"}, {"text", std::move(*text)}});
  call->reply_json(200, json::object{{"object", "vector_store.file_content.page"},
                                     {"data", std::move(data)},
                                     {"has_more", false},
                                     {"next_page", nullptr}});
}

void modify_vector_store_file(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const auto parsed = body_json(*call);
  if (!parsed) return;
  VectorStoreFileBody body;
  if (failed(*call, read_vector_store_file(*parsed, VectorStoreChange::kModify, body))) return;
  const std::string file = call->path_param("file");
  const auto d = change_membership(call->services, call->ns, file,
                                   {.change = Membership::Change::kAttributes,
                                    .store_id = store->id,
                                    .attributes = std::move(body.attributes)});
  if (!d.ok()) return fail_file(*call, d.status(), store->id, file);
  call->reply_json(200, file_of_store_json(call->services, *d, store->id));
}

void detach_file(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const std::string file = call->path_param("file");
  const auto d = change_membership(call->services, call->ns, file,
                                   {.change = Membership::Change::kDetach, .store_id = store->id});
  if (!d.ok()) return fail_file(*call, d.status(), store->id, file);
  call->reply_json(
      200, json::object{{"id", file}, {"object", "vector_store.file.deleted"}, {"deleted", true}});
}

void search_vector_store(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const auto parsed = body_json(*call);
  if (!parsed) return;
  VectorStoreSearch search;
  if (failed(*call, read_vector_store_search(*parsed, search))) return;
  if (!call->services.retrieval) return call->fail(no_index());
  RetrieveRequest request;
  request.k = to_size(search.most);
  request.metadata = files_of_vector_store(store->id);
  request.metadata.insert(request.metadata.end(), search.filter.begin(), search.filter.end());
  // A chunk that several queries find counts once, with its best score.
  std::map<std::pair<std::string, std::int32_t>, Passage> best;
  for (const std::string& query : search.queries) {
    request.query = query;
    auto found = search_texts(*call, request, std::nullopt);
    if (!found.ok()) return call->fail(search_problem(found.status(), ""));
    for (Passage& p : found->passages) {
      if (p.score <= 0 || p.score < search.score_threshold) continue;
      const auto [it, added] = best.try_emplace({p.document_id, p.chunk}, p);
      if (!added && p.score > it->second.score) it->second = std::move(p);
    }
  }
  std::vector<Passage> passages;
  for (auto& [_, p] : best) passages.push_back(std::move(p));
  std::ranges::stable_sort(passages, std::greater(), &Passage::score);
  if (passages.size() > request.k) passages.resize(request.k);
  json::array data;
  for (const Passage& p : passages) {
    const json::object metadata = metadata_object(p.metadata_json);
    data.push_back(json::object{{"file_id", p.document_id},
                                {"filename", file_name(metadata, p.title, p.document_id)},
                                {"score", rounded(p.score, 6)},
                                {"attributes", file_attributes(metadata)},
                                {"content", json::array{{{"type", "text"}, {"text", p.text}}}}});
  }
  json::array queries(search.queries.begin(), search.queries.end());
  call->reply_json(200, json::object{{"object", "vector_store.search_results.page"},
                                     {"search_query", std::move(queries)},
                                     {"data", std::move(data)},
                                     {"has_more", false},
                                     {"next_page", nullptr}});
}

}  // namespace handlers
}  // namespace quire
