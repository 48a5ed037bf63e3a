#include "server/app/app.h"

#include <algorithm>
#include <cstdio>

#include "base/log.h"
#include "base/system/free_memory.h"
#include "server/access/hosts.h"
#include "server/access/token_issuer.h"
#include "server/app/gzip_sink.h"
#include "server/config/namespace_name.h"
#include "server/handlers/common.h"
#include "server/handlers/document_stream.h"
#include "server/handlers/handlers.h"
#include "server/http/entity_tags.h"
#include "server/service/call.h"
#include "server/service/served_model.h"
#include "server/service/services.h"
#include "server/service/tracer.h"
#include "server/support/request_id.h"

namespace quire {
namespace {

/// Packs are stored on disk, so the free disk space is their real limit.
constexpr std::uint64_t kMaxStreamBytes = std::uint64_t{1} << 50;
/// A route without a body reads this much, so that the connection stays usable.
constexpr std::uint64_t kMaxUnusedBytes = 64 << 10;
/// Requests with larger bodies give the memory that they freed back to the system.
constexpr std::uint64_t kLargeBodyBytes = 1 << 20;
/// The last pointers to a request may outlive its reply a little.
constexpr std::chrono::milliseconds kAfterLargeBody{200};

std::shared_ptr<Call> call_of(Exchange& exchange) {
  return std::static_pointer_cast<Call>(exchange.state);
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (const auto w : words) out.append(out.empty() ? "" : ", ").append(w);
  return out;
}

class App final : public HttpService {
 public:
  App(Services& services, const RouteTable& routes) : services_(services), routes_(routes) {}

  HeadDecision on_head(Exchange& exchange) override;
  void handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse protocol_error(int status, const std::string& message, Exchange* exchange) override;
  void on_finished(Exchange& exchange, const ExchangeSummary& summary) override;

 private:
  std::optional<HttpResponse> admit(Call& call, const HttpRequest& request);
  std::string likely_path(std::vector<std::string> path) const;
  std::optional<HttpResponse> check_host(Call& call, const HttpRequest& request);
  std::optional<HttpResponse> check_origin(Call& call, const HttpRequest& request);
  std::optional<HttpResponse> refuse(Call& call, const Problem& problem);
  std::optional<HttpResponse> refuse_repeated(Call& call, const std::string& name);
  std::optional<HttpResponse> authenticate(Call& call, const HttpRequest& request);
  std::optional<HttpResponse> choose_namespace(Call& call, const HttpRequest& request);
  std::optional<HttpResponse> limit_rate(Call& call);
  void allow_origin(Call& call, const HttpRequest& request);
  HttpResponse preflight(Call& call, const RouteMatch& match, const HttpRequest& request);
  void expand_body(Call& call, HeadDecision& decision);
  bool begin_idempotent(Call& call);
  void trace(const Call& call, const ExchangeSummary& summary);
  void audit(const Call& call, int status, std::string error_code);

