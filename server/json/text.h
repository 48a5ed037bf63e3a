/// Texts and numbers of replies: JSON, RFC 3339 times, rounding.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/lost_writes.h"

namespace quire {

/// Returns compact JSON text.
std::string to_text(const boost::json::value& value);

/// Formats Unix milliseconds as RFC 3339 UTC with milliseconds: "2025-03-01T10:00:00.000Z".
std::string rfc3339(std::int64_t unix_ms);
/// Formats Unix milliseconds; 0 gives null.
boost::json::value rfc3339_or_null(std::int64_t unix_ms);
/// Parses RFC 3339 with fractions and offsets into Unix milliseconds. Errors: kInvalidArgument.
Result<std::int64_t> parse_rfc3339(std::string_view text);

/// Says how many writes a store has lost, and from when; empty: none.
std::string lost_text(const LostWrites& lost);

/// Returns the value rounded to `decimals` places, so that replies do not show noise.
double rounded(double value, int decimals = 3);

}  // namespace quire
