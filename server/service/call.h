/// One request inside the service: who asks, for what, and how it is answered.
#pragma once

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

#include "server/access/rate_limit.h"
#include "server/http/exchange.h"
#include "server/service/route_table.h"

namespace quire {

struct Services;

/// Handlers hold it by a shared pointer that keeps the exchange alive too; when the last one goes
/// without a reply, the client gets 500. So nothing the exchange itself keeps (a disconnect
/// callback) may hold such a pointer.
///
/// Threads: the members are set before the handler runs and then read-only; the reply methods may
/// be called from any thread.
class Call {
 public:
  explicit Call(Services& s) : services(s), start(std::chrono::steady_clock::now()) {}

  Services& services;
  const std::chrono::steady_clock::time_point start;
  Exchange* exchange = nullptr;  ///< owns this call
  const Route* route = nullptr;
  PathParams params;
  ErrorStyle style = ErrorStyle::kNative;
  std::string request_id, trace_id, ns, instance;
  std::shared_ptr<const KeyRing> keys;  ///< owns *key
  const ApiKey* key = nullptr;
  RateDecision rate;
  std::string cors_origin;           ///< to be allowed; empty: none
  std::string idempotency_slot;      ///< empty: not asked for
  std::shared_ptr<void> body_state;  ///< what a body sink gathered

  const HttpRequest& request() const { return exchange->request; }
  std::string path_param(std::string_view name) const;
  double elapsed_ms() const;
  /// The key may use any namespace and the request names none: the caller means all of them.
  bool covers_all_namespaces() const;
  /// Its route is there to change documents or the service, not to read or ask.
  bool changes_something() const;

  void reply(HttpResponse response);
  void reply_json(int status, const boost::json::value& body,
                  std::vector<std::pair<std::string, std::string>> headers = {});
  void fail(const Problem& problem);
  /// A text/event-stream. event() and data() are false once the client is gone.
  void start_events(std::vector<std::pair<std::string, std::string>> headers = {});
  bool event(std::string_view name, const boost::json::value& data);
  /// An event without a name, `text` on one line.
  bool data(std::string_view text);
  void end_events();

  /// For Server-Timing and the log line.
  void add_timing(std::string_view name, double ms);
  void add_log(std::string_view name, std::string value);
  std::vector<std::pair<std::string, std::string>> log_fields() const;
  /// Prompt and answer tokens, charged to the key's limit.
  void charge_tokens(std::int64_t tokens);

  /// X-Request-Id and its companions.
  void add_standard_headers(Headers& headers) const;

 private:
  mutable std::mutex mu_;
  std::vector<std::pair<std::string, double>> timings_;          // guarded by mu_
  std::vector<std::pair<std::string, std::string>> log_fields_;  // guarded by mu_
};

/// A JSON body, parsed; fails the call and gives nothing when it is not valid.
std::optional<boost::json::value> body_json(Call& call);

/// ?limit, ?after, ?order of lists.
struct ListQuery {
  std::int64_t limit = 20;
  std::string after;
  bool descending = true;
};
/// Fails the call and gives nothing when a parameter is wrong. `known`: further parameters the
/// endpoint takes.
std::optional<ListQuery> list_query(Call& call, std::initializer_list<std::string_view> known = {});
/// Query parameters nobody knows are an error, as in bodies. A name ending in '.' stands for every
/// name with that beginning.
bool check_parameters(Call& call, std::initializer_list<std::string_view> known);
/// ?wait=true or Prefer: wait=N, in milliseconds; 0: not asked for. Fails the call on nonsense.
std::optional<std::int64_t> wait_preference(Call& call);

}  // namespace quire
