/// Checks JSON values against the part of JSON Schema that server/openapi uses.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <vector>

namespace quire::testing {

/// Says whether members that a schema does not list are wrong where the schema has no
/// additionalProperties.
enum class Unlisted : unsigned char { kWrong, kFine };

/// Returns the faults of `value`, one line each with its JSON path; empty: none. An unknown keyword
/// is a fault too, so that no part of a schema goes unchecked. `document` resolves "$ref": "#/...".
std::vector<std::string> check_schema(const boost::json::value& value,
                                      const boost::json::value& schema,
                                      const boost::json::object& document, Unlisted unlisted);

}  // namespace quire::testing
