#include "server/support/problem.h"

#include <algorithm>
#include <boost/json/serialize.hpp>

#include "server/support/http_status.h"

namespace quire {
namespace json = boost::json;

const std::vector<ProblemKind>& problem_kinds() {
  using enum RetryHint;
  static const std::vector<ProblemKind> kinds = {
      {"invalid_json", 400, "The body is not valid JSON", "invalid_request_error", kNone},
      {"unknown_field", 400, "A field or parameter does not exist", "invalid_request_error", kNone},
      {"invalid_value", 400, "A value is not valid", "invalid_request_error", kNone},
      {"unsupported_parameter", 400, "A parameter is not supported", "invalid_request_error",
       kNone},
      {"context_length_exceeded", 400, "The prompt does not fit the model's window",
       "invalid_request_error", kNone},
      {"document_too_long", 400, "The document is too long", "invalid_request_error", kNone},
      {"missing_api_key", 401, "An API key is needed", "authentication_error", kNone},
      {"invalid_api_key", 401, "The API key is not known", "authentication_error", kNone},
      {"invalid_token", 401, "The token is not valid here", "authentication_error", kNone},
      {"insufficient_scope", 403, "The API key may not do this", "permission_error", kNone},
      {"host_not_allowed", 403, "The service does not answer to this host", "permission_error",
       kNone},
      {"origin_not_allowed", 403, "A page of this origin may not call the service",
       "permission_error", kNone},
      {"namespace_denied", 403, "The API key may not use this namespace", "permission_error",
       kNone},
      {"document_not_found", 404, "No such document", "not_found_error", kNone},
      {"job_not_found", 404, "No such job", "not_found_error", kNone},
      {"vector_store_not_found", 404, "No such vector store", "not_found_error", kNone},
      {"file_batch_not_found", 404, "No such file batch", "not_found_error", kNone},
      {"model_not_found", 404, "No such model", "not_found_error", kNone},
      {"query_expired", 404, "The query is no longer remembered", "not_found_error", kNone},
      {"route_not_found", 404, "No such path", "not_found_error", kNone},
      {"method_not_allowed", 405, "The path does not take this method", "invalid_request_error",
       kNone},
      {"request_timeout", 408, "The request did not arrive in time", "invalid_request_error",
       kNone},
      {"document_not_ready", 409, "The document is not ready", "conflict_error", kRetryAfter},
      {"idempotency_in_progress", 409,
       "The first request with this Idempotency-Key is still running", "conflict_error",
       kRetryAfter},
      {"document_exists", 409, "The document exists already", "conflict_error", kDoNotRetry},
      {"request_cancelled", 409, "The request was cancelled", "conflict_error", kDoNotRetry},
      {"precondition_failed", 412, "A precondition does not hold", "conflict_error", kDoNotRetry},
      {"payload_too_large", 413, "The body is too large", "invalid_request_error", kNone},
      {"unsupported_media_type", 415, "The body's media type or encoding is not supported",
       "invalid_request_error", kNone},
      {"expectation_failed", 417, "The expectation cannot be met", "invalid_request_error", kNone},
      {"idempotency_mismatch", 422, "The Idempotency-Key was used with another body",
       "invalid_request_error", kNone},
      {"empty_document", 422, "The document has no text", "invalid_request_error", kNone},
      {"headers_too_large", 431, "The request headers are too large", "invalid_request_error",
       kNone},
      {"rate_limited", 429, "Too many requests", "rate_limit_error", kRetryAfter},
      {"quota_exceeded", 429, "The quota is used up", "rate_limit_error", kRetryAfter},
      {"internal", 500, "Internal error", "server_error", kNone},
      {"not_supported", 501, "Not supported", "server_error", kDoNotRetry},
      {"fetch_failed", 502, "The address could not be fetched", "server_error", kDoNotRetry},
      {"loading", 503, "The service is starting", "server_error", kRetryAfter},
      {"draining", 503, "The service is shutting down", "server_error", kRetryAfter},
      {"overloaded", 503, "The service is overloaded", "server_error", kRetryAfter},
      {"storage_unavailable", 503, "The store cannot serve this now", "server_error", kRetryAfter},
      {"deadline_exceeded", 504, "The time allowed is over", "server_error", kDoNotRetry},
      {"http_version_not_supported", 505, "HTTP version not supported", "invalid_request_error",
       kNone},
      {"cache_full", 507, "The cache has no room", "server_error", kDoNotRetry},
  };
  return kinds;
}

const ProblemKind& problem_kind(std::string_view code) {
  const ProblemKind* internal = nullptr;
  for (const auto& kind : problem_kinds()) {
    if (kind.code == code) return kind;
    if (kind.code == "internal") internal = &kind;
  }
  return *internal;
}

namespace {

/// Removes what is left of a character where a name was cut inside it, since JSON is UTF-8.
std::string whole_characters(std::string_view text) {
  std::string out;
  while (const auto at = invalid_utf8_at(text)) {
    out += text.substr(0, *at);
    text.remove_prefix(*at + 1);
  }
  return out.append(text);
}

}  // namespace

Problem make_problem(std::string code, std::string detail, std::string param) {
  Problem p;
  p.code = std::move(code);
  p.detail = whole_characters(detail);
  p.param = whole_characters(param);
  return p;
}

std::string with_subject(std::string_view message, std::string_view field) {
  if (field.empty()) return std::string(message);
  for (const std::string_view verb : {"must ", "is ", "has ", "lies ", "goes ", "takes "})
    if (message.starts_with(verb)) return std::string(field) + " " + std::string(message);
  for (const std::string_view rest : {"only ", "not "})
    if (message.starts_with(rest)) return std::string(field) + ": " + std::string(message);
  return std::string(message);
}

Problem problem_of(const JsonError& error) {
  return make_problem(error.code, error.message, error.path);
}

Problem problem_of(const Status& status, std::string_view code) {
  if (code.empty()) code = http_error_of(status.code()).code;
  return make_problem(
      std::string(code),
      code == "internal"
          ? "the request failed inside the service; the log has the reason under this request id"
          : with_subject(status.message(), status.field()),
      status.field());
}

json::object problem_body(const Problem& problem, std::string_view instance,
                          std::string_view request_id) {
  const ProblemKind& kind = problem_kind(problem.code);
  json::object o;
  o["type"] = "urn:quire:error:" + std::string(kind.code);
  o["title"] = kind.title;
  o["status"] = kind.status;
  o["detail"] = problem.detail;
  o["instance"] = instance;
  o["request_id"] = request_id;
  for (const auto& member : problem.extra) o[member.key()] = member.value();
  json::object error;
  error["message"] = problem.detail;
  error["type"] = kind.type;
  if (problem.param.empty())
    error["param"] = nullptr;
  else
    error["param"] = problem.param;
  error["code"] = kind.code;
  o["error"] = std::move(error);
  return o;
}

json::object anthropic_error(const Problem& problem, std::string_view request_id) {
  const int status = problem_kind(problem.code).status;
  const char* type = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 404 ? "not_found_error"
                     : status == 413 ? "request_too_large"
                     : status == 429 ? "rate_limit_error"
                     : status == 503 ? "overloaded_error"
                     : status == 504 ? "timeout_error"
                     : status >= 500 ? "api_error"
                                     : "invalid_request_error";
  json::object error{{"type", type}, {"message", problem.detail}, {"code", problem.code}};
  if (!problem.param.empty()) error["param"] = problem.param;
  if (const auto* details = problem.extra.if_contains("details")) error["details"] = *details;
  return {{"type", "error"}, {"error", std::move(error)}, {"request_id", request_id}};
}

HttpResponse problem_response(const Problem& problem, ErrorStyle style, std::string_view instance,
                              std::string_view request_id) {
  const ProblemKind& kind = problem_kind(problem.code);
  HttpResponse r;
  r.status = kind.status;
  r.content_type = style == ErrorStyle::kNative ? "application/problem+json" : "application/json";
  r.body = style == ErrorStyle::kAnthropic ? json::serialize(anthropic_error(problem, request_id))
           : style == ErrorStyle::kOllama
               ? json::serialize(json::object{{"error", problem.detail}, {"code", problem.code}})
               : json::serialize(problem_body(problem, instance, request_id));
  if (kind.retry == RetryHint::kRetryAfter) {
    const std::int64_t ms = std::max<std::int64_t>(1, problem.retry_after_ms);
    r.headers.set("Retry-After", std::to_string((ms + 999) / 1000));
    r.headers.set("retry-after-ms", std::to_string(ms));
  }
  if (kind.retry == RetryHint::kDoNotRetry) r.headers.set("x-should-retry", "false");
  if (kind.status == 401) r.headers.set("WWW-Authenticate", "Bearer");
  for (const auto& [name, value] : problem.headers) r.headers.set(name, value);
  return r;
}

}  // namespace quire
