/// Call is one request inside the service: its caller, its route and its reply.
#pragma once

#include <atomic>
#include <boost/json/value.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "cachestore/catalog/request_fence.h"
#include "server/access/rate_limit.h"
#include "server/http/exchange.h"
#include "server/http/gzip_reader.h"
#include "server/service/route_table.h"
#include "server/service/served_model.h"

namespace quire {

struct Services;
struct TraceContext;

/// Handlers hold a Call by a shared pointer that also keeps the exchange alive. When the last one
/// goes without a reply, the client gets 500. So nothing that the exchange itself keeps (a
/// disconnect callback) may hold such a pointer.
///
/// Threads: the members are set before the handler runs and then read-only; the reply methods may
/// be called from any thread.
class Call {
 public:
  explicit Call(Services& s) : services(s), start(std::chrono::steady_clock::now()) {}
  ~Call() { release_slot(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Services& services;
  const std::chrono::steady_clock::time_point start;
  Exchange* exchange = nullptr;  ///< owns this call
  const Route* route = nullptr;
  PathParams params;
  ErrorStyle style = ErrorStyle::kNative;
  std::string request_id, trace_id, ns, instance;
  std::shared_ptr<const TraceContext> trace;  ///< null: the request is not traced
  std::shared_ptr<const KeyRing> keys;        ///< owns *key unless token_key does
  std::shared_ptr<const ApiKey> token_key;    ///< what a token grants; null: an API key was sent
  const ApiKey* key = nullptr;
  RateDecision rate;
  std::string cors_origin;       ///< origin to allow; empty: none
  std::string idempotency_slot;  ///< empty: no idempotency requested
  /// This request is the first one of its slot, whose reply is still to come. Every way that a
  /// request can end releases the slot, also without a reply: others would wait for it for ever.
  std::atomic<bool> holds_slot{false};
  bool shared_slot = false;  ///< other replicas of the shared catalog know that it holds the slot
  /// A request that this one made inside the service changes something. Threads: any.
  std::atomic<bool> changed_inside{false};
  std::shared_ptr<void> body_state;  ///< data that a body sink collected
  /// Of a body that a sink collects, for its Idempotency-Key; null: the body is in the request, or
  /// there is no key.
  std::unique_ptr<Sha256> body_digest;
  std::shared_ptr<const GzipReader> gzip;  ///< what expanded the body; null: it came as it is

  /// Chooses the model that the request asks for by this name; an empty one means the service's
  /// own. Returns false, and changes nothing, where there is no such model. It belongs before the
  /// call is handed on to other threads.
  bool choose_model(std::string_view name);
  /// Returns the chosen model, or the service's own.
  ServedModel model() const;

  const HttpRequest& request() const { return exchange->request; }
  std::string path_param(std::string_view name) const;
  double elapsed_ms() const;
  /// Returns whether the key may use any namespace and the request names none; the caller then
  /// means all of them.
  bool covers_all_namespaces() const;
  /// Returns whether the route changes documents or the service, instead of reading or querying.
  bool changes_something() const;

  void reply(HttpResponse response);
  void reply_json(int status, const boost::json::value& body,
                  std::vector<std::pair<std::string, std::string>> headers = {});
  void fail(const Problem& problem);
  /// Lets another request have the slot, if this one holds it.
  void release_slot();
  /// Ties what this thread changes in the shared catalog to the request while it lives: if the
  /// service hangs for longer than its lease, another one may carry the request out meanwhile. Each
  /// thread that carries out a part of the request has one. Null: no other service knows of it.
  std::unique_ptr<RequestFence> fence_changes() const;
  /// Starts a text/event-stream. event() and data() return false once the client is gone.
  void start_events(std::vector<std::pair<std::string, std::string>> headers = {});
  bool event(std::string_view name, const boost::json::value& data);
  /// Sends an event without a name; `text` is one line.
  bool data(std::string_view text);
  void end_events();

  /// Says which documents the request is about; every reply from now on tells it
  /// (support/affinity.h). An empty text says nothing.
  void set_affinity(std::string affinity);
  /// Adds a value for Server-Timing or the log line.
  void add_timing(std::string_view name, double ms);
  void add_log(std::string_view name, std::string value);
  std::vector<std::pair<std::string, std::string>> log_fields() const;
  /// Charges prompt and answer tokens to the key's limit.
  void charge_tokens(std::int64_t tokens);

  /// Adds X-Request-Id and related headers.
  void add_standard_headers(Headers& headers) const;

 private:
  bool keep_reply(const HttpResponse& response);

  std::optional<ServedModel> model_;
  mutable std::mutex mu_;
  std::vector<std::pair<std::string, double>> timings_;          // guarded by mu_
  std::vector<std::pair<std::string, std::string>> log_fields_;  // guarded by mu_
  std::string affinity_;                                         // guarded by mu_
};

/// Media types of a JSON body that a route takes.
enum class MediaTypes : unsigned char {
  kJson,               ///< JSON's, or none
  kAnyOutsideBrowsers  ///< any, unless a web page sends it (it has an Origin): then as kJson
};
/// Parses a JSON body. If it is not valid, fails the call and returns none.
std::optional<boost::json::value> body_json(Call& call, MediaTypes types = MediaTypes::kJson);

/// ListQuery holds ?limit, ?after and ?order of lists.
struct ListQuery {
  std::int64_t limit = 20;
  std::string after;
  bool descending = true;
};
/// Reads them. If a parameter is wrong, fails the call and returns none. `known` names further
/// parameters of the endpoint.
std::optional<ListQuery> list_query(Call& call, std::initializer_list<std::string_view> known = {});
/// Fails the call and returns false for unknown query parameters, as for unknown members of bodies.
/// A name ending in '.' stands for every name with that prefix.
bool check_parameters(Call& call, std::initializer_list<std::string_view> known);
/// Returns ?wait=true or Prefer: wait=N in milliseconds, at most 600 seconds; 0: not requested.
/// Fails the call on a malformed value.
std::optional<std::int64_t> wait_preference(Call& call);

}  // namespace quire
