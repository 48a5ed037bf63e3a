#include "server/handlers/common.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "cachestore/catalog/shared_catalog.h"
#include "engine/api/plan.h"
#include "ingest/names.h"
#include "server/json/document_request.h"

namespace quire {
namespace json = boost::json;
namespace {

/// `draining`: it drained at the last look; a job that is nearly done may end between two looks.
void look_for_drain(Services& services, std::function<bool()> over, std::function<void()> then,
                    bool draining) {
  services.timers->at(
      TimerQueue::Clock::now() + std::chrono::seconds(1),
      [&services, over = std::move(over), then = std::move(then), draining]() mutable {
        if (over()) return;
        if (!draining)
          return look_for_drain(services, std::move(over), std::move(then), services.draining);
        // If the pool is stopping, the service ends what waits itself.
        (void)services.workers->post_reply(std::move(then));
      });
}

}  // namespace

std::string named_model(const json::value& body) {
  const auto* o = body.if_object();
  const auto* name = o ? o->if_contains("model") : nullptr;
  return name && name->is_string() ? std::string(name->get_string()) : std::string();
}

void peek_model(Call& call, const std::string& name) { (void)call.choose_model(name); }

bool choose_model(Call& call, const std::string& name) {
  if (call.choose_model(name)) return true;
  call.fail(make_problem("model_not_found",
                         "there is no model '" + name.substr(0, 256) + "'; this service has " +
                             model_names(call.services),
                         "model"));
  return false;
}

QueryDefaults query_defaults(Call& call) {
  const Config::Policy policy = call.model().config->policy;
  return {policy.strategy, policy.compress, policy.decode,
          to_size(call.services.config()->limits.documents_per_query)};
}

bool failed(Call& call, const std::optional<JsonError>& error) {
  if (error) call.fail(problem_of(*error));
  return error.has_value();
}

std::optional<Problem> window_problem(const Status& status, std::string_view subject,
                                      std::string_view advice) {
  const auto window = parse_window_exceeded(status);
  if (!window) return std::nullopt;
  Problem p = make_problem(
      "context_length_exceeded",
      std::string(subject) + " has " + std::to_string(window->actual) +
          " tokens, and the window (the model's own, or model.max_model_len) takes " +
          std::to_string(window->limit) + "; " + std::string(advice),
      status.field());
  p.extra["limit"] = window->limit;
  p.extra["actual"] = window->actual;
  return p;
}

Problem too_long_problem(const TextExcess& excess, std::string_view subject,
                         std::string_view advice, std::string param) {
  const std::string tokens = std::to_string(excess.most_tokens);
  std::string detail = std::string(subject) + " has " + std::to_string(excess.bytes) + " bytes";
  if (excess.bytes > excess.most_bytes)
    detail += ", and no text of more than " + std::to_string(excess.most_bytes) + " fits in the " +
              tokens + " tokens that are taken";
  else
    detail += " and more than the " + tokens + " tokens that are taken";
  Problem p = make_problem("context_length_exceeded", detail + "; " + std::string(advice),
                           std::move(param));
  p.extra["limit"] = excess.most_tokens;
  p.extra["actual"] = excess.least_tokens;
  return p;
}

Problem ingest_problem(const Status& status) {
  switch (status.code()) {
    case Code::kFailedPrecondition:
      return problem_of(status, "precondition_failed");
    case Code::kResourceExhausted:
      return problem_of(status, status.field() == "pinned" ? "cache_full" : "overloaded");
    case Code::kIo:
      // The follower has said that it is away, and the field is a setting, not one of the request.
      if (catalog_is_away(status)) return problem_of(status.with_field({}));
      [[fallthrough]];
    case Code::kInternal:
    case Code::kCorruption:
      log_error("the store or ingest failed", {{"reason", status.to_string()}});
      break;
    default:
      break;
  }
  return problem_of(status);
}

void fail_document(Call& call, const Status& status, const std::string& id) {
  if (status.code() == Code::kNotFound)
    return call.fail(make_problem(
        "document_not_found",
        "there is no document '" + id.substr(0, 256) + "' in the namespace '" + call.ns + "'",
        "id"));
  if (status.code() == Code::kFailedPrecondition && status.field().empty()) {
    Problem p = problem_of(status, "document_not_ready");
    p.param = "id";
    return call.fail(p);
  }
  call.fail(ingest_problem(status));
}

void fail_job(Call& call, const Status& status, const std::string& id) {
  if (status.code() == Code::kNotFound)
    return call.fail(make_problem("job_not_found",
                                  "there is no job '" + id.substr(0, 256) +
                                      "'; finished jobs are kept for 24 hours, at most "
                                      "the 10,000 newest",
                                  "id"));
  call.fail(ingest_problem(status));
}

void load_into_memory(const Services& services, const DocumentManifest& document) {
  AdminStore& store = *services.store;
  for (const auto& chunk : document.chunks) {
    const auto segment = chunk.key.is_zero() ? std::nullopt : store.peek_segment(chunk.key);
    if (!segment) continue;
    const SegmentLayout& layout = (*segment)->layout;
    for (std::uint32_t b = 0; b < layout.num_blocks; ++b)
      for (std::uint32_t g = 0; g < layout.values_per_block; ++g)
        if (services.stopping || !store.read_value(*segment, b, g).ok()) return;
  }
}

WhyStop when_left(std::shared_ptr<Call> call) {
  return [call = std::move(call)]() -> std::optional<Problem> {
    if (call->services.stopping) return make_problem("draining", "the service is shutting down");
    if (call->exchange->client_gone()) return make_problem("internal", "the client left");
    return std::nullopt;
  };
}

void post_encoding(std::shared_ptr<Call> call, std::function<void()> work) {
  if (!call->services.encoding->post(std::move(work), call->ns))
    call->fail(make_problem("overloaded", "too many requests wait for the encoder; try again"));
}

void once_draining(Services& services, std::function<bool()> over, std::function<void()> then) {
  look_for_drain(services, std::move(over), std::move(then), services.draining);
}

bool check_after(Call& call, const std::string& after) {
  if (after.empty() || check_document_id(after).ok()) return true;
  call.fail(make_problem(
      "invalid_value",
      "after is '" + after.substr(0, 64) + "', which is no id; give the last_id of the page before",
      "after"));
  return false;
}

bool read_batch_parameters(Call& call, BatchOptions& options, DocumentInput* document) {
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

}  // namespace quire
