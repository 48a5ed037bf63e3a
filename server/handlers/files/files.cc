#include "server/handlers/files/files.h"

#include <boost/json/array.hpp>
#include <cstdio>
#include <utility>

#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/handlers/ingest_answer.h"
#include "server/handlers/uploaded_files.h"
#include "server/json/document_upload.h"
#include "server/json/vector_store_codec.h"
#include "server/reply/document_reply.h"
#include "server/reply/list_reply.h"
#include "server/support/request_id.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Clients of OpenAI give up after ten minutes.
constexpr std::chrono::milliseconds kCachingTime{595'000};

/// Returns an id whose order is that of creation, because lists are in the order of ids.
std::string new_file_id() {
  char time[24];
  std::snprintf(time, sizeof time, "%011llx", static_cast<unsigned long long>(unix_ms_now()));
  return make_id("file-" + std::string(time) + "-");
}

/// Replies with the file, or with why its job made none.
void reply_file(Call& call, const std::string& job_id, const std::string& id) {
  // The reason why there is no document at all is known to the job alone.
  const auto job = call.services.ingest->jobs().job(call.ns, job_id);
  const JobItem* item = job.ok() && !job->results.empty() ? &job->results.front() : nullptr;
  if (item && item->result == ItemResult::kFailed && item->error) {
    const ItemError& e = *item->error;
    Problem p = make_problem(e.code, with_subject(e.message, e.param), "file");
    p.extra["job_id"] = job_id;
    return call.fail(p);
  }
  if (item && item->result == ItemResult::kCancelled)
    return call.fail(make_problem("request_cancelled",
                                  "the job " + job_id + ", which caches the file, was cancelled",
                                  "file"));
  const auto d = call.services.ingest->documents().get(call.ns, id);
  if (!d.ok()) return fail_document(call, d.status(), id);
  if (d->status == DocumentStatus::kFailed && d->error)
    return call.fail(
        make_problem(d->error->code, with_subject(d->error->message, d->error->param), "file"));
  call.reply_json(200, file_json(*d));
}

/// Makes a job of the batch, which is one document, and replies once it has ended. So a file can be
/// attached as soon as its upload is answered. While the service drains the reply says `uploaded`:
/// the job is stored, and goes on at the next start.
void cache_file(std::shared_ptr<Call> call, DocumentBatch batch, const std::string& id) {
  Services& services = call->services;
  auto job = services.ingest->submit(call->ns, std::move(batch.documents), batch.options);
  if (!job.ok()) return call->fail(ingest_problem(job.status()));
  observe_job(services, call->ns, job->id);
  call->add_log("documents", "1");
  const std::string ns = call->ns;
  when_job_ends(services, ns, job->id, kCachingTime,
                [call = std::move(call), job_id = job->id, id] { reply_file(*call, job_id, id); });
}

}  // namespace

std::string file_name(const json::object& metadata, const std::string& title,
                      const std::string& id) {
  if (const auto* name = metadata.if_contains("filename"); name && name->is_string())
    return std::string(name->get_string());
  return title.empty() ? id : title;
}

json::object file_json(const DocumentInfo& d) {
  const json::object metadata = metadata_object(d.metadata_json);
  const auto* purpose = metadata.if_contains("purpose");
  const bool ready = d.status == DocumentStatus::kReady;
  return {{"id", d.id},
          {"object", "file"},
          {"bytes", d.bytes},
          {"created_at", d.created_ms / 1000},
          {"expires_at", d.expires_at_ms ? json::value(*d.expires_at_ms / 1000) : nullptr},
          {"filename", file_name(metadata, d.title, d.id)},
          {"purpose", purpose && *purpose == "assistants" ? "assistants" : "user_data"},
          {"status", ready                                 ? "processed"
                     : d.status == DocumentStatus::kFailed ? "error"
                                                           : "uploaded"},
          {"status_details", d.error ? json::value(d.error->message) : nullptr}};
}

namespace handlers {

void create_file(std::shared_ptr<Call> call) {
  const std::string type = call->request().media_type();
  if (type != "multipart/form-data")
    return call->fail(make_problem("unsupported_media_type",
                                   "Content-Type is '" + type.substr(0, 128) +
                                       "'; send a form (multipart/form-data) with file and purpose",
                                   "Content-Type"));
  if (!check_parameters(*call, {})) return;
  const std::string id = new_file_id();
  DocumentBatch batch;
  const std::string boundary =
      header_parameter(call->request().headers.get("content-type"), "boundary").value_or("");
  if (failed(*call, read_file_form(call->request().body, boundary, id, batch))) return;
  std::string().swap(call->exchange->request.body);
  if (!call->services.reader) {
    if (failed(*call, take_files_as_text(batch))) return;
    return cache_file(std::move(call), std::move(batch), id);
  }
  // A reader may take minutes, and other calls need the workers.
  const auto files = std::make_shared<DocumentBatch>(std::move(batch));
  const bool queued = call->services.file_readers->post(
      [call, files, id] {
        std::optional<Problem> problem;
        auto batches = read_uploaded_files(*call->services.reader, {}, std::move(*files),
                                           when_left(call), problem);
        if (problem) return call->fail(*problem);
        const auto fence = call->fence_changes();
        cache_file(call, std::move(batches.front()), id);
      },
      call->ns);
  if (!queued) call->fail(make_problem("overloaded", "too many files wait; try again"));
}

void list_files(std::shared_ptr<Call> call) {
  const auto list = list_query(*call, {"purpose"});
  if (!list || !check_after(*call, list->after)) return;
  DocumentListOptions options;
  options.after = list->after;
  options.limit = static_cast<std::size_t>(list->limit);
  options.descending = list->descending;
  options.with_cache = false;
  if (const auto* purpose = call->request().param("purpose")) {
    if (!is_file_purpose(*purpose))
      return call->fail(make_problem(
          "unsupported_parameter",
          "purpose is '" + purpose->substr(0, 64) + "'; use assistants or user_data", "purpose"));
    options.filter.metadata.emplace_back("purpose", *purpose);
  }
  const auto page = call->services.ingest->documents().list(call->ns, options);
  if (!page.ok()) return call->fail(ingest_problem(page.status()));
  json::array data;
  for (const DocumentInfo& d : page->documents) data.push_back(file_json(d));
  call->reply_json(200, list_json(std::move(data), page->has_more));
}

void get_file(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const std::string id = call->path_param("id");
  const auto d = call->services.ingest->documents().get(call->ns, id);
  if (!d.ok()) return fail_document(*call, d.status(), id);
  call->reply_json(200, file_json(*d));
}

void delete_file(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  if (const auto s = call->services.ingest->documents().remove(call->ns, id); !s.ok())
    return fail_document(*call, s, id);
  call->reply_json(200, json::object{{"id", id}, {"object", "file"}, {"deleted", true}});
}

}  // namespace handlers
}  // namespace quire
