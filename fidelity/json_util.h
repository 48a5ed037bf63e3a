/// Writes JSON for the files of this folder; base/json_parse.h and base/json_reader.h read it.
#pragma once

#include <boost/json/value.hpp>
#include <string>

namespace quire::fidelity_json {

/// Formats with two spaces per level, members in order.
std::string pretty(const boost::json::value& value);
/// Returns the number, or null for NaN and infinities, which JSON does not have.
boost::json::value number(double value);

}  // namespace quire::fidelity_json
