#include "tests/support/json_schema.h"

#include <boost/json/serialize.hpp>
#include <cmath>
#include <regex>
#include <set>
#include <sstream>

namespace quire::testing {
namespace json = boost::json;
namespace {

class Checker {
 public:
  Checker(const json::object& document, Unlisted unlisted)
      : document_(document), unlisted_(unlisted) {}

  void check(const json::value& value, const json::value& schema, const std::string& path) {
    const auto* s = schema.if_object();
    if (!s) return wrong(path, "has a schema that is no object");
    if (const auto* ref = s->if_contains("$ref")) {
      const auto* target = resolve(std::string(ref->as_string()));
      if (!target)
        return wrong(path, "refers to " + std::string(ref->as_string()) + ", which does not exist");
      return check(value, *target, path);
    }
    static const std::set<std::string, std::less<>> known = {"type",
                                                             "enum",
                                                             "const",
                                                             "required",
                                                             "properties",
                                                             "additionalProperties",
                                                             "items",
                                                             "minItems",
                                                             "maxItems",
                                                             "minimum",
                                                             "maximum",
                                                             "exclusiveMinimum",
                                                             "exclusiveMaximum",
                                                             "minLength",
                                                             "maxLength",
                                                             "pattern",
                                                             "anyOf",
                                                             "oneOf",
                                                             "description",
                                                             "default"};
    for (const auto& [keyword, _] : *s)
      if (!known.contains(std::string_view(keyword.data(), keyword.size())))
        wrong(path,
              "has the keyword " + std::string(keyword) + ", which the checker does not know");
    check_choice(value, *s, path);
    if (!check_type(value, *s, path)) return;
    if (value.is_object()) check_object(value.as_object(), *s, path);
    if (value.is_array()) check_array(value.as_array(), *s, path);
    if (value.is_string()) check_string(std::string(value.as_string()), *s, path);
    if (value.is_number()) check_number(value.to_number<double>(), *s, path);
  }

  std::vector<std::string> problems;

 private:
  void wrong(const std::string& path, const std::string& what) {
    problems.push_back((path.empty() ? "the value" : path) + " " + what);
  }

  const json::value* resolve(const std::string& reference) const {
    if (!reference.starts_with("#/")) return nullptr;
    std::stringstream parts(reference.substr(2));
    const json::object* at = &document_;
    const json::value* found = nullptr;
    for (std::string part; std::getline(parts, part, '/');) {
      if (!at) return nullptr;
      found = at->if_contains(part);
      if (!found) return nullptr;
      at = found->if_object();
    }
    return found;
  }

  static bool is(const json::value& value, std::string_view type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_bool();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (type == "number") return value.is_number();
    return type == "integer" && value.is_number() &&
           (!value.is_double() || std::floor(value.as_double()) == value.as_double());
  }

  bool check_type(const json::value& value, const json::object& s, const std::string& path) {
    const auto* type = s.if_contains("type");
    if (!type) return true;
    bool ok = false;
    if (type->is_string())
      ok = is(value, std::string(type->as_string()));
    else
      for (const auto& t : type->as_array()) ok = ok || is(value, std::string(t.as_string()));
    if (!ok) wrong(path, "is " + shown(value) + ", not of type " + json::serialize(*type));
    return ok;
  }

  void check_choice(const json::value& value, const json::object& s, const std::string& path) {
    if (const auto* fixed = s.if_contains("const"); fixed && *fixed != value)
      wrong(path, "is " + shown(value) + ", not " + json::serialize(*fixed));
    if (const auto* names = s.if_contains("enum")) {
      bool found = false;
      for (const auto& name : names->as_array()) found = found || name == value;
      if (!found) wrong(path, "is " + shown(value) + ", none of " + json::serialize(*names));
    }
    for (const auto* keyword : {"anyOf", "oneOf"}) {
      const auto* choices = s.if_contains(keyword);
      if (!choices) continue;
      std::size_t fitting = 0;
      std::string why;
      for (const auto& choice : choices->as_array()) {
        Checker one(document_, unlisted_);
        one.check(value, choice, path);
        if (one.problems.empty())
          ++fitting;
        else
          why += "; " + one.problems.front();
      }
      if (fitting == 0) wrong(path, std::string("fits nothing of ") + keyword + why);
      if (fitting > 1 && std::string_view(keyword) == "oneOf")
        wrong(path, "fits more than one of oneOf");
    }
  }

  void check_object(const json::object& value, const json::object& s, const std::string& path) {
    if (const auto* required = s.if_contains("required"))
      for (const auto& name : required->as_array())
        if (!value.contains(name.as_string()))
          wrong(path, "lacks the member " + std::string(name.as_string()));
    const auto* properties = s.if_contains("properties");
    const auto* additional = s.if_contains("additionalProperties");
    for (const auto& [name, member] : value) {
      const std::string at = path.empty() ? std::string(name) : path + "." + std::string(name);
      if (const auto* schema = properties ? properties->as_object().if_contains(name) : nullptr)
        check(member, *schema, at);
      else if (additional && additional->is_object())
        check(member, *additional, at);
      else if (additional ? !additional->as_bool() : properties && unlisted_ == Unlisted::kWrong)
        wrong(at, "is not described");
    }
  }

  void check_array(const json::array& value, const json::object& s, const std::string& path) {
    if (const auto* least = s.if_contains("minItems");
        least && value.size() < least->to_number<std::size_t>())
      wrong(path, "has too few items");
    if (const auto* most = s.if_contains("maxItems");
        most && value.size() > most->to_number<std::size_t>())
      wrong(path, "has too many items");
    const auto* items = s.if_contains("items");
    for (std::size_t i = 0; items && i < value.size(); ++i)
      check(value[i], *items, path + "[" + std::to_string(i) + "]");
  }

  void check_string(const std::string& value, const json::object& s, const std::string& path) {
    std::size_t characters = 0;
    for (const char c : value)
      characters += (static_cast<unsigned char>(c) & 0xc0u) != 0x80 ? 1 : 0;
    if (const auto* least = s.if_contains("minLength");
        least && characters < least->to_number<std::size_t>())
      wrong(path, "is too short");
    if (const auto* most = s.if_contains("maxLength");
        most && characters > most->to_number<std::size_t>())
      wrong(path, "is too long");
    if (const auto* pattern = s.if_contains("pattern");
        pattern && !std::regex_search(value, std::regex(std::string(pattern->as_string()))))
      wrong(path, "is '" + value + "', which does not match its pattern");
  }

  void check_number(double value, const json::object& s, const std::string& path) {
    if (const auto* least = s.if_contains("minimum"); least && value < least->to_number<double>())
      wrong(path, "is too small");
    if (const auto* most = s.if_contains("maximum"); most && value > most->to_number<double>())
      wrong(path, "is too large");
    if (const auto* least = s.if_contains("exclusiveMinimum");
        least && value <= least->to_number<double>())
      wrong(path, "is too small");
    if (const auto* most = s.if_contains("exclusiveMaximum");
        most && value >= most->to_number<double>())
      wrong(path, "is too large");
  }

  static std::string shown(const json::value& value) {
    return json::serialize(value).substr(0, 100);
  }

  const json::object& document_;
  const Unlisted unlisted_;
};

}  // namespace

std::vector<std::string> check_schema(const json::value& value, const json::value& schema,
                                      const json::object& document, Unlisted unlisted) {
  Checker checker(document, unlisted);
  checker.check(value, schema, "");
  return checker.problems;
}

}  // namespace quire::testing
