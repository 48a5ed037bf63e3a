/// Parses JSON text strictly: one document, UTF-8, bounded depth, no duplicate keys.
#pragma once

#include <boost/json/value.hpp>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

struct JsonLimits {
  std::size_t max_depth = 32;
};

/// Parses one document. Errors: kInvalidArgument without a field, with line and column in the
/// message.
Result<boost::json::value> parse_json(std::string_view text, const JsonLimits& limits = {});

/// Returns compact JSON text.
std::string to_text(const boost::json::value& value);

/// Returns "an object", "a string", ... for messages.
std::string_view kind_name(const boost::json::value& value);

/// Formats Unix milliseconds as RFC 3339 UTC with milliseconds: "2025-03-01T10:00:00.000Z".
std::string rfc3339(std::int64_t unix_ms);
/// Formats Unix milliseconds; 0 gives null.
boost::json::value rfc3339_or_null(std::int64_t unix_ms);
/// Parses RFC 3339 with fractions and offsets into Unix milliseconds. Errors: kInvalidArgument.
Result<std::int64_t> parse_rfc3339(std::string_view text);

/// Returns the value rounded to `decimals` places, so that replies do not show noise.
double rounded(double value, int decimals = 3);

}  // namespace quire
