/// The description of the API (OpenAPI 3.1), made from the table of routes that serves requests.
///
/// What a route takes and replies stands in the JSON files of this folder, one for each area:
/// OpenAPI fragments with `paths` (parameters, requestBody, responses of success, and `x-events`
/// for server-sent events) and `components`. Method, path, summary, scope, path parameters and the
/// error replies come from the table. In schemas of replies an object lists all its members unless
/// `additionalProperties` says otherwise.
#pragma once

#include <boost/json/object.hpp>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/service/route_table.h"

namespace quire {

/// The files of this folder, by name.
struct OpenApiFragment {
  std::string_view name, text;
};
const std::vector<OpenApiFragment>& openapi_fragments();

/// Errors: kInvalidArgument naming what is wrong: a route without a description of its reply, a
/// description without a route, a component that stands twice or nowhere, a fragment that is no
/// JSON.
Result<boost::json::object> openapi_document(const std::vector<Route>& routes);

}  // namespace quire
