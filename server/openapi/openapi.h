/// Generates the description of the API (OpenAPI 3.1) from the route table that serves requests.
///
/// The JSON files of this folder, one per area, describe each route's requests and replies. They
/// are OpenAPI fragments with `paths` (parameters, requestBody, responses of success, and
/// `x-events` for server-sent events) and `components`. Schemas of replies that are tables
/// (server/reply) are components too; they are made from the tables.
///
/// Method, path, summary, scope, path parameters and the error replies come from the table. In
/// schemas of replies an object lists all its members unless `additionalProperties` says otherwise.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/service/route_table.h"

namespace quire {

/// A file of this folder, by name.
struct OpenApiFragment {
  std::string_view name, text;
};
const std::vector<OpenApiFragment>& openapi_fragments();

/// Whether the service asks for a key or token; kNone: no operation needs one.
enum class OpenApiKeys : std::uint8_t { kAsked, kNone };

/// Returns the description. Errors: kInvalidArgument naming the fault: a route without a
/// description of its reply, a description without a route, a component that is duplicate or
/// missing, a fragment that is not JSON.
Result<boost::json::object> openapi_document(const std::vector<Route>& routes,
                                             OpenApiKeys keys = OpenApiKeys::kAsked);

}  // namespace quire
