#include <algorithm>
#include <boost/json/array.hpp>
#include <chrono>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "server/handlers/common.h"
#include "server/handlers/document_stream.h"
#include "server/handlers/handlers.h"
#include "server/handlers/ingest_answer.h"
#include "server/handlers/uploaded_files.h"
#include "server/http/entity_tags.h"
#include "server/json/document_request.h"
#include "server/json/document_upload.h"
#include "server/reply/document_reply.h"
#include "server/reply/job_reply.h"
#include "server/reply/list_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

/// A document that takes longer to be computed is loaded as far as it is then.
constexpr std::chrono::minutes kLongestWarm{60};

std::size_t max_documents(const Call& call) {
  return to_size(call.services.config()->limits.documents_per_call);
}

/// Reads the body, in any media type, as a batch. None: the call was failed.
std::optional<DocumentBatch> read_documents(Call& call, const std::string* put_id) {
  DocumentBatch batch;
  const std::string type = call.request().media_type();
  if (type == "text/plain" || type == "text/markdown") {
    batch.options.in_batch = false;
    batch.documents.emplace_back();
    if (type == "text/markdown") batch.options.chunking.strategy = ChunkStrategy::kMarkdown;
    if (!read_batch_parameters(call, batch.options, &batch.documents[0])) return std::nullopt;
    batch.documents[0].text = without_byte_order_mark(call.request().body);
    if (put_id) batch.documents[0].id = *put_id;
    return batch;
  }
  if (type == "multipart/form-data") {
    const std::string boundary =
        header_parameter(call.request().headers.get("content-type"), "boundary").value_or("");
    const std::string& body = call.request().body;
    if (!read_batch_parameters(call, batch.options, nullptr)) return std::nullopt;
    batch.chosen_strategy = call.request().param("strategy") != nullptr;
    if (failed(call, put_id ? read_multipart_put(body, boundary, *put_id, batch)
                            : read_multipart(body, boundary, max_documents(call), batch)))
      return std::nullopt;
    return batch;
  }
  if (!type.empty() && type != "application/json" && !type.ends_with("+json")) {
    call.fail(make_problem("unsupported_media_type",
                           "Content-Type is '" + type.substr(0, 128) + "'; use application/json, " +
                               (put_id ? "" : "application/x-ndjson, ") +
                               "text/plain, text/markdown or multipart/form-data",
                           "Content-Type"));
    return std::nullopt;
  }
  if (!check_parameters(call, {"wait"})) return std::nullopt;
  const auto body = body_json(call);
  if (!body) return std::nullopt;
  if (failed(call, put_id ? read_put(*body, *put_id, batch)
                          : read_batch(*body, max_documents(call), batch)))
    return std::nullopt;
  return batch;
}

/// Returns the tags as DocumentCondition holds them. A tag with a space is none of a document.
std::string tag_list(const EntityTags& tags, bool with_weak) {
  if (tags.any) return "*";
  std::string out;
  const auto add = [&out](const std::string& tag) {
    if (tag != "*" && tag.find(' ') == std::string::npos)
      out.append(out.empty() ? "" : " ").append(tag);
  };
  for (const std::string& tag : tags.strong) add(tag);
  if (with_weak)
    for (const std::string& tag : tags.weak) add(tag);
  return out;
}

/// Reads If-Match and If-None-Match. If-Match compares strongly, If-None-Match weakly (RFC 9110,
/// section 8.8.3.2). Fails the call and returns false for a malformed one.
bool read_condition(Call& call, DocumentCondition& out) {
  for (const bool match : {true, false}) {
    const char* name = match ? "If-Match" : "If-None-Match";
    const auto given = joined_fields(call.request().headers, name);
    if (!given) continue;
    const auto tags = parse_entity_tags(*given);
    if (!tags) {
      call.fail(make_problem(
          "invalid_value",
          std::string(name) + " must be '*' or entity tags in quotes with commas between", name));
      return false;
    }
    (match ? out.if_match : out.if_none_match) = tag_list(*tags, !match);
  }
  return true;
}

std::pair<std::string, std::string> tag_header(const DocumentInfo& d) {
  return {"ETag", "\"" + d.tag + "\""};
}

/// Loads the document's KV into memory once the job has made it whole.
void load_when_warm(Services& services, const std::string& ns, const std::string& id,
                    const std::string& job_id) {
  const auto load = [&services, ns, id] {
    if (const auto head = services.store->get_document_head(ns, id); head.ok())
      load_into_memory(services, *head);
  };
  // Large documents take a while, and other calls need the workers.
  when_job_ends(services, ns, job_id, kLongestWarm, [&services, id, load] {
    if (services.draining) return;  // memory is about to go
    if (!services.maintenance->post(load) && !services.stopping)
      log_warning("a warmed document stays on disk: too many loads into memory wait", {{"id", id}});
  });
}

