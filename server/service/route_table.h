/// The table of all routes. It serves requests, names metrics, answers 405 and describes the API.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/access/auth.h"
#include "server/support/problem.h"

namespace quire {

class Call;
using Handler = void (*)(std::shared_ptr<Call>);

/// The thread on which a handler runs.
enum class RunOn : std::uint8_t {
  kIoThread,     ///< quick, never waits
  kWorker,       ///< may wait on disk
  kMaintenance,  ///< may take minutes
};
enum class BodyUse : std::uint8_t { kNone, kJson, kDocuments, kPack };

struct Route {
  /// "/v1/documents/{id}": a segment in braces matches any single segment.
  std::string_view method, pattern;
  std::string_view endpoint;  ///< fixed name in metrics and logs
  Handler handler = nullptr;
  Scope scope = Scope::kNone;
  bool public_path = false;     ///< no key required
  bool needs_ready = true;      ///< 503 while loading
  bool while_draining = false;  ///< served during a drain
  /// Concerns every namespace, so it takes a key of the namespace "*".
  bool whole_service = false;
  RunOn run = RunOn::kWorker;
  BodyUse body = BodyUse::kNone;
  ErrorStyle style = ErrorStyle::kNative;
  std::string_view summary;
};

/// Values of the pattern's segments in braces, by name.
using PathParams = std::vector<std::pair<std::string, std::string>>;

struct RouteMatch {
  const Route* route = nullptr;  ///< null: no route has this path and method
  PathParams params;
  std::vector<std::string_view> allowed;  ///< methods of the path; empty: no such path
  ErrorStyle style = ErrorStyle::kNative;
};

class RouteTable {
 public:
  explicit RouteTable(std::vector<Route> routes);
  /// Finds a route. `/documents...` and `/query...` are read as `/v1/documents...` and so on; HEAD
  /// finds the GET route.
  RouteMatch match(std::string_view method, const std::vector<std::string>& path) const;
  const std::vector<Route>& routes() const { return routes_; }

 private:
  const std::vector<Route> routes_;
  /// Split into segments, in the order of routes_.
  std::vector<std::vector<std::string_view>> patterns_;
};

/// Returns every route of the service.
std::vector<Route> all_routes();

}  // namespace quire
