#include <algorithm>
#include <boost/json/array.hpp>
#include <map>
#include <utility>

#include "base/index.h"
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

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostStores = 1000;  // of a namespace, since one record holds them
constexpr std::size_t kPage = 100;         // documents looked at in one go
constexpr int kTries = 8;                  // of a change that others come before
constexpr std::chrono::milliseconds kCachingTime{595'000};

std::string record_name(const std::string& ns) { return "server/vector_stores/" + ns; }

Result<std::vector<VectorStore>> stores_of(const Services& services, const std::string& ns) {
  const auto text = services.store->get_meta(record_name(ns));
  if (text.code() == Code::kNotFound) return std::vector<VectorStore>();
  if (!text.ok()) return text.status();
  return read_vector_stores(*text);
}

/// Changes the record of the namespace's vector stores. The change may refuse by an error.
template <class Change>
Status change_stores(Services& services, const std::string& ns, Change change) {
  std::lock_guard lock(services.vector_stores_mu);
  QUIRE_ASSIGN_OR_RETURN(std::vector<VectorStore> stores, stores_of(services, ns));
  QUIRE_RETURN_IF_ERROR(change(stores));
  if (stores.empty()) return services.store->delete_meta(record_name(ns));
  return services.store->put_meta(record_name(ns), vector_stores_text(stores));
}

Problem no_store(const Call& call, const std::string& id) {
  return make_problem(
      "vector_store_not_found",
      "there is no vector store '" + id.substr(0, 256) + "' in the namespace '" + call.ns + "'",
      "vector_store_id");
}

Status no_such_store() { return Status::not_found("no such vector store"); }

/// Fails the call for an error of the record.
void fail_store(Call& call, const Status& status, const std::string& id) {
  if (status.code() == Code::kNotFound) return call.fail(no_store(call, id));
  if (status.code() == Code::kResourceExhausted && status.field() == "vector_stores")
    return call.fail(make_problem("cache_full", status.message()));
  call.fail(ingest_problem(status));
}

/// Returns the vector store of the path; none: the call was failed.
std::optional<VectorStore> store_of_path(Call& call) {
  const std::string id = call.path_param("id");
  auto stores = stores_of(call.services, call.ns);
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

MetadataFilter files_of(const std::string& store_id) {
  return {MetadataCondition(std::string(kVectorStoresMember), store_id)};
}

std::vector<std::string> ids_in(const json::object& metadata) {
  std::vector<std::string> out;
  const auto* list = metadata.if_contains(kVectorStoresMember);
  if (list && list->is_array())
    for (const json::value& id : list->get_array())
      if (id.is_string()) out.emplace_back(id.get_string());
  return out;
}

bool holds(const DocumentInfo& d, const std::string& store_id) {
  const auto ids = ids_in(metadata_object(d.metadata_json));
  return std::ranges::find(ids, store_id) != ids.end();
}

/// Calls `visit` with each document of a vector store, in the order of ids.
template <class Visit>
Status each_file(Services& services, const std::string& ns, const std::string& store_id,
                 Visit visit) {
  DocumentListOptions options;
  options.limit = kPage;
  options.descending = false;
  options.with_cache = false;
  options.filter.metadata = files_of(store_id);
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const DocumentListPage page,
                           services.ingest->documents().list(ns, options));
    for (const DocumentInfo& d : page.documents) QUIRE_RETURN_IF_ERROR(visit(d));
    if (!page.has_more || page.documents.empty()) return {};
    options.after = page.documents.back().id;
  }
}

/// Fails the call and returns no value where the documents cannot be counted.
std::optional<json::object> store_json(Call& call, const VectorStore& s) {
  std::uint64_t bytes = 0, completed = 0, failed = 0, in_progress = 0;
  const Status counted = each_file(call.services, call.ns, s.id, [&](const DocumentInfo& d) {
    bytes += d.bytes;
    ++(d.progress ? in_progress : d.status == DocumentStatus::kFailed ? failed : completed);
    return Status();
  });
  if (!counted.ok()) {
    call.fail(ingest_problem(counted));
    return std::nullopt;
  }
  json::object out{{"id", s.id},
                   {"object", "vector_store"},
                   {"created_at", s.created_ms / 1000},
                   {"name", s.name},
                   {"description", s.description},
                   {"usage_bytes", bytes},
                   {"file_counts",
                    {{"in_progress", in_progress},
                     {"completed", completed},
                     {"failed", failed},
                     {"cancelled", 0},
                     {"total", completed + failed + in_progress}}},
                   {"status", in_progress > 0 ? "in_progress" : "completed"},
                   {"expires_after", nullptr},
                   {"expires_at", nullptr},
                   {"last_active_at", nullptr},
                   {"metadata", s.metadata}};
  return out;
}

