#include "server/vector_stores/vector_stores.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <mutex>
#include <utility>

#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/store_admin.h"
#include "ingest/ingest_service.h"
#include "ingest/prepared_text.h"
#include "server/json/text.h"
#include "server/reply/document_reply.h"
#include "server/service/services.h"
#include "server/support/problem.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr int kTries = 8;  // of a change that others come before

std::string record_name(const std::string& ns) { return "server/vector_stores/" + ns; }

std::vector<std::string> ids_in(const json::object& metadata) {
  std::vector<std::string> out;
  const auto* list = metadata.if_contains(kVectorStoresMember);
  if (list && list->is_array())
    for (const json::value& id : list->get_array())
      if (id.is_string()) out.emplace_back(id.get_string());
  return out;
}

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

AttachStep working(std::string job_id) {
  AttachStep s;
  s.at = AttachStep::At::kWorking;
  s.job_id = std::move(job_id);
  return s;
}

AttachStep failed(std::string code, std::string message) {
  AttachStep s;
  s.code = std::move(code);
  s.message = std::move(message);
  return s;
}

AttachStep failed(const Status& status, const std::string& ns, const std::string& id) {
  if (status.code() == Code::kNotFound)
    return failed("document_not_found",
                  "there is no document '" + id.substr(0, 256) + "' in the namespace '" + ns + "'");
  const bool busy = status.code() == Code::kFailedPrecondition;
  Problem p = problem_of(status, busy ? "document_not_ready" : "");
  AttachStep step = failed(std::move(p.code), std::move(p.detail));
  step.catalog_away = catalog_is_away(status);
  return step;
}

bool is_cut_so(const DocumentManifest& head, const StaticChunking& chunking) {
  const auto now = token_chunking(head);
  return now && now->max_tokens == chunking.max_tokens &&
         now->overlap_tokens == chunking.overlap_tokens;
}

/// Stores the document again from its text, cut anew. The job finds out if another change came
/// first.
AttachStep cut_again(Services& services, const DocumentManifest& head, FileToAttach& file) {
  if (!head.salt_digest.is_zero())
    return failed(
        "invalid_value",
        "the document was cached with a cache_salt, without which it cannot be cut again; "
        "post it again with the chunking that it is to have");
  DocumentCatalog& documents = services.ingest->documents();
  DocumentInput input;
  input.id = head.id;
  input.title = head.title;
  input.metadata_json = head.metadata_json;
  auto text = documents.content(head.ns, head.id);
  if (!text.ok()) return failed(text.status(), head.ns, head.id);
  input.text = std::move(*text);
  auto marks = documents.marks(head.ns, head.id);
  if (!marks.ok()) return failed(marks.status(), head.ns, head.id);
  input.marks = std::move(*marks);
  BatchOptions options;
  options.in_batch = false;
  options.chunking.max_tokens = file.chunking->max_tokens;
  options.chunking.overlap_tokens = file.chunking->overlap_tokens;
  options.ttl_seconds = head.ttl_seconds;
  options.ttl_anchor = head.ttl_anchor;
  options.pinned = head.pinned;
  options.kv = kv_policy(head);
  options.if_match = document_tag(head);
  // A new version begins a new life; the file keeps the one that it has.
  const bool by_use = head.ttl_seconds && head.ttl_anchor == TtlAnchor::kLastUsed &&
                      !head.expires_at_ms;
  file.expires_at_ms.reset();
  if (!by_use) file.expires_at_ms = head.effective_expiry_ms();
  std::vector<DocumentInput> inputs;
  inputs.push_back(std::move(input));
  const auto job = services.ingest->submit(head.ns, std::move(inputs), options);
  if (!job.ok()) return failed(job.status(), head.ns, head.id);
  ++file.tries;
  file.cut_job = job->id;
  return working(job->id);
}

/// Returns why the job did not cut the file; none: another change came before, so it may try again.
std::optional<AttachStep> why_not_cut(Services& services, const std::string& ns,
                                      const FileToAttach& file) {
  const auto job = services.ingest->jobs().job(ns, file.cut_job);
  if (!job.ok()) return failed(job.status(), ns, file.id);
  const auto* item = job->results.empty() ? nullptr : &job->results.front();
  if (item && item->result == ItemResult::kCancelled)
    return failed("invalid_value", "the job that cut it was cancelled");
  const bool overtaken = !item || !item->error || item->error->code == "precondition_failed";
  if (!overtaken)
    return failed(item->error->code, with_subject(item->error->message, item->error->param));
  if (file.tries < kTries) return std::nullopt;
  return failed("document_not_ready", "others changed it each time that it was cut");
}

}  // namespace