  Services& services_;
  const RouteTable& routes_;
};

std::optional<HttpResponse> App::refuse(Call& call, const Problem& problem) {
  call.add_log("error_code", problem.code);
  services_.metrics->rejected(problem.code);
  HttpResponse r = problem_response(problem, call.style, call.instance, call.request_id);
  call.add_standard_headers(r.headers);
  return r;
}

void App::allow_origin(Call& call, const HttpRequest& request) {
  const auto origin = request.headers.get("origin");
  if (origin.empty()) return;
  for (const auto& allowed : services_.config()->server.cors_origins)
    if (allowed == "*" || allowed == origin)
      call.cors_origin = allowed == "*" ? "*" : std::string(origin);
}

HttpResponse App::preflight(Call& call, const RouteMatch& match, const HttpRequest& request) {
  HttpResponse r;
  r.status = 204;
  const std::string methods = match.allowed.empty() ? "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
                                                    : joined(match.allowed);
  r.headers.set("Allow", methods);
  if (!call.cors_origin.empty()) {
    r.headers.set("Access-Control-Allow-Methods", methods);
    const auto wanted = request.headers.get("access-control-request-headers");
    r.headers.set(
        "Access-Control-Allow-Headers",
        wanted.empty()
            ? "Authorization, Content-Type, X-Namespace, X-Request-Id, Idempotency-Key, Prefer, "
              "If-Match, If-None-Match, X-Quire-Affinity"
            : std::string(wanted));
    r.headers.set("Access-Control-Max-Age", "600");
  }
  call.add_standard_headers(r.headers);
  return r;
}

/// A page of another site can have its own name resolve to this machine, and then call a service
/// that only loopback reaches. So such a service answers only to names that are its own.
std::optional<HttpResponse> App::check_host(Call& call, const HttpRequest& request) {
  const auto config = services_.config();
  const auto* given = request.headers.find("host");
  if (!given || host_allowed(*given, config->server.host, config->server.allowed_hosts))
    return std::nullopt;
  return refuse(call,
                make_problem("host_not_allowed",
                             "this service does not answer to the host '" + given->substr(0, 128) +
                                 "'; call it as localhost, or add the name to "
                                 "server.allowed_hosts (behind a reverse proxy: the name that "
                                 "the proxy passes on)",
                             "Host"));
}

std::optional<HttpResponse> App::refuse_repeated(Call& call, const std::string& name) {
  return refuse(call,
                make_problem("invalid_value", name + " is given more than once; send one", name));
}

std::optional<HttpResponse> App::authenticate(Call& call, const HttpRequest& request) {
  call.keys = services_.keys();
  const bool open_path = call.route->public_path || (call.route->endpoint == "metrics" &&
                                                     services_.config()->metrics.is_public);
  if (call.keys->is_open()) {
    call.key = &call.keys->anonymous();
    return std::nullopt;
  }
  // A proxy may have checked another one than this service would take.
  for (const char* name : {"Authorization", "api-key", "x-api-key"})
    if (!open_path && request.headers.count(name) > 1) return refuse_repeated(call, name);
  const std::string secret = presented_key(request.headers);
  if (services_.tokens && looks_like_token(secret)) {
    auto granted = services_.tokens->check(secret);
    if (granted.ok()) {
      call.token_key = std::move(*granted);
      call.key = call.token_key.get();
    } else if (!open_path) {
      const bool later = granted.code() == Code::kUnavailable;
      return refuse(call,
                    make_problem(later ? "loading" : "invalid_token", granted.status().message()));
    }
  } else if (!secret.empty()) {
    call.key = call.keys->find(secret);
  }
  if (open_path) return std::nullopt;
  if (secret.empty())
    return refuse(
        call, make_problem("missing_api_key",
                           services_.tokens ? "send an API key or a token of " +
                                                  services_.config()->auth.jwt_issuer +
                                                  " as 'Authorization: Bearer <key>'"
                                            : "send the API key as 'Authorization: Bearer <key>'"));
  if (!call.key)
    return refuse(call,
                  make_problem("invalid_api_key", "the API key is not known to this service"));
  if (!call.key->allows(call.route->scope)) {
    return refuse(
        call, make_problem("insufficient_scope",
                           "this needs the scope '" + std::string(scope_name(call.route->scope)) +
                               "', which the key '" + call.key->name + "' does not have"));
  }
  return std::nullopt;
}

/// A page of another site cannot read replies, but its browser sends what a form could send without
/// asking here first. Where no key is needed, such a request must not change anything.
std::optional<HttpResponse> App::check_origin(Call& call, const HttpRequest& request) {
  const auto* origin = request.headers.find("origin");
  if (!origin || request.method != "POST" || !call.keys->is_open() || !call.cors_origin.empty() ||
      !is_cors_safelisted(request.media_type()) ||
      is_own_origin(*origin, request.headers.get("host"), services_.config()->server.allowed_hosts))
    return std::nullopt;
  return refuse(call, make_problem("origin_not_allowed",
                                   "a page of '" + origin->substr(0, 128) +
                                       "' may not call this service without a key; add it to "
                                       "server.cors_origins (behind a reverse proxy: its name to "
                                       "server.allowed_hosts), or send the body as "
                                       "application/json",
                                   "Origin"));
}

std::optional<HttpResponse> App::choose_namespace(Call& call, const HttpRequest& request) {
  if (const auto* asked = request.headers.find("x-namespace")) {
    if (!call.route->public_path && request.headers.count("x-namespace") > 1)
      return refuse_repeated(call, "X-Namespace");
    if (!valid_namespace(*asked))
      return refuse(call, make_problem("invalid_value",
                                       "X-Namespace must be 1 to 64 letters, digits, '.', '_' or "
                                       "'-', and begin with a letter or digit",
                                       "X-Namespace"));
    call.ns = *asked;
  } else if (call.key) {
    call.ns = call.key->namespaces.front() == "*" ? "default" : call.key->namespaces.front();
  } else {
    call.ns = "default";
  }
  if (call.key && !call.key->allows_namespace(call.ns))
    return refuse(call, make_problem("namespace_denied",
                                     "the key '" + call.key->name +
                                         "' may not use the namespace '" + call.ns + "'",
                                     "X-Namespace"));
  if (call.route->whole_service && !call.key->allows_any_namespace())
    return refuse(call, make_problem("namespace_denied",
                                     "this concerns the whole service and needs a key for the "
                                     "namespace '*', which the key '" +
                                         call.key->name + "' is not"));
  return std::nullopt;
}

std::optional<HttpResponse> App::limit_rate(Call& call) {
  if (!call.key || call.route->scope == Scope::kNone) return std::nullopt;
  const auto config = services_.config();
  const auto& key = *call.key;
  const std::int64_t requests = key.requests_per_minute >= 0 ? key.requests_per_minute
                                                             : config->limits.requests_per_minute;
  const std::int64_t tokens = key.tokens_per_minute >= 0 ? key.tokens_per_minute
                                                         : config->limits.tokens_per_minute;
  call.rate = services_.rate_limiter->take_request(key.name, requests, tokens);
  if (call.rate.allowed) return std::nullopt;
  Problem p = make_problem(call.rate.tokens_exhausted ? "quota_exceeded" : "rate_limited",
                           call.rate.tokens_exhausted
                               ? "the key's tokens per minute are used up"
                               : "the key's requests per minute are used up");
  p.retry_after_ms = call.rate.retry_after_ms;
  return refuse(call, p);
}

/// Returns which path was meant by one without /v1, or with it twice: some clients want it in the
/// address of a service, and others add it. Empty: none that there is.
std::string App::likely_path(std::vector<std::string> path) const {
  if (path.size() > 1 && path[0] == "v1" && path[1] == "v1")
    path.erase(path.begin());
  else
    path.insert(path.begin(), "v1");
  const auto match = routes_.match("GET", path);
  if (!match.route && match.allowed.empty()) return {};
  std::string text;
  for (const std::string& segment : path) text += "/" + percent_encode(segment);
  return "; did you mean " + text.substr(0, 256) + "?";
}

/// Decides everything that is known before the body is read.
std::optional<HttpResponse> App::admit(Call& call, const HttpRequest& request) {
  auto match = routes_.match(request.method, request.path);
  call.style = match.style;
  if (auto r = check_host(call, request)) return r;
  allow_origin(call, request);
  if (request.method == "OPTIONS") return preflight(call, match, request);
  if (!match.route) {
    // Clients of Ollama read its form of errors only.
    if (match.allowed.empty() && !request.path.empty() && request.path.front() == "api")
      call.style = ErrorStyle::kOllama;
    if (match.allowed.empty())
      return refuse(call,
                    make_problem("route_not_found", "there is no " + call.instance.substr(0, 256) +
                                                        likely_path(request.path)));
    Problem p = make_problem("method_not_allowed", call.instance.substr(0, 256) + " takes " +
                                                       joined(match.allowed) + ", not " +
                                                       request.method.substr(0, 32));
    p.headers.emplace_back("Allow", joined(match.allowed));
    return refuse(call, p);
  }
  call.route = match.route;
  call.params = std::move(match.params);
  if (auto r = authenticate(call, request)) return r;
  if (auto r = check_origin(call, request)) return r;
  if (auto r = choose_namespace(call, request)) return r;
  if (services_.draining && !call.route->while_draining)
    return refuse(
        call,
        make_problem("draining", "the service is shutting down; ask another one, or again later"));
  if (call.route->needs_ready && !services_.ready)
    return refuse(
        call,
        make_problem("loading", "the model is still being loaded; /readyz says when it is ready"));
  if (auto r = limit_rate(call)) return r;
  const bool only_reads = request.method == "GET" || request.method == "HEAD";
  if (const auto* key = request.headers.find("idempotency-key"); key && !only_reads) {
    if (key->empty() || key->size() > 128)
      return refuse(call,
                    make_problem("invalid_value", "Idempotency-Key must have 1 to 128 characters",
                                 "Idempotency-Key"));
    const auto query = std::min(request.target.find('?'), request.target.size());
    call.idempotency_slot = (call.key ? call.key->name : "") + "\n" + call.ns + "\n" +
                            request.method + " " + call.instance + request.target.substr(query) +
                            "\n" + *key;
  }
  return std::nullopt;
}

HeadDecision App::on_head(Exchange& exchange) {
  auto call = std::make_shared<Call>(services_);
  call->exchange = &exchange;
  exchange.state = call;
  services_.requests_running++;
  const HttpRequest& request = exchange.request;
  const auto given = request.headers.get("x-request-id");
  call->request_id = valid_request_id(given) ? std::string(given) : make_id("req_");
  call->trace_id = trace_id_of(request.headers.get("traceparent"));
  call->instance = request.path_text();
  if (services_.tracer) call->trace = services_.tracer->begin(request.headers.get("traceparent"));
  HeadDecision decision;
  decision.max_body_bytes = static_cast<std::uint64_t>(services_.config()->server.max_body_bytes);
  decision.max_body_setting = "server.max_body_bytes";
  decision.reject = admit(*call, request);
  const auto limit = [&](std::uint64_t bytes) {  // of the route, whatever the setting
    decision.max_body_bytes = bytes;
    decision.max_body_setting.clear();
  };
  if (!decision.reject && call->route->body == BodyUse::kNone &&
      decision.max_body_bytes > kMaxUnusedBytes)
    limit(kMaxUnusedBytes);
  if (!decision.reject && call->route->body == BodyUse::kDocuments) {
    decision.sink = make_document_sink(*call, request);
    if (decision.sink) limit(kMaxStreamBytes);
  }
  if (!decision.reject && call->route->body == BodyUse::kPack) {
    limit(kMaxStreamBytes);
    decision.sink = make_pack_sink(*call);
  }
  if (!decision.reject) expand_body(*call, decision);
  return decision;
}

/// Puts what undoes Content-Encoding before the body's sink, or refuses the encoding.
void App::expand_body(Call& call, HeadDecision& decision) {
  const auto given = joined_fields(call.request().headers, "content-encoding");
  if (!given || given->empty() || iequals(*given, "identity")) return;
  if (!iequals(*given, "gzip") && !iequals(*given, "x-gzip")) {
    Problem p = make_problem(
        "unsupported_media_type",
        "Content-Encoding is '" + given->substr(0, 128) + "'; send the body as it is, or as gzip",
        "Content-Encoding");
    p.headers.emplace_back("Accept-Encoding", "gzip");
    decision.reject = refuse(call, p);
    return;
  }
  auto sink = std::make_shared<GzipSink>(
      call, std::move(decision.sink), decision.max_body_bytes,
      static_cast<std::uint64_t>(services_.config()->server.max_body_bytes),
      setting_words(decision),
      [this, &call](const Problem& problem) { return *refuse(call, problem); });
  call.gzip = sink->reader();
  decision.sink = std::move(sink);
}

/// Returns false if the call got the remembered reply or was refused.
bool App::begin_idempotent(Call& call) {
  if (call.idempotency_slot.empty()) return true;
  const std::string slot = call.idempotency_slot;
  // Conditions are part of what is asked for, and so is a body that lies in a file.
  std::string asked = call.request().body;
  if (call.body_digest) asked += call.body_digest->finish().hex();
  for (const char* condition : {"if-match", "if-none-match"})
    if (const auto* given = call.request().headers.find(condition))
      asked += std::string("\n") + condition + ": " + *given;
  const auto found = services_.idempotency->begin(slot, sha256(asked),
                                                  call.changes_something()
                                                      ? IdempotencyStore::Keep::kRestart
                                                      : IdempotencyStore::Keep::kRunning);
  if (found.ok() && found->outcome == IdempotencyStore::Outcome::kFirst) {
    call.holds_slot = true;
    call.shared_slot = found->shared;
    return true;
  }
  if (!found.ok()) {
    call.fail(ingest_problem(found.status()));
  } else if (found->outcome == IdempotencyStore::Outcome::kReplay) {
    HttpResponse r = *found->reply;
    r.headers.set("Idempotency-Replayed", "true");
    call.reply(std::move(r));
  } else if (found->outcome == IdempotencyStore::Outcome::kInProgress) {
    call.fail(make_problem("idempotency_in_progress",
                           "the first request with this Idempotency-Key is still running",
                           "Idempotency-Key"));
  } else {
    call.fail(make_problem("idempotency_mismatch",
                           "this Idempotency-Key was used with another body; use a new one",
                           "Idempotency-Key"));
  }
  return false;
}

void App::handle(std::shared_ptr<Exchange> exchange) {
  Call* raw = call_of(*exchange).get();
  const std::shared_ptr<Call> call(std::move(exchange), raw);
  if (call->gzip && !call->gzip->complete())
    return call->fail(
        make_problem("invalid_value", "the gzip body ends too early", "Content-Encoding"));
  const auto run = [this, call] {
    try {
      if (!begin_idempotent(*call)) return;
      // What is asked or posted comes before what runs while clients are quiet.
      const std::string& method = call->exchange->request.method;
      if (call->route->needs_ready && method != "GET" && method != "HEAD")
        stop_idle_work(services_);
      const auto fence = call->fence_changes();
      call->route->handler(call);
    } catch (const std::exception& e) {
      log_error("a handler threw", {{"request_id", call->request_id},
                                    {"endpoint", std::string(call->route->endpoint)},
                                    {"reason", e.what()}});
      call->fail(make_problem(
          "internal",
          "the request failed inside the service; the log has the reason under this request id"));
    }
  };
  // A key may have to be looked up in the shared catalog.
  if (call->route->run == RunOn::kIoThread && call->idempotency_slot.empty()) return run();
  WorkerPool& pool = call->route->run == RunOn::kMaintenance ? *services_.maintenance
                                                             : *services_.workers;
  if (!pool.post(run)) call->fail(make_problem("overloaded", "too many requests wait; try again"));
}

HttpResponse App::protocol_error(int status, const std::string& message, Exchange* exchange) {
  std::string_view code = "invalid_value";
  switch (status) {
    case 408:
      code = "request_timeout";
      break;
    case 413:
      code = "payload_too_large";
      break;
    case 417:
      code = "expectation_failed";
      break;
    case 431:
      code = "headers_too_large";
      break;
    case 500:
      code = "internal";
      break;
    case 501:
      code = "not_supported";
      break;
    case 503:
      code = "overloaded";
      break;
    case 505:
      code = "http_version_not_supported";
      break;
    default:
      break;
  }
  services_.metrics->rejected(code);
  const Problem problem = make_problem(std::string(code), message);
  if (exchange && exchange->state) {
    auto call = call_of(*exchange);
    call->add_log("error_code", std::string(code));
    HttpResponse r = problem_response(problem, call->style, call->instance, call->request_id);
    call->add_standard_headers(r.headers);
    return r;
  }
  const std::string id = make_id("req_");
  HttpResponse r = problem_response(problem, ErrorStyle::kNative, "", id);
  r.headers.set("X-Request-Id", id);
  services_.metrics->request_finished("none", status, 0, "");
  log_info("request", {{"request_id", id},
                       {"endpoint", "none"},
                       {"status", std::to_string(status)},
                       {"error_code", std::string(code)}});
  return r;
}

void App::on_finished(Exchange& exchange, const ExchangeSummary& summary) {
  auto call = call_of(exchange);
  services_.requests_running--;
  if (summary.request_bytes >= kLargeBodyBytes)
    services_.timers->at(TimerQueue::Clock::now() + kAfterLargeBody, [&services = services_] {
      (void)services.workers->post(return_free_memory);
    });
  if (summary.status >= 500) call->release_slot();
  const std::string_view endpoint = call->route ? call->route->endpoint : "none";
  const double seconds = std::chrono::duration<double>(summary.duration).count();
  // A name that nobody vouches for is no label: each one would be a series for ever.
  const bool known_ns = call->key && call->key->allows_namespace(call->ns);
  services_.metrics->request_finished(endpoint, summary.status, seconds,
                                      known_ns ? call->ns : std::string());
  // Probes come every second, so they are logged at debug level only.
  const bool health = call->route && call->route->public_path;
  char ms[32];
  std::snprintf(ms, sizeof ms, "%.2f", seconds * 1000);
  const auto facts = call->log_fields();
  const auto fact = [&](std::string_view name) {
    for (const auto& [n, value] : facts)
      if (n == name) return value;
    return std::string();
  };
  log_line(health ? LogLevel::kDebug : LogLevel::kInfo, "request",
           {{"request_id", call->request_id},
            {"trace_id", call->trace_id},
            {"parent_span_id",
             call->trace_id.empty()
                 ? ""
                 : std::string(exchange.request.headers.get("traceparent").substr(36, 16))},
            {"namespace", call->ns},
            {"key", call->key ? call->key->name : ""},
            {"endpoint", std::string(endpoint)},
            {"method", exchange.request.method},
            {"status", std::to_string(summary.status)},
            {"client_gone", summary.client_gone ? "true" : ""},
            {"ms", ms},
            {"request_bytes", std::to_string(summary.request_bytes)},
            {"response_bytes", std::to_string(summary.response_bytes)},
            {"error_code", fact("error_code")},
            {"documents", fact("documents")},
            {"query", fact("query")},
            {"strategy", fact("strategy")},
            {"prompt_tokens", fact("prompt_tokens")},
            {"fates", fact("fates")},
            {"completion_tokens", fact("completion_tokens")},
            {"ttft_ms", fact("ttft_ms")},
            {"contexts", fact("contexts")},
            {"affinity", fact("affinity")},
            {"question", fact("question")}});
  // Probes come every second, so they are no spans.
  if (call->trace && !health) trace(*call, summary);
  if (services_.audit) audit(*call, summary.status, fact("error_code"));
}

void App::trace(const Call& call, const ExchangeSummary& summary) {
  const HttpRequest& request = call.request();
  const std::string route = call.route ? std::string(call.route->pattern) : "";
  TraceSpan span;
  span.trace_id = call.trace->trace_id;
  span.span_id = call.trace->span_id;
  span.parent_id = call.trace->parent_id;
  span.name = route.empty() ? request.method.substr(0, 16) : request.method + " " + route;
  span.kind = TraceSpan::Kind::kServer;
  span.start_ns = call.trace->start_ns;
  span.end_ns = span.start_ns +
                std::chrono::duration_cast<std::chrono::nanoseconds>(summary.duration).count();
  span.attributes = {{"http.request.method", request.method.substr(0, 16)},
                     {"http.response.status_code", std::int64_t{summary.status}},
                     {"quire.request_id", call.request_id},
                     {"quire.namespace", call.ns}};
  if (!route.empty()) span.attributes.emplace_back("http.route", route);
  span.failed = summary.status >= 500;
  services_.tracer->add(std::move(span));
}

void App::audit(const Call& call, int status, std::string error_code) {
  const HttpRequest& request = call.request();
  const bool changes = call.changed_inside ||
                       (call.changes_something() && request.method != "GET" &&
                        request.method != "HEAD" && request.method != "OPTIONS");
  const bool refused = status == 401 || status == 403;
  if (!changes && !refused) return;
  AuditEntry entry;
  entry.unix_ms = unix_ms_now();
  entry.request_id = call.request_id;
  entry.peer = request.peer;
  if (call.key) entry.key = call.key->name;
  entry.ns = call.ns;
  if (call.route) entry.route = call.route->pattern;
  entry.method = request.method;
  entry.path = call.instance;
  entry.status = status;
  entry.error_code = std::move(error_code);
  services_.audit->add(entry);
}

}  // namespace

std::unique_ptr<HttpService> make_app(Services& services, const RouteTable& routes) {
  return std::make_unique<App>(services, routes);
}

}  // namespace quire
