#include "fidelity/json_util.h"

#include <boost/json/serialize.hpp>
#include <cmath>

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

std::string pretty(const json::value& value) {
  std::string out;
  append_pretty(value, 0, out);
  return out + "\n";
}

json::value number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

}  // namespace quire::fidelity_json
