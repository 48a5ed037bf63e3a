/// JSON that the files of this folder share; base/json_parse.h and base/json_reader.h read the
/// rest.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <string>

#include "base/status.h"
#include "cachestore/format/read_behind.h"

namespace quire::fidelity_json {

/// Formats with two spaces per level, members in order.
std::string pretty(const boost::json::value& value);
/// Returns the number, or null for NaN and infinities, which JSON does not have.
boost::json::value number(double value);
/// Writes `read_behind` and, of documents behind a lead-in, `lead_in_sha256`.
void write_read_behind(const ReadBehind& behind, boost::json::object& out);
/// Reads what write_read_behind() wrote. Records without it are of documents that were read alone.
/// Errors: kCorruption.
Result<ReadBehind> read_behind_of(const boost::json::object& from);

}  // namespace quire::fidelity_json
