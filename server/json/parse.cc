#include "server/json/parse.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_stack.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <unordered_set>
#include <vector>

#include "base/index.h"
#include "server/http/http_message.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Builds the value and refuses an object with a duplicate key, because two parsers would use
/// different values.
class Handler {
 public:
  using error_code = json::error_code;
  using string_view = json::string_view;
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();

  json::value_stack stack;
  std::string duplicate;  ///< the duplicate key, if one was found

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t n, error_code&) {
    stack.push_object(n);
    keys_.pop_back();
    return true;
  }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t n, error_code&) {
    stack.push_array(n);
    return true;
  }
  bool on_key_part(string_view s, std::size_t, error_code&) {
    key_.append(s.data(), s.size());
    stack.push_chars(s);
    return true;
  }
  bool on_key(string_view s, std::size_t, error_code& ec) {
    key_.append(s.data(), s.size());
    if (!keys_.back().insert(key_).second) {
      duplicate = key_;
      ec = json::error::extra_data;
      return false;
    }
    key_.clear();
    stack.push_key(s);
    return true;
  }
  bool on_string_part(string_view s, std::size_t, error_code&) {
    stack.push_chars(s);
    return true;
  }
  bool on_string(string_view s, std::size_t, error_code&) {
    stack.push_string(s);
    return true;
  }
  bool on_number_part(string_view, error_code&) { return true; }
  bool on_int64(std::int64_t i, string_view, error_code&) {
    stack.push_int64(i);
    return true;
  }
  bool on_uint64(std::uint64_t u, string_view, error_code&) {
    stack.push_uint64(u);
    return true;
  }
  bool on_double(double d, string_view, error_code& ec) {
    if (!std::isfinite(d)) {
      ec = json::error::exponent_overflow;
      return false;
    }
    stack.push_double(d);
    return true;
  }
  bool on_bool(bool b, error_code&) {
    stack.push_bool(b);
    return true;
  }
  bool on_null(error_code&) {
    stack.push_null();
    return true;
  }
  bool on_comment_part(string_view, error_code&) { return true; }
  bool on_comment(string_view, error_code&) { return true; }

 private:
  std::vector<std::unordered_set<std::string>> keys_;  ///< for the objects still open
  std::string key_;
};

std::string place(std::string_view text, std::size_t offset) {
  offset = std::min(offset, text.size());
  const auto before = text.substr(0, offset);
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const auto newline = before.rfind('\n');
  const auto column = newline == std::string_view::npos ? offset + 1 : offset - newline;
  return "line " + std::to_string(line) + ", column " + std::to_string(column);
}

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

Result<json::value> parse_json(std::string_view text, const JsonLimits& limits) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (const auto bad = invalid_utf8_at(text))
    return Status::invalid(
        "", "the JSON text is not valid UTF-8 at byte " + std::to_string(*bad) + "; send UTF-8");
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
    return Status::invalid("", "the JSON text is empty");
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::basic_parser<Handler> parser(options);
  parser.handler().stack.reset();
  json::error_code ec;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (!parser.handler().duplicate.empty() || (ec == json::error::extra_data && used < text.size()))
    return Status::invalid("", "the key \"" + parser.handler().duplicate +
                                   "\" stands twice in one object (" + place(text, used) + ")");
  if (ec) {
    const std::string why = ec == json::error::too_deep
                                ? "nested deeper than " + std::to_string(limits.max_depth) +
                                      " levels"
                                : ec.message();
    return Status::invalid("", "not valid JSON at " + place(text, used) + ": " + why);
  }
  if (text.find_first_not_of(" \t\r\n", used) != std::string_view::npos)
    return Status::invalid("", "more text after the JSON value at " + place(text, used));
  return parser.handler().stack.release();
}

std::string to_text(const json::value& value) {
  std::string out;
  write(value, out);
  return out;
}

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "unknown";
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
