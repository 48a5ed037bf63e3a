#include "fidelity/json_util.h"

#include <boost/json/serialize.hpp>
#include <boost/json/stream_parser.hpp>
#include <cmath>
#include <limits>

namespace quire::fidelity_json {
namespace json = boost::json;
namespace {

void append_pretty(const json::value& v, std::size_t depth, std::string& out) {
  const std::string indent(2 * depth + 2, ' ');
  if (v.is_object() && !v.get_object().empty()) {
    out += "{\n";
    bool first = true;
    for (const auto& [key, item] : v.get_object()) {
      if (!first) out += ",\n";
      first = false;
      out += indent + json::serialize(key) + ": ";
      append_pretty(item, depth + 1, out);
    }
    out += "\n" + std::string(2 * depth, ' ') + "}";
  } else if (v.is_array() && !v.get_array().empty() &&
             (v.get_array().front().is_object() || v.get_array().front().is_array())) {
    out += "[\n";
    bool first = true;
    for (const auto& item : v.get_array()) {
      if (!first) out += ",\n";
      first = false;
      out += indent;
      append_pretty(item, depth + 1, out);
    }
    out += "\n" + std::string(2 * depth, ' ') + "]";
  } else {
    out += json::serialize(v);
  }
}

}  // namespace

Result<json::value> parse(std::string_view text) {
  json::parse_options options;
  options.max_depth = 32;
  json::stream_parser parser({}, options);
  boost::system::error_code ec;
  const std::size_t read = parser.write_some(text.data(), text.size(), ec);
  if (!ec && read < text.size()) {
    if (text.find_first_not_of(" \t\r\n", read) != std::string_view::npos)
      return Status::invalid(
          "", "something follows the JSON value at byte " + std::to_string(read + 1));
  }
  if (!ec) parser.finish(ec);
  if (ec == json::error::incomplete) return Status::invalid("", "the JSON value is not finished");
  if (ec)
    return Status::invalid(
        "", "not valid JSON at byte " + std::to_string(read + 1) + ": " + ec.message());
  return parser.release();
}

std::string pretty(const json::value& value) {
  std::string out;
  append_pretty(value, 0, out);
  return out + "\n";
}

json::value number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

double to_double(const json::value& value) {
  if (value.is_number()) return value.to_number<double>();
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace quire::fidelity_json