void submit_batches(std::shared_ptr<Call> call, std::vector<DocumentBatch> batches, bool put,
                    std::int64_t wait_ms) {
  const bool single = batches.size() == 1 && !batches[0].options.in_batch;
  std::vector<JobSnapshot> jobs;
  std::vector<std::size_t> places;
  for (DocumentBatch& batch : batches) {
    places.insert(places.end(), batch.places.begin(), batch.places.end());
    auto job = call->services.ingest->submit(call->ns, std::move(batch.documents), batch.options);
    if (!job.ok()) {
      Problem p = ingest_problem(job.status());
      if (!jobs.empty()) p.extra["job_ids"] = json::array{jobs[0].id};
      return call->fail(p);
    }
    observe_job(call->services, call->ns, job->id);
    jobs.push_back(std::move(*job));
  }
  answer_ingest(std::move(call), std::move(jobs), {wait_ms, single, put, std::move(places)});
}

void submit(std::shared_ptr<Call> call, DocumentBatch batch, bool put) {
  const auto wait_ms = wait_preference(*call);
  if (!wait_ms) return;
  const auto config = call->services.config();
  const auto remote = std::ranges::find_if(batch.files,
                                           [](const UploadedFile& f) { return !f.url.empty(); });
  if (remote != batch.files.end() && (config->fetch.hosts.empty() || !call->services.reader)) {
    const std::string path = batch.options.in_batch
                                 ? "documents[" + std::to_string(remote->index) + "].url"
                                 : "url";
    return call->fail(make_problem(
        "unsupported_parameter",
        call->services.reader
            ? "this service fetches nothing; list the hosts that it may ask in fetch.hosts"
            : "this service has no quire-reader beside it, which reads fetched files",
        path));
  }
  if (batch.files.empty() || !call->services.reader) {
    if (failed(*call, take_files_as_text(batch))) return;
    std::vector<DocumentBatch> one;
    one.push_back(std::move(batch));
    return submit_batches(std::move(call), std::move(one), put, *wait_ms);
  }
  // A reader may take minutes, and other calls need the workers.
  const auto files = std::make_shared<DocumentBatch>(std::move(batch));
  const bool queued = call->services.file_readers->post(
      [call, files, put, config, wait = *wait_ms] {
        std::optional<Problem> problem;
        hub::FetchRules rules;
        rules.hosts = config->fetch.hosts;
        rules.private_addresses = config->fetch.private_addresses;
        rules.max_bytes = static_cast<std::uint64_t>(config->fetch.max_bytes);
        rules.seconds = static_cast<std::int32_t>(config->fetch.timeout_seconds);
        auto batches = read_uploaded_files(*call->services.reader, rules, std::move(*files),
                                           when_left(call), problem);
        if (problem) return call->fail(*problem);
        const auto fence = call->fence_changes();
        submit_batches(call, std::move(batches), put, wait);
      },
      call->ns);
  if (!queued) call->fail(make_problem("overloaded", "too many files wait; try again"));
}

}  // namespace

