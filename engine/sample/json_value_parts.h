/// Numbers between bounds and strings of a format, for grammars. Internal to sample/.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/sample/grammar.h"

namespace quire {

/// Bounds of a number; nothing: none. Their absolute values lie below 10^15, those of numbers with
/// a fraction below 10^9.
struct JsonRange {
  std::optional<std::int64_t> min, max;
  bool above_min = false, below_max = false;  ///< the bound itself is out
};

/// Integers of at most 18 digits. Nothing: there is none.
std::optional<Grammar::Part> json_integer_between(GrammarBuilder& builder, const JsonRange& range);
/// Numbers without exponent, with at most 6 digits behind the point. Nothing: there is none.
std::optional<Grammar::Part> json_number_between(GrammarBuilder& builder, const JsonRange& range);

inline constexpr std::string_view kJsonFormats = "date, time, date-time, uuid";
/// The text of such a string, without its quotes: RFC 3339 with a time zone, and days every year
/// has; RFC 9562. Nothing: unknown.
std::optional<Grammar::Part> json_format(GrammarBuilder& builder, std::string_view name);

}  // namespace quire