json::object file_of_store_json(const DocumentInfo& d, const std::string& store_id) {
  const bool bad = d.status == DocumentStatus::kFailed;
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
          {"chunking_strategy", {{"type", "other"}}}};
}

/// What becomes of a document's place in a vector store and of its attributes.
struct Membership {
  enum class Change : unsigned char { kAttach, kDetach, kAttributes } change = Change::kAttach;
  std::string store_id;
  json::object attributes = {};
};

/// Returns the merge patch of a document's metadata.
json::object metadata_patch(const json::object& metadata, const Membership& m) {
  json::object patch;
  auto ids = ids_in(metadata);
  const auto at = std::ranges::find(ids, m.store_id);
  if (m.change == Membership::Change::kAttach && at == ids.end()) ids.push_back(m.store_id);
  if (m.change == Membership::Change::kDetach && at != ids.end()) ids.erase(at);
  if (ids.empty())
    patch[kVectorStoresMember] = nullptr;
  else
    patch[kVectorStoresMember] = json::array(ids.begin(), ids.end());
  if (m.change == Membership::Change::kAttributes)
    for (const auto& [key, value] : file_attributes(metadata)) patch[key] = nullptr;
  for (const auto& [key, value] : m.attributes) patch[key] = value;
  return patch;
}

/// Applies it to a document that is ready, on the version that it has just read.
Result<DocumentInfo> change_membership(const Call& call, const std::string& id,
                                       const Membership& m) {
  DocumentCatalog& documents = call.services.ingest->documents();
  for (int i = 0;; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const DocumentInfo d, documents.get(call.ns, id));
    if (m.change != Membership::Change::kAttach && !holds(d, m.store_id))
      return Status::not_found("the vector store does not have this file");
    DocumentPatch patch;
    patch.metadata_json = to_text(metadata_patch(metadata_object(d.metadata_json), m));
    patch.condition.if_match = d.tag;
    auto changed = documents.patch(call.ns, id, patch);
    const bool overtaken = changed.code() == Code::kFailedPrecondition &&
                           changed.status().field() == "If-Match";
    if (!overtaken || i + 1 == kTries) return changed;
  }
}

/// Attaches documents one after the other, and waits for those that are still being cached. It
/// holds no thread while it waits.
class Attaching : public std::enable_shared_from_this<Attaching> {
 public:
  using Done = std::function<void(Call& call, const DocumentInfo& last)>;
  Attaching(std::shared_ptr<Call> call, std::vector<std::string> ids, Membership membership,
            Done done)
      : call_(std::move(call)),
        ids_(std::move(ids)),
        membership_(std::move(membership)),
        done_(std::move(done)) {}

  void run() {
    for (; next_ < ids_.size(); ++next_, waited_ = false) {
      const std::string& id = ids_[next_];
      auto d = call_->services.ingest->documents().get(call_->ns, id);
      if (!d.ok()) return fail_document(*call_, d.status(), id);
      if (d->progress && !waited_) {
        waited_ = true;
        return when_job_ends(call_->services, call_->ns, d->job_id, kCachingTime,
                             [self = shared_from_this()] { self->run(); });
      }
      if (d->status == DocumentStatus::kFailed && d->error)
        return call_->fail(make_problem(
            d->error->code, with_subject(d->error->message, d->error->param), "file_id"));
      auto changed = change_membership(*call_, id, membership_);
      if (!changed.ok()) return fail_document(*call_, changed.status(), id);
      last_ = std::move(*changed);
    }
    done_(*call_, last_);
  }

 private:
  const std::shared_ptr<Call> call_;
  const std::vector<std::string> ids_;
  const Membership membership_;
  const Done done_;
  std::size_t next_ = 0;
  bool waited_ = false;  // for the document that is next
  DocumentInfo last_;
};

void reply_store(Call& call, const VectorStore& s) {
  if (const auto body = store_json(call, s)) call.reply_json(200, *body);
}

/// Returns the document of the path if it is in the vector store; none: the call was failed.
std::optional<DocumentInfo> file_of_path(Call& call, const VectorStore& store) {
  const std::string id = call.path_param("file");
  auto d = call.services.ingest->documents().get(call.ns, id);
  Status status = d.status();
  if (d.ok() && !holds(*d, store.id)) status = Status::not_found("it is not in this vector store");
  if (!status.ok()) {
    fail_document(call, status, id);
    return std::nullopt;
  }
  return std::move(*d);
}

}  // namespace

