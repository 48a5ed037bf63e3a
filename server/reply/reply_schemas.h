/// All replies that are tables, for the description of the API.
#pragma once

#include <boost/json/object.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

/// Returns the schema of each named reply, by its name. A reply that is missing here has a schema
/// that nothing can refer to, so openapi_document() fails.
std::vector<std::pair<std::string_view, boost::json::object>> reply_schemas();

}  // namespace quire
