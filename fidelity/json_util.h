/// Converts strict JSON text to values and back, for the files of this folder.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire::fidelity_json {

/// Parses one document: valid UTF-8, at most 32 levels. Errors: kInvalidArgument naming the fault
/// and its byte.
Result<boost::json::value> parse(std::string_view text);
/// Formats with two spaces per level, members in order.
std::string pretty(const boost::json::value& value);
/// Returns the number, or null for NaN and infinities, which JSON does not have.
boost::json::value number(double value);
/// Returns the value that `number` wrote: NaN for null.
double to_double(const boost::json::value& value);

}  // namespace quire::fidelity_json
