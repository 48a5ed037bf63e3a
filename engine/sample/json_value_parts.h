/// This file builds grammar parts for numbers between bounds and strings of a format. Internal to
/// sample/.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/sample/grammar.h"

namespace quire {

/// Bounds of a number; nothing: unbounded. Their absolute values are below 10^15, or 10^9 for
/// numbers with a fraction.
struct JsonRange {
  std::optional<std::int64_t> min, max;
  bool above_min = false, below_max = false;  ///< the bound itself is excluded
};

/// Builds the integers in the range with at most 18 digits; nothing if there are none.
std::optional<Grammar::Part> json_integer_between(GrammarBuilder& builder, const JsonRange& range);
/// Builds the numbers in the range without exponent and with at most 6 digits after the point;
/// nothing if there are none.
std::optional<Grammar::Part> json_number_between(GrammarBuilder& builder, const JsonRange& range);

inline constexpr std::string_view kJsonFormats =
    "date, time, date-time, duration, uuid, email, hostname, ipv4, ipv6, uri";
/// Builds the text of strings of a format, without quotes: RFC 3339 with a time zone and only days
/// that every year has, RFC 9562, durations of one or two units, and the common forms of the
/// others (mail addresses without quotes, IPv6 in full, http and https URIs without a query).
/// Returns nothing for an unknown format.
std::optional<Grammar::Part> json_format(GrammarBuilder& builder, std::string_view name);

}  // namespace quire
