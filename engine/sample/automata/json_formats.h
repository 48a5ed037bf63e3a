/// This file holds the formats of strings that JSON Schemas may name. Internal to sample/.
#pragma once

#include <string>
#include <string_view>

namespace quire {

/// The formats, for messages.
inline constexpr std::string_view kJsonFormats =
    "date, time, date-time, duration, uuid (also uuid1 to uuid8), email, hostname, ipv4, ipv6, "
    "ipvanyaddress, uri, base64, password";

/// Returns the expression, without ^ and $, of the texts that are written in a format: RFC 3339
/// with a time zone and only days that every year has, RFC 9562, durations of one or two units, RFC
/// 4648, and the common forms of the others (mail addresses without quotes, IPv6 in full, http and
/// https URIs without a query). Returns nothing for an unknown format.
std::string json_format_expression(std::string_view format);

}  // namespace quire
