#include "server/json/text.h"

#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/index.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Writes like json::serialize(), but with plain decimal numbers (0.5, not 5E-1).
void write(const json::value& value, std::string& out) {
  switch (value.kind()) {
    case json::kind::object: {
      out.push_back('{');
      bool first = true;
      for (const auto& member : value.get_object()) {
        if (!first) out.push_back(',');
        first = false;
        out.append(json::serialize(member.key())).push_back(':');
        write(member.value(), out);
      }
      out.push_back('}');
      return;
    }
    case json::kind::array: {
      out.push_back('[');
      bool first = true;
      for (const auto& item : value.get_array()) {
        if (!first) out.push_back(',');
        first = false;
        write(item, out);
      }
      out.push_back(']');
      return;
    }
    case json::kind::double_: {
      char text[40];
      const auto [end, ec] = std::to_chars(text, text + sizeof text, value.get_double());
      const std::string_view digits(text, to_size(end - text));
      out.append(digits);
      if (digits.find_first_of(".e") == std::string_view::npos) out.append(".0");
      return;
    }
    default:
      out.append(json::serialize(value));
  }
}

}  // namespace

std::string to_text(const json::value& value) {
  std::string out;
  write(value, out);
  return out;
}

std::string rfc3339(std::int64_t unix_ms) {
  std::int64_t seconds = unix_ms / 1000, ms = unix_ms % 1000;
  if (ms < 0) {
    ms += 1000;
    --seconds;
  }
  const auto t = static_cast<std::time_t>(seconds);
  std::tm tm{};
  gmtime_r(&t, &tm);
  char text[64];
  std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900,
                tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, static_cast<int>(ms));
  return text;
}

std::string lost_text(const LostWrites& lost) {
  if (lost.count == 0) return {};
  const std::string all = (lost.at_least ? "at least " : "") + std::to_string(lost.count),
                    times = ", from " + rfc3339(lost.first_ms) + " to " + rfc3339(lost.last_ms);
  if (lost.note_damaged)
    return all + " writes; LOST_WRITES in the store's folder counted them and is damaged";
  if (lost.torn == 0) return all + " acknowledged writes" + times;
  const std::string torn =
      "in the torn end of the log; a power failure tears only writes that were not acknowledged";
  if (lost.torn == lost.count) return all + " writes " + torn;
  return all + " writes: " + std::to_string(lost.count - lost.torn) + " acknowledged ones" + times +
         ", and " + std::to_string(lost.torn) + " " + torn;
}

json::value rfc3339_or_null(std::int64_t unix_ms) {
  if (unix_ms == 0) return nullptr;
  return json::value(rfc3339(unix_ms));
}

Result<std::int64_t> parse_rfc3339(std::string_view text) {
  const std::string s(text);
  const auto bad = [] {
    return Status::invalid("", "not an RFC 3339 time; write it like 2025-03-01T10:00:00Z");
  };
  int year, month, day, hour, minute, second, used = 0;
  if (std::sscanf(s.c_str(), "%4d-%2d-%2d%*1[Tt ]%2d:%2d:%2d%n", &year, &month, &day, &hour,
                  &minute, &second, &used) != 6 ||
      used < 19)
    return bad();
  if (year < 1970 || year > 9999 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 ||
      minute > 59 || second > 60)
    return bad();
  std::size_t i = to_size(used);
  double fraction = 0, scale = 0.1;
  if (i < s.size() && s[i] == '.')
    for (++i; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i, scale /= 10)
      fraction += (s[i] - '0') * scale;
  int offset_minutes = 0;
  if (i + 1 == s.size() && (s[i] == 'Z' || s[i] == 'z')) {
  } else if (i + 6 == s.size() && (s[i] == '+' || s[i] == '-')) {
    int oh, om;
    if (std::sscanf(s.c_str() + i + 1, "%2d:%2d", &oh, &om) != 2 || oh > 23 || om > 59)
      return bad();
    offset_minutes = (s[i] == '-' ? -1 : 1) * (oh * 60 + om);
  } else {
    return bad();
  }
  std::tm tm{};
  tm.tm_year = year - 1900;
  tm.tm_mon = month - 1;
  tm.tm_mday = day;
  tm.tm_hour = hour;
  tm.tm_min = minute;
  tm.tm_sec = second;
  const std::int64_t seconds = static_cast<std::int64_t>(timegm(&tm)) -
                               std::int64_t{60} * offset_minutes;
  return seconds * 1000 + static_cast<std::int64_t>(std::lround(fraction * 1000));
}

double rounded(double value, int decimals) {
  if (!std::isfinite(value)) return 0;
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

}  // namespace quire
