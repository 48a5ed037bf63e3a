#include <atomic>
#include <boost/json/array.hpp>
#include <mutex>
#include <utility>

#include "base/index.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/document_request.h"
#include "server/json/document_upload.h"
#include "server/reply/document_reply.h"
#include "server/reply/job_reply.h"
#include "server/reply/list_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

class NdjsonSink final : public BodySink {
 public:
  NdjsonSink(Call& call, std::shared_ptr<NdjsonReader> reader)
      : call_(call), reader_(std::move(reader)) {}
  std::optional<HttpResponse> write(std::string_view piece) override {
    const auto error = reader_->feed(piece);
    if (!error) return std::nullopt;
    call_.add_log("error_code", error->code);
    HttpResponse r = problem_response(problem_of(*error), call_.style, call_.instance,
                                      call_.request_id);
    call_.add_standard_headers(r.headers);
    return r;
  }

 private:
  Call& call_;  // the exchange owns both
  std::shared_ptr<NdjsonReader> reader_;
};

constexpr std::string_view kNdjson = "application/x-ndjson";

std::size_t max_documents(const Call& call) {
  return to_size(call.services.config()->limits.documents_per_call);
}

/// Reads options and id from query parameters, for bodies that are not JSON.
bool read_parameters(Call& call, BatchOptions& options, DocumentInput* document) {
  for (const auto& [name, value] : call.request().query) {
    if (name == "wait") continue;
    if (document && name == "id") {
      document->id = value;
      continue;
    }
    if (document && name == "title") {
      document->title = value;
      continue;
    }
    std::optional<JsonError> error;
    if (!read_option(name, value, options, error)) {
      call.fail(make_problem("unknown_field",
                             "unknown query parameter '" + name.substr(0, 128) + "'",
                             name.substr(0, 128)));
      return false;
    }
    if (failed(call, error)) return false;
  }
  return true;
}

