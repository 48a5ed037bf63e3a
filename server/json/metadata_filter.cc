#include "server/json/metadata_filter.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <vector>

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostConditions = 32, kMostValues = 256;
constexpr const char* kOperators = "in, not, gt, gte, lt, lte and exists";

std::string text_of(const json::value& v) {
  return v.is_string() ? std::string(v.get_string()) : json::serialize(v);
}

/// Returns the bound of an operator; null: it is none of them.
std::optional<std::string>* bound_of(MetadataCondition& condition, std::string_view name) {
  if (name == "gt") return &condition.above;
  if (name == "gte") return &condition.at_least;
  if (name == "lt") return &condition.below;
  if (name == "lte") return &condition.at_most;
  return nullptr;
}

/// Reads one scalar or several in an array.
void read_values(JsonReader& r, std::string_view member, const json::value& value,
                 std::vector<std::string>& out) {
  const auto wrong = [&] {
    r.fail(member,
           r.path_of(member) + " must be a string, a number, a boolean, null or an array of them");
  };
  if (value.is_object()) return wrong();
  if (!value.is_array()) return out.push_back(text_of(value));
  const json::array& list = value.get_array();
  if (list.empty() || list.size() > kMostValues)
    return r.fail(member, r.path_of(member) + " has " + std::to_string(list.size()) +
                              " values; 1 to " + std::to_string(kMostValues) + " are taken");
  for (const json::value& one : list) {
    if (one.is_structured()) return wrong();
    out.push_back(text_of(one));
  }
}

void read_operators(JsonReader& r, const json::object& operators, MetadataCondition& out) {
  // A null is a value here, while the reader takes it for a missing member.
  const auto member = [&](std::string_view name) {
    (void)r.raw(name);
    return operators.if_contains(name);
  };
  if (const json::value* v = member("in")) read_values(r, "in", *v, out.any_of);
  if (const json::value* v = member("not")) read_values(r, "not", *v, out.none_of);
  for (const std::string_view name : {"gt", "gte", "lt", "lte"}) {
    const json::value* v = member(name);
    if (!v) continue;
    if (!v->is_number() && !v->is_string())
      r.fail(name, r.path_of(name) + " must be a number or a string");
    else
      *bound_of(out, name) = text_of(*v);
    out.number_bounds |= v->is_number();
  }
  if (r.has("exists")) r.boolean("exists", out.exists.emplace(false));
  r.finish();
}

}  // namespace

void read_metadata_filter(JsonReader& r, std::string_view member, MetadataFilter& out) {
  const json::object* filter = r.object(member);
  if (!filter || !r.ok()) return;
  if (filter->size() > kMostConditions)
    return r.fail(member, r.path_of(member) + " has " + std::to_string(filter->size()) +
                              " members; at most " + std::to_string(kMostConditions) +
                              " are taken");
  JsonReader conditions(*filter, r.path_of(member));
  for (const auto& [name, value] : *filter) {
    const std::string key(name);
    MetadataCondition condition;
    condition.key = key;
    if (value.is_object()) {
      if (value.get_object().empty()) {
        conditions.fail(key, conditions.path_of(key) + " is empty; use " + kOperators);
      } else {
        JsonReader inner(value, conditions.path_of(key));
        read_operators(inner, value.get_object(), condition);
        conditions.adopt(inner.error());
      }
    } else {
      read_values(conditions, key, value, condition.any_of);
    }
    if (!conditions.ok()) break;
    out.push_back(std::move(condition));
  }
  r.adopt(conditions.error());
}

std::optional<JsonError> read_metadata_condition(std::string_view name, const std::string& value,
                                                 const std::string& path, MetadataFilter& out) {
  const std::size_t bracket = name.ends_with(']') ? name.rfind('[') : std::string_view::npos;
  const std::string key(name.substr(0, bracket));
  if (bracket == std::string_view::npos) {
    out.emplace_back(key, value);
    return std::nullopt;
  }
  const std::string_view op = name.substr(bracket + 1, name.size() - bracket - 2);
  auto at = std::ranges::find_if(out, [&](const MetadataCondition& c) {
    return c.key == key && (c.any_of.empty() || op != "in");
  });
  if (at == out.end()) {
    at = out.insert(out.end(), MetadataCondition());
    at->key = key;
  }
  if (op == "in" || op == "not") {
    auto& values = op == "in" ? at->any_of : at->none_of;
    for (std::size_t begin = 0; begin <= value.size();) {
      const std::size_t end = std::min(value.find(',', begin), value.size());
      values.push_back(value.substr(begin, end - begin));
      begin = end + 1;
    }
  } else if (auto* bound = bound_of(*at, op)) {
    *bound = value;
  } else if (op == "exists" && (value == "true" || value == "false")) {
    at->exists = value == "true";
  } else {
    return JsonError{"invalid_value",
                     op == "exists" ? path + " must be true or false"
                                    : path + " has the operator '" + std::string(op.substr(0, 64)) +
                                          "'; there are " + kOperators,
                     path};
  }
  return std::nullopt;
}

}  // namespace quire
