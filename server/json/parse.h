/// JSON text to values, strictly: one document, UTF-8, bounded depth, no key twice.
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

/// Errors: kInvalidArgument, with line and column in the message. Field: empty.
Result<boost::json::value> parse_json(std::string_view text, const JsonLimits& limits = {});

/// Compact text.
std::string to_text(const boost::json::value& value);

/// "an object", "a string", ... for messages.
std::string_view kind_name(const boost::json::value& value);

/// RFC 3339 UTC with milliseconds from Unix milliseconds: "2025-03-01T10:00:00.000Z".
std::string rfc3339(std::int64_t unix_ms);
/// null for 0.
boost::json::value rfc3339_or_null(std::int64_t unix_ms);
/// Errors: kInvalidArgument. Takes fractions and offsets.
Result<std::int64_t> parse_rfc3339(std::string_view text);

/// A number rounded to three decimals, so that replies do not carry noise.
double rounded(double value, int decimals = 3);

}  // namespace quire
