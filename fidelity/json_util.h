/// Strict JSON text to values and back, for the files of this folder.
#pragma once

#include <boost/json/value.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire::fidelity_json {

/// One document, valid UTF-8, at most 32 levels. Errors: kInvalidArgument saying what is wrong and
/// at which byte.
Result<boost::json::value> parse(std::string_view text);
/// Two spaces a level, members in order.
std::string pretty(const boost::json::value& value);
/// null for NaN and infinities, which JSON cannot say.
boost::json::value number(double value);
/// What `number` wrote: NaN for null.
double to_double(const boost::json::value& value);

}  // namespace quire::fidelity_json
