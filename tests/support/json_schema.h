/// Checks JSON values against the part of JSON Schema that server/openapi uses.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <vector>

namespace quire::testing {

/// Whether members that a schema does not list are wrong where it says nothing of
/// additionalProperties.
enum class Unlisted : unsigned char { kWrong, kFine };

/// What is wrong with `value`, one line each with its JSON path; empty: nothing. A keyword the
/// checker does not know is wrong too, so that no part of a schema goes unchecked in silence.
/// `document` resolves "$ref": "#/...".
std::vector<std::string> check_schema(const boost::json::value& value,
                                      const boost::json::value& schema,
                                      const boost::json::object& document, Unlisted unlisted);

}  // namespace quire::testing