Result<std::vector<VectorStore>> vector_stores_of(const Services& services, const std::string& ns) {
  const auto text = services.store->get_shared_meta(record_name(ns));
  if (text.code() == Code::kNotFound) return std::vector<VectorStore>();
  if (!text.ok()) return text.status();
  return read_vector_stores(*text);
}

Status change_vector_stores(Services& services, const std::string& ns,
                            const std::function<Status(std::vector<VectorStore>&)>& change) {
  return services.store->update_shared_meta(
      record_name(ns), [&](const auto& before) -> Result<std::optional<std::string>> {
        std::vector<VectorStore> stores;
        if (before) {
          QUIRE_ASSIGN_OR_RETURN(stores, read_vector_stores(*before));
        }
        QUIRE_RETURN_IF_ERROR(change(stores));
        if (stores.empty()) return std::optional<std::string>();
        return std::optional(vector_stores_text(stores));
      });
}

MetadataFilter files_of_vector_store(const std::string& store_id) {
  return {MetadataCondition(std::string(kVectorStoresMember), store_id)};
}

bool is_in_vector_store(const DocumentInfo& document, const std::string& store_id) {
  const auto ids = ids_in(metadata_object(document.metadata_json));
  return std::ranges::find(ids, store_id) != ids.end();
}

Status not_in_vector_store() {
  return Status(Code::kNotFound, "the vector store does not have this file", "file_id");
}

bool is_not_in_vector_store(const Status& status) {
  return status.code() == Code::kNotFound && status.field() == "file_id";
}

Result<DocumentInfo> change_membership(Services& services, const std::string& ns,
                                       const std::string& id, const Membership& m) {
  DocumentCatalog& documents = services.ingest->documents();
  for (int i = 0;; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const DocumentInfo d, documents.get(ns, id));
    if (m.change != Membership::Change::kAttach && !is_in_vector_store(d, m.store_id))
      return not_in_vector_store();
    DocumentPatch patch;
    patch.metadata_json = to_text(metadata_patch(metadata_object(d.metadata_json), m));
    if (m.expires_at_ms && (!*m.expires_at_ms || **m.expires_at_ms > unix_ms_now())) {
      if (!*m.expires_at_ms) patch.ttl_seconds.emplace(std::nullopt);
      patch.expires_at_ms = m.expires_at_ms;
    }
    patch.condition.if_match = d.tag;
    auto changed = documents.patch(ns, id, patch);
    const bool overtaken = changed.code() == Code::kFailedPrecondition &&
                           changed.status().field() == "If-Match";
    if (!overtaken || i + 1 == kTries) return changed;
  }
}

std::optional<StaticChunking> chunking_of_file(const Services& services, const std::string& ns,
                                               const std::string& id) {
  const auto head = services.store->get_document_head(ns, id);
  if (!head.ok()) return std::nullopt;
  const auto cut = token_chunking(*head);
  if (!cut) return std::nullopt;
  return StaticChunking{cut->max_tokens, cut->overlap_tokens};
}

AttachStep attach_file_to(Services& services, const std::string& ns, const std::string& store_id,
                          FileToAttach& file, MayCut may_cut) {
  const auto d = services.ingest->documents().get(ns, file.id);
  if (!d.ok()) return failed(d.status(), ns, file.id);
  if (d->progress) return working(d->job_id);
  if (d->status == DocumentStatus::kFailed && d->error)
    return failed(d->error->code, with_subject(d->error->message, d->error->param));
  if (file.chunking) {
    const auto head = services.store->get_document_head(ns, file.id);
    if (!head.ok()) return failed(head.status(), ns, file.id);
    if (!is_cut_so(*head, *file.chunking)) {
      if (!file.cut_job.empty())
        if (auto why = why_not_cut(services, ns, file)) return std::move(*why);
      if (may_cut == MayCut::kNo) {
        AttachStep later;
        later.at = AttachStep::At::kLater;
        return later;
      }
      return cut_again(services, *head, file);
    }
  }
  const auto change = [&] {
    return change_membership(
        services, ns, file.id,
        {.store_id = store_id, .attributes = file.attributes, .expires_at_ms = file.expires_at_ms});
  };
  auto changed = change();
  // Another job may have taken the document since it was looked at, or another replica has it.
  for (int i = 1; changed.code() == Code::kFailedPrecondition && changed.status().field().empty() &&
                  i < kTries;
       ++i) {
    const auto job = services.ingest->documents().replacing_job(ns, file.id);
    if (!job.ok()) return failed(job.status(), ns, file.id);
    if (*job) return working(**job);
    changed = change();  // that job has ended meanwhile
  }
  if (!changed.ok()) return failed(changed.status(), ns, file.id);
  AttachStep attached;
  attached.at = AttachStep::At::kAttached;
  attached.document = std::move(*changed);
  return attached;
}

}  // namespace quire