/// Reads the body, in any media type, as a batch. None: the call was failed.
std::optional<DocumentBatch> read_documents(Call& call, const std::string* put_id) {
  DocumentBatch batch;
  const std::string type = call.request().media_type();
  if (type == "text/plain" || type == "text/markdown") {
    batch.options.in_batch = false;
    batch.documents.emplace_back();
    if (type == "text/markdown") batch.options.chunking.strategy = ChunkStrategy::kMarkdown;
    if (!read_parameters(call, batch.options, &batch.documents[0])) return std::nullopt;
    batch.documents[0].text = call.request().body;
    if (put_id) batch.documents[0].id = *put_id;
    return batch;
  }
  if (!put_id && type == kNdjson) {
    auto reader = std::static_pointer_cast<NdjsonReader>(call.body_state);
    if (!reader) {
      reader = std::make_shared<NdjsonReader>(max_documents(call));
      if (failed(call, reader->feed(call.request().body))) return std::nullopt;
    }
    if (failed(call, reader->finish())) return std::nullopt;
    batch.documents = reader->take();
    if (!read_parameters(call, batch.options, nullptr)) return std::nullopt;
    if (batch.documents.empty()) {
      call.fail(make_problem("invalid_value",
                             "the body has no document; send one JSON object a line", "documents"));
      return std::nullopt;
    }
    return batch;
  }
  if (!put_id && type == "multipart/form-data") {
    const auto boundary = header_parameter(call.request().headers.get("content-type"), "boundary");
    if (!read_parameters(call, batch.options, nullptr)) return std::nullopt;
    if (failed(call, read_multipart(call.request().body, boundary.value_or(""), max_documents(call),
                                    batch)))
      return std::nullopt;
    return batch;
  }
  if (!type.empty() && type != "application/json" && !type.ends_with("+json")) {
    call.fail(make_problem("unsupported_media_type",
                           "Content-Type is '" + type.substr(0, 128) +
                               "'; use application/json, application/x-ndjson, text/plain, "
                               "text/markdown or multipart/form-data",
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

/// Replies 200 or 201 for finished jobs, 202 with the job's place for others. If a single document
/// failed, the call fails with its error.
void reply_ingest(Call& call, const JobSnapshot& job, bool single, bool put) {
  if (single && job.results.size() == 1 && job.results[0].result == ItemResult::kFailed &&
      job.results[0].error) {
    const ItemError& e = *job.results[0].error;
    Problem p = make_problem(e.code, e.message, e.param);
    p.extra["job_id"] = job.id;
    return call.fail(p);
  }
  int status = job.finished() ? 200 : 202;
  if (put && job.finished() && job.results.size() == 1 &&
      job.results[0].result == ItemResult::kCreated)
    status = 201;
  call.add_log("documents", std::to_string(job.counts.total));
  std::vector<std::pair<std::string, std::string>> headers;
  if (!job.finished()) headers.emplace_back("Location", "/v1/jobs/" + job.id);
  call.reply_json(status, ingest_json(job), std::move(headers));
}

/// Waits for a job's end without a thread. The job or the timer replies, whichever comes first.
struct JobWait {
  std::shared_ptr<Call> call;
  std::string job_id;
  bool single = false, put = false;
  std::atomic<bool> answered{false};
  std::mutex mu;
  Subscription subscription;  // guarded by mu

  void drop() {
    Subscription dropped;
    std::lock_guard lock(mu);
    dropped = std::exchange(subscription, Subscription());
  }
  void answer(const JobSnapshot* finished) {
    if (answered.exchange(true)) return;
    if (finished) {
      reply_ingest(*call, *finished, single, put);
    } else {
      const auto now = call->services.ingest->jobs().job(call->ns, job_id);
      if (now.ok())
        reply_ingest(*call, *now, single, put);
      else
        fail_job(*call, now.status(), job_id);
    }
  }
};

void answer_job(std::shared_ptr<Call> call, const JobSnapshot& job, std::int64_t wait_ms,
                bool single, bool put) {
  if (job.finished() || wait_ms <= 0) return reply_ingest(*call, job, single, put);
  auto wait = std::make_shared<JobWait>();
  wait->call = call;
  wait->job_id = job.id;
  wait->single = single;
  wait->put = put;
  Services& services = call->services;
  const auto timer = services.timers->at(
      TimerQueue::Clock::now() + std::chrono::milliseconds(wait_ms), [wait, &services] {
        const auto over = [wait] {
          wait->answer(nullptr);
          wait->drop();
        };
        if (!services.workers->post(over)) over();
      });
  auto subscription = services.ingest->jobs().subscribe(
      call->ns, job.id, [wait, &services, timer](JobEvent event, const JobSnapshot& snapshot) {
        if (event != JobEvent::kDone) return;
        services.timers->cancel(timer);
        wait->answer(&snapshot);
        // The listener must not drop the subscription itself, because that destroys the listener.
        // If the pool is full or stopping, the service ends its listeners itself.
        (void)services.workers->post([wait] { wait->drop(); });
      });
  if (!subscription.ok()) return wait->answer(nullptr);
  std::lock_guard lock(wait->mu);
  if (!wait->answered) wait->subscription = std::move(*subscription);
}

/// Records the job's duration once it ends, whether or not a client waits for it.
void observe_job(Services& services, const std::string& ns, const std::string& job_id) {
  struct Watch {
    std::mutex mu;
    Subscription subscription;  // guarded by mu
    bool over = false;          // guarded by mu
    void drop() {
      Subscription dropped;
      std::lock_guard lock(mu);
      over = true;
      dropped = std::exchange(subscription, Subscription());
    }
  };
  auto watch = std::make_shared<Watch>();
  auto subscription = services.ingest->jobs().subscribe(
      ns, job_id, [&services, watch](JobEvent event, const JobSnapshot& job) {
        if (event != JobEvent::kDone) return;
        if (job.started_ms > 0)
          services.metrics->ingest_finished(static_cast<double>(job.finished_ms - job.started_ms) /
                                            1000.0);
        // The listener must not drop the subscription itself, because that destroys the listener.
        // If the pool is full or stopping, the service ends its listeners itself.
        (void)services.workers->post([watch] { watch->drop(); });
      });
  if (!subscription.ok()) return;  // the job is already gone, so it is not counted
  std::lock_guard lock(watch->mu);
  if (!watch->over) watch->subscription = std::move(*subscription);
}

void submit(std::shared_ptr<Call> call, DocumentBatch batch, bool put) {
  const auto wait_ms = wait_preference(*call);
  if (!wait_ms) return;
  const bool single = !batch.options.in_batch;
  auto job = call->services.ingest->submit(call->ns, std::move(batch.documents), batch.options);
  if (!job.ok()) return call->fail(ingest_problem(job.status()));
  observe_job(call->services, call->ns, job->id);
  answer_job(std::move(call), *job, *wait_ms, single, put);
}

}  // namespace

std::shared_ptr<BodySink> make_document_sink(Call& call, const HttpRequest& request) {
  if (request.method != "POST" || request.media_type() != kNdjson || !call.idempotency_slot.empty())
    return nullptr;
  auto reader = std::make_shared<NdjsonReader>(max_documents(call));
  call.body_state = reader;
  return std::make_shared<NdjsonSink>(call, std::move(reader));
}

namespace handlers {

void post_documents(std::shared_ptr<Call> call) {
  auto batch = read_documents(*call, nullptr);
  if (batch) submit(std::move(call), std::move(*batch), false);
}

void put_document(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  auto batch = read_documents(*call, &id);
  if (!batch) return;
  const auto& headers = call->request().headers;
  if (const auto* v = headers.find("if-match")) {
    std::string hash = *v;
    if (hash.size() >= 2 && hash.front() == '"' && hash.back() == '"')
      hash = hash.substr(1, hash.size() - 2);
    batch->options.if_match = hash;
  }
  if (const auto* v = headers.find("if-none-match")) {
    if (*v != "*")
      return call->fail(
          make_problem("invalid_value", "If-None-Match must be '*'", "If-None-Match"));
    batch->options.if_none_match_any = true;
  }
  submit(std::move(call), std::move(*batch), true);
}

void list_documents(std::shared_ptr<Call> call) {
  const auto list = list_query(*call, {"status", "metadata.", "include"});
  if (!list) return;
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
  if (!check_parameters(*call, {})) return;
  const std::string id = call->path_param("id");
  const auto d = call->services.ingest->documents().get(call->ns, id);
  if (!d.ok()) return fail_document(*call, d.status(), id);
  call->reply_json(200, document_json(*d), {{"ETag", "\"" + d->content_hash + "\""}});
}

void patch_document(std::shared_ptr<Call> call) {
  const auto body = body_json(*call);
  if (!body) return;
  DocumentPatch patch;
  if (failed(*call, read_patch(*body, patch))) return;
  const std::string id = call->path_param("id");
  const auto d = call->services.ingest->documents().patch(call->ns, id, patch);
  if (!d.ok()) return fail_document(*call, d.status(), id);
  call->reply_json(200, document_json(*d));
}

void delete_document(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  if (const auto s = call->services.ingest->documents().remove(call->ns, id); !s.ok())
    return fail_document(*call, s, id);
  call->reply_json(200, json::object{{"id", id}, {"object", "document"}, {"deleted", true}});
}

void bulk_delete(std::shared_ptr<Call> call) {
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
  const std::string id = call->path_param("id");
  auto text = call->services.ingest->documents().content(call->ns, id);
  if (!text.ok()) return fail_document(*call, text.status(), id);
  HttpResponse r;
  r.content_type = "text/plain; charset=utf-8";
  r.body = std::move(*text);
  call->reply(std::move(r));
}

void document_chunks(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  const auto chunks = call->services.ingest->documents().chunks(call->ns, id);
  if (!chunks.ok()) return fail_document(*call, chunks.status(), id);
  json::array data;
  for (const auto& c : *chunks) data.push_back(chunk_json(c));
  call->reply_json(200, list_json(std::move(data), false, "index"));
}

void document_blocks(std::shared_ptr<Call> call) {
  const std::string id = call->path_param("id");
  const auto blocks = call->services.ingest->documents().blocks(call->ns, id);
  if (!blocks.ok()) return fail_document(*call, blocks.status(), id);
  json::array data;
  for (const auto& b : *blocks) data.push_back(block_json(b));
  call->reply_json(200, list_json(std::move(data), false, "block_id"));
}

void warm_document(std::shared_ptr<Call> call) {
  if (!call->request().body.empty()) {
    const auto body = body_json(*call);
    if (!body) return;
    JsonReader r(*body, "");
    std::string tier = "dram";
    if (r.ok()) {
      r.one_of("tier", tier, {"dram", "disk", "gpu", "remote"});
      if (r.ok() && (tier == "gpu" || tier == "remote"))
        r.fail("tier", "tier is '" + tier + "', which this build does not have; use dram or disk");
      r.finish();
    }
    if (failed(*call, r.error())) return;
  }
  const std::string id = call->path_param("id");
  const auto job = call->services.ingest->warm(call->ns, id);
  if (!job.ok()) {
    if (job.code() == Code::kResourceExhausted)
      return call->fail(problem_of(job.status(), "cache_full"));
    return fail_document(*call, job.status(), id);
  }
  call->reply_json(202, job_json(*job), {{"Location", "/v1/jobs/" + job->id}});
}

}  // namespace handlers
}  // namespace quire
