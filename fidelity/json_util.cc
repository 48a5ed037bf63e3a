#include "fidelity/json_util.h"

#include <boost/json/serialize.hpp>
#include <cmath>
#include <optional>

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

void write_read_behind(const ReadBehind& behind, json::object& out) {
  out["read_behind"] = read_behind_name(behind.kind);
  if (behind.kind == ReadBehind::Kind::kLeadIn) out["lead_in_sha256"] = behind.lead_in.hex();
}

Result<ReadBehind> read_behind_of(const json::object& from) {
  const json::value* name = from.if_contains("read_behind");
  if (name == nullptr) return ReadBehind();
  const auto kind = name->is_string() ? parse_read_behind(name->get_string()) : std::nullopt;
  if (!kind) return Status::corruption("read_behind is none of nothing, lead_in, related");
  ReadBehind out{*kind, {}};
  if (*kind != ReadBehind::Kind::kLeadIn) return out;
  const json::value* text = from.if_contains("lead_in_sha256");
  const auto digest = text != nullptr && text->is_string()
                          ? Digest::from_hex(text->get_string())
                          : Result<Digest>(Status::corruption("there is none"));
  if (!digest.ok()) return Status::corruption("lead_in_sha256 is not 64 hex digits");
  out.lead_in = *digest;
  return out;
}

}  // namespace quire::fidelity_json
