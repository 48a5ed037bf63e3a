/// This file builds grammar parts for strings of a format. Internal to sample/.
#pragma once

#include <optional>
#include <string_view>

#include "engine/sample/grammar.h"

namespace quire {

inline constexpr std::string_view kJsonFormats =
    "date, time, date-time, duration, uuid, email, hostname, ipv4, ipv6, uri";
/// Builds the text of strings of a format, without quotes: RFC 3339 with a time zone and only days
/// that every year has, RFC 9562, durations of one or two units, and the common forms of the
/// others (mail addresses without quotes, IPv6 in full, http and https URIs without a query).
/// Returns nothing for an unknown format.
std::optional<Grammar::Part> json_format(GrammarBuilder& builder, std::string_view name);

}  // namespace quire
