#include "server/service/call.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/json_parse.h"
#include "base/nearest_name.h"
#include "server/json/text.h"
#include "server/service/services.h"
#include "server/support/affinity.h"

namespace quire {
namespace json = boost::json;

std::string Call::path_param(std::string_view name) const {
  for (const auto& [n, v] : params)
    if (n == name) return v;
  return {};
}

bool Call::choose_model(std::string_view name) {
  auto found = name.empty() ? std::optional(own_model(services)) : find_model(services, name);
  if (!found) return false;
  model_ = std::move(found);
  return true;
}

ServedModel Call::model() const { return model_ ? *model_ : own_model(services); }

double Call::elapsed_ms() const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

void Call::add_standard_headers(Headers& headers) const {
  headers.set("X-Request-Id", request_id);
  // Where the clients of this protocol look for it.
  if (style == ErrorStyle::kAnthropic) headers.set("Request-Id", request_id);
  char text[64];
  std::snprintf(text, sizeof text, "%.1f", elapsed_ms());
  headers.set("openai-processing-ms", text);
  std::string timing = std::string("total;dur=") + text;
  {
    std::lock_guard lock(mu_);
    for (const auto& [name, ms] : timings_) {
      std::snprintf(text, sizeof text, ", %s;dur=%.1f", name.c_str(), ms);
      timing += text;
    }
    if (!affinity_.empty()) headers.set(kAffinityHeader, affinity_);
  }
  headers.set("Server-Timing", timing);
  // Documents are answered for as they were when the shared catalog was last heard of.
  if (services.ready && services.store) {
    const CatalogStats catalog = services.store->catalog_stats();
    if (catalog.shared && !catalog.up) headers.set("X-Quire-Catalog", "away");
  }
  const auto limit_headers = [&](const char* what, const RateState& s) {
    if (s.limit <= 0) return;
    headers.set(std::string("x-ratelimit-limit-") + what, std::to_string(s.limit));
    headers.set(std::string("x-ratelimit-remaining-") + what, std::to_string(s.remaining));
    char reset[32];
    std::snprintf(reset, sizeof reset, "%.3fs", s.reset_seconds);
    headers.set(std::string("x-ratelimit-reset-") + what, reset);
  };
  limit_headers("requests", rate.requests);
  limit_headers("tokens", rate.tokens);
  if (!cors_origin.empty()) {
    headers.set("Access-Control-Allow-Origin", cors_origin);
    headers.set(
        "Access-Control-Expose-Headers",
        "X-Request-Id, X-Cache, X-Quire-Affinity, X-Quire-Catalog, Server-Timing, Location, "
        "Retry-After, ETag");
    const std::string vary(headers.get("Vary"));
    if (vary.find("Origin") == std::string::npos)
      headers.set("Vary", vary.empty() ? "Origin" : vary + ", Origin");
  }
}

bool Call::covers_all_namespaces() const {
  return key && key->allows_any_namespace() && !request().headers.find("x-namespace");
}

bool Call::changes_something() const {
  return route && (route->scope == Scope::kWrite || route->scope == Scope::kAdmin);
}

/// Keeps the reply for repetitions. Returns false if it was sent as one that nobody can keep.
bool Call::keep_reply(const HttpResponse& response) {
  if (!holds_slot.exchange(false)) return true;
  const Status kept = services.idempotency->complete(idempotency_slot, response);
  if (kept.ok()) return true;
  fail(make_problem("storage_unavailable",
                    kept.code() == Code::kFailedPrecondition
                        ? "the request took longer than catalog.job_lease_ms without a sign of "
                          "life of this replica, and another one has it; send it again with the "
                          "same Idempotency-Key"
                        : "the request was carried out, but the shared catalog does not answer, "
                          "so its reply cannot be kept yet; send it again with the same "
                          "Idempotency-Key"));
  return false;
}

void Call::reply(HttpResponse response) {
  add_standard_headers(response.headers);
  // Refusals that may pass on a later try are not remembered.
  if (response.status == 429 || response.status >= 500 || response.status == 409 ||
      response.status == 412 || response.status == 404)
    release_slot();
  else if (!keep_reply(response))
    return;
  exchange->respond(std::move(response));
}

void Call::reply_json(int status, const json::value& body,
                      std::vector<std::pair<std::string, std::string>> headers) {
  HttpResponse r;
  r.status = status;
  r.content_type = "application/json";
  r.body = to_text(body);
  for (auto& [name, value] : headers) r.headers.set(name, std::move(value));
  reply(std::move(r));
}

void Call::release_slot() {
  if (holds_slot.exchange(false)) services.idempotency->forget(idempotency_slot);
}

std::unique_ptr<RequestFence> Call::fence_changes() const {
  return shared_slot ? std::make_unique<RequestFence>(sha256(idempotency_slot)) : nullptr;
}

void Call::fail(const Problem& problem) {
  add_log("error_code", problem.code);
  // Queues that are full are found behind admission, which counts its own refusals.
  if (problem.code == "overloaded") services.metrics->rejected(problem.code);
  reply(problem_response(problem, style, instance, request_id));
}

void Call::start_events(std::vector<std::pair<std::string, std::string>> headers) {
  release_slot();
  HttpResponse r;
  r.content_type = "text/event-stream; charset=utf-8";
  r.headers.set("Cache-Control", "no-cache");
  r.headers.set("X-Accel-Buffering", "no");
  for (auto& [name, value] : headers) r.headers.set(name, std::move(value));
  add_standard_headers(r.headers);
  exchange->set_ping(": ping\n\n", std::chrono::milliseconds(static_cast<std::int64_t>(
                                       services.config()->server.sse_ping_seconds * 1000)));
  exchange->start_stream(std::move(r));
}

bool Call::event(std::string_view name, const json::value& data) {
  std::string piece = "event: ";
  piece.append(name).append("\ndata: ").append(to_text(data)).append("\n\n");
  return exchange->write(std::move(piece));
}

bool Call::data(std::string_view text) {
  std::string piece = "data: ";
  piece.append(text).append("\n\n");
  return exchange->write(std::move(piece));
}

void Call::end_events() { exchange->finish(); }

void Call::set_affinity(std::string affinity) {
  std::lock_guard lock(mu_);
  affinity_ = std::move(affinity);
}

void Call::add_timing(std::string_view name, double ms) {
  std::lock_guard lock(mu_);
  timings_.emplace_back(name, ms);
}

void Call::add_log(std::string_view name, std::string value) {
  std::lock_guard lock(mu_);
  log_fields_.emplace_back(name, std::move(value));
}

std::vector<std::pair<std::string, std::string>> Call::log_fields() const {
  std::lock_guard lock(mu_);
  return log_fields_;
}

void Call::charge_tokens(std::int64_t tokens) {
  if (key) services.rate_limiter->charge_tokens(key->name, tokens);
}

std::optional<json::value> body_json(Call& call, MediaTypes types) {
  const std::string type = call.request().media_type();
  const bool is_json = type.empty() || type == "application/json" || type.ends_with("+json");
  // A browser names the page's origin; without JSON's media type it would ask no permission.
  const bool taken = is_json || (types == MediaTypes::kAnyOutsideBrowsers &&
                                 !call.request().headers.find("origin"));
  if (!taken) {
    call.fail(make_problem(
        "unsupported_media_type",
        "Content-Type is '" + type +
            "'; this path takes JSON: send the header 'Content-Type: application/json'",
        "Content-Type"));
    return std::nullopt;
  }
  auto value = parse_json(call.request().body, kOutsideJson);
  std::string().swap(call.exchange->request.body);  // the value is a copy of it
  if (!value.ok()) {
    call.fail(make_problem("invalid_json", value.status().message()));
    return std::nullopt;
  }
  return std::move(*value);
}

bool check_parameters(Call& call, std::initializer_list<std::string_view> known) {
  for (const auto& [name, _] : call.request().query) {
    const bool ok = std::any_of(
        known.begin(), known.end(), [&, n = std::string_view(name)](std::string_view k) {
          return k.ends_with('.') ? n.starts_with(k) && n.size() > k.size() : n == k;
        });
    if (ok) continue;
    const std::string near = nearest_name(name,
                                          std::vector<std::string>(known.begin(), known.end()));
    call.fail(make_problem("unknown_field",
                           "unknown query parameter '" + name.substr(0, 128) + "'" +
                               (near.empty() ? "" : "; did you mean '" + near + "'?"),
                           name.substr(0, 128)));
    return false;
  }
  return true;
}

std::optional<ListQuery> list_query(Call& call, std::initializer_list<std::string_view> known) {
  std::vector<std::string_view> all(known);
  for (const auto name : {"limit", "after", "order"}) all.emplace_back(name);
  ListQuery out;
  for (const auto& [name, value] : call.request().query) {
    const bool ok = std::any_of(
        all.begin(), all.end(), [&, n = std::string_view(name)](std::string_view k) {
          return k.ends_with('.') ? n.starts_with(k) && n.size() > k.size() : n == k;
        });
    if (!ok) {
      const std::string near = nearest_name(name, std::vector<std::string>(all.begin(), all.end()));
      call.fail(make_problem("unknown_field",
                             "unknown query parameter '" + name.substr(0, 128) + "'" +
                                 (near.empty() ? "" : "; did you mean '" + near + "'?"),
                             name.substr(0, 128)));
      return std::nullopt;
    }
    if (name == "limit") {
      const auto [end, ec] = std::from_chars(value.data(), value.data() + value.size(), out.limit);
      if (ec != std::errc() || end != value.data() + value.size() || out.limit < 1 ||
          out.limit > 100) {
        call.fail(make_problem(
            "invalid_value", "limit is '" + value.substr(0, 64) + "'; it must be between 1 and 100",
            "limit"));
        return std::nullopt;
      }
    } else if (name == "order") {
      if (value != "asc" && value != "desc") {
        call.fail(make_problem("invalid_value",
                               "order is '" + value.substr(0, 64) + "'; use asc or desc", "order"));
        return std::nullopt;
      }
      out.descending = value == "desc";
    } else if (name == "after") {
      out.after = value;
    }
  }
  return out;
}

std::optional<std::int64_t> wait_preference(Call& call) {
  if (const auto* w = call.request().param("wait")) {
    if (*w == "true" || *w == "1") return 600'000;
    if (*w == "false" || *w == "0") return 0;
    call.fail(make_problem("invalid_value", "wait is '" + w->substr(0, 64) + "'; use true or false",
                           "wait"));
    return std::nullopt;
  }
  const auto prefer = call.request().headers.get("prefer");
  const auto at = prefer.find("wait=");
  if (at == std::string_view::npos) return 0;
  std::int64_t seconds = 0;
  const auto text = prefer.substr(at + 5);
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (ec != std::errc() || end == text.data() || seconds < 0) {
    call.fail(make_problem("invalid_value", "Prefer: wait must be a number of seconds", "Prefer"));
    return std::nullopt;
  }
  return std::min<std::int64_t>(seconds, 600) * 1000;
}

}  // namespace quire