bool has_vector_stores(Call& call, const std::vector<std::string>& ids) {
  if (ids.empty()) return true;
  const auto stores = stores_of(call.services, call.ns);
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
  const Status made = change_stores(
      call->services, call->ns, [&](std::vector<VectorStore>& stores) {
        if (stores.size() >= kMostStores)
          return Status::exhausted("the namespace has " + std::to_string(kMostStores) +
                                   " vector stores, which is the most; delete one")
              .with_field("vector_stores");
        stores.push_back(store);
        return Status();
      });
  if (!made.ok()) return fail_store(*call, made, store.id);
  if (body.file_ids.empty()) return reply_store(*call, store);
  std::make_shared<Attaching>(
      std::move(call), std::move(body.file_ids), Membership{.store_id = store.id},
      [store](Call& done, const DocumentInfo&) { reply_store(done, store); })
      ->run();
}

void list_vector_stores(std::shared_ptr<Call> call) {
  const auto list = list_query(*call);
  if (!list) return;
  auto stores = stores_of(call->services, call->ns);
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
  const Status changed = change_stores(
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
  const Status gone = change_stores(
      call->services, call->ns, [&](std::vector<VectorStore>& stores) {
        return std::erase_if(stores, [&](const VectorStore& s) { return s.id == id; }) > 0
                   ? Status()
                   : no_such_store();
      });
  if (!gone.ok()) return fail_store(*call, gone, id);
  // Nothing finds the id any more. A document that keeps it, because it is being replaced now,
  // loses it with the next version.
  std::vector<std::string> files;
  const Status listed = each_file(call->services, call->ns, id, [&](const DocumentInfo& d) {
    files.push_back(d.id);
    return Status();
  });
  if (!listed.ok()) return call->fail(ingest_problem(listed));
  for (const std::string& file : files)
    (void)change_membership(*call, file, {Membership::Change::kDetach, id});
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
  Membership membership{.store_id = store->id, .attributes = std::move(body.attributes)};
  std::make_shared<Attaching>(std::move(call), std::vector{body.file_id}, std::move(membership),
                              [id = store->id](Call& done, const DocumentInfo& d) {
                                done.reply_json(200, file_of_store_json(d, id));
                              })
      ->run();
}

void list_vector_store_files(std::shared_ptr<Call> call) {
  const auto list = list_query(*call, {"filter"});
  if (!list) return;
  const auto store = store_of_path(*call);
  if (!store) return;
  DocumentListOptions options;
  options.after = list->after;
  options.limit = to_size(list->limit);
  options.descending = list->descending;
  options.with_cache = false;
  options.filter.metadata = files_of(store->id);
  bool none = false;  // only documents that are ready can be attached
  if (const auto* filter = call->request().param("filter")) {
    none = *filter == "in_progress" || *filter == "failed" || *filter == "cancelled";
    if (!none && *filter != "completed")
      return call->fail(make_problem("invalid_value",
                                     "filter is '" + filter->substr(0, 64) +
                                         "'; use in_progress, completed, failed or cancelled",
                                     "filter"));
  }
  DocumentListPage page;
  if (!none) {
    auto found = call->services.ingest->documents().list(call->ns, options);
    if (!found.ok()) return call->fail(ingest_problem(found.status()));
    page = std::move(*found);
  }
  json::array data;
  for (const DocumentInfo& d : page.documents) data.push_back(file_of_store_json(d, store->id));
  call->reply_json(200, list_json(std::move(data), page.has_more));
}

void get_vector_store_file(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const auto store = store_of_path(*call);
  if (!store) return;
  if (const auto d = file_of_path(*call, *store))
    call->reply_json(200, file_of_store_json(*d, store->id));
}

void modify_vector_store_file(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const auto parsed = body_json(*call);
  if (!parsed) return;
  VectorStoreFileBody body;
  if (failed(*call, read_vector_store_file(*parsed, VectorStoreChange::kModify, body))) return;
  const std::string file = call->path_param("file");
  const auto d = change_membership(
      *call, file, {Membership::Change::kAttributes, store->id, std::move(body.attributes)});
  if (!d.ok()) return fail_document(*call, d.status(), file);
  call->reply_json(200, file_of_store_json(*d, store->id));
}

void detach_file(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const std::string file = call->path_param("file");
  const auto d = change_membership(*call, file, {Membership::Change::kDetach, store->id});
  if (!d.ok()) return fail_document(*call, d.status(), file);
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
  request.metadata = files_of(store->id);
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