namespace handlers {

void post_documents(std::shared_ptr<Call> call) {
  if (call->request().media_type() == kNdjsonType) return post_document_stream(std::move(call));
  auto batch = read_documents(*call, nullptr);
  if (batch) submit(std::move(call), std::move(*batch), false);
}

void put_document(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  auto batch = read_documents(*call, &id);
  if (!batch) return;
  DocumentCondition condition;
  if (!read_condition(*call, condition)) return;
  batch->options.if_match = condition.if_match;
  if (condition.if_none_match) {
    if (*condition.if_none_match != "*")
      return call->fail(
          make_problem("invalid_value", "If-None-Match of a PUT must be '*'", "If-None-Match"));
    batch->options.if_none_match_any = true;
  }
  submit(std::move(call), std::move(*batch), true);
}

void list_documents(std::shared_ptr<Call> call) {
  const auto list = list_query(*call, {"status", "metadata.", "include"});
  if (!list || !check_after(*call, list->after)) return;
  DocumentListOptions options;
  options.after = list->after;
  options.limit = to_size(list->limit);
  options.descending = list->descending;
  bool counts = false;
  for (const auto& [name, value] : call->request().query) {
    if (name == "include") {
      if (value != "counts")
        return call->fail(make_problem(
            "invalid_value", "include is '" + value.substr(0, 64) + "'; use counts", "include"));
      counts = true;
    } else if (name == "status" || name.starts_with("metadata.")) {
      if (failed(*call, read_filter_member(name, value, options.filter))) return;
    }
  }
  const auto page = call->services.ingest->documents().list(call->ns, options);
  if (!page.ok()) return call->fail(ingest_problem(page.status()));
  json::array data;
  for (const auto& d : page->documents) data.push_back(document_json(d));
  ListPage reply{.data = std::move(data), .has_more = page->has_more};
  if (counts) {
    const auto c = call->services.ingest->documents().counts(call->ns);
    if (!c.ok()) return call->fail(ingest_problem(c.status()));
    reply.counts = document_counts_reply().json(*c);
  }
  call->reply_json(200, document_list_reply().json(reply));
}

void get_document(std::shared_ptr<Call> call) {
  DocumentCondition condition;
  if (!check_parameters(*call, {}) || !read_condition(*call, condition)) return;
  const std::string id = call->path_param("id");
  const auto d = call->services.ingest->documents().get(call->ns, id);
  if (!d.ok()) return fail_document(*call, d.status(), id);
  const Status holds = check_condition(condition, d->tag, d->content_hash);
  if (!holds.ok() && holds.field() == "If-Match") return call->fail(ingest_problem(holds));
  // While a job works on the document, its progress is news.
  if (!holds.ok() && !d->progress) {
    HttpResponse unchanged;
    unchanged.status = 304;
    unchanged.headers.set("ETag", tag_header(*d).second);
    return call->reply(std::move(unchanged));
  }
  call->reply_json(200, document_json(*d), {tag_header(*d)});
}

void patch_document(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const auto body = body_json(*call);
  if (!body) return;
  DocumentPatch patch;
  if (failed(*call, read_patch(*body, patch)) || !read_condition(*call, patch.condition)) return;
  const std::string id = call->path_param("id");
  const auto d = call->services.ingest->documents().patch(call->ns, id, patch);
  if (!d.ok()) return fail_document(*call, d.status(), id);
  call->reply_json(200, document_json(*d), {tag_header(*d)});
}

void delete_document(std::shared_ptr<Call> call) {
  DocumentCondition condition;
  if (!check_parameters(*call, {}) || !read_condition(*call, condition)) return;
  const std::string id = call->path_param("id");
  if (const auto s = call->services.ingest->documents().remove(call->ns, id, condition); !s.ok())
    return fail_document(*call, s, id);
  call->reply_json(200, json::object{{"id", id}, {"object", "document"}, {"deleted", true}});
}

void bulk_delete(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const auto body = body_json(*call);
  if (!body) return;
  BulkDelete request;
  if (failed(*call, read_bulk_delete(*body, request))) return;
  const auto result = call->services.ingest->documents().remove_many(call->ns, request);
  if (!result.ok()) return call->fail(ingest_problem(result.status()));
  BulkDeletion reply{request.dry_run, *result, {}};
  for (const auto& [id, status] : result->failed) {
    const Problem p = problem_of(status);
    reply.failed.push_back({id, {p.code, p.detail, ""}});
  }
  call->reply_json(200, bulk_deletion_reply().json(reply));
}

void document_content(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const std::string id = call->path_param("id");
  auto text = call->services.ingest->documents().content(call->ns, id);
  if (!text.ok()) return fail_document(*call, text.status(), id);
  HttpResponse r;
  r.content_type = "text/plain; charset=utf-8";
  r.body = std::move(*text);
  call->reply(std::move(r));
}

void document_chunks(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const std::string id = call->path_param("id");
  const auto chunks = call->services.ingest->documents().chunks(call->ns, id);
  if (!chunks.ok()) return fail_document(*call, chunks.status(), id);
  json::array data;
  for (const auto& c : *chunks) data.push_back(chunk_json(c));
  call->reply_json(200, list_json(std::move(data), false, "index"));
}

void document_blocks(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const std::string id = call->path_param("id");
  const auto blocks = call->services.ingest->documents().blocks(call->ns, id);
  if (!blocks.ok()) return fail_document(*call, blocks.status(), id);
  json::array data;
  for (const auto& b : *blocks) data.push_back(block_json(b));
  call->reply_json(200, list_json(std::move(data), false, "block_id"));
}

void warm_document(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  std::string tier;
  if (!call->request().body.empty()) {
    const auto body = body_json(*call);
    if (!body) return;
    JsonReader r(*body, "");
    if (r.ok()) {
      r.one_of("tier", tier, {"dram", "disk"});
      r.finish();
    }
    if (failed(*call, r.error())) return;
  }
  const std::string id = call->path_param("id");
  const auto job = call->services.ingest->warm(call->ns, id);
  if (!job.ok()) return fail_document(*call, job.status(), id);
  if (tier == "dram") load_when_warm(call->services, call->ns, id, job->id);
  call->reply_json(202, job_json(*job), {{"Location", "/v1/jobs/" + job->id}});
}

}  // namespace handlers
}  // namespace quire
