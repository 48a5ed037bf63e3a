#include "server/reply/kind.h"

#include <boost/json/array.hpp>
#include <string>
#include <utility>

namespace quire::kind {
namespace json = boost::json;

Kind text() { return {.schema = {{"type", "string"}}}; }
Kind flag() { return {.schema = {{"type", "boolean"}}}; }
Kind count() { return component("Count"); }
Kind whole_number() { return {.schema = {{"type", "integer"}}}; }

Kind milliseconds() {
  Kind kind = component("Milliseconds");
  kind.decimals = 3;
  return kind;
}

Kind ratio(int decimals) {
  Kind kind = component("Ratio");
  kind.decimals = decimals;
  return kind;
}

Kind amount(int decimals) {
  return {.schema = {{"type", "number"}, {"minimum", 0}}, .decimals = decimals};
}

Kind number(int decimals) { return {.schema = {{"type", "number"}}, .decimals = decimals}; }
Kind time() { return component("Time"); }

Kind time_or_null() {
  Kind kind = component("TimeOrNull");
  kind.nullable = true;
  return kind;
}

Kind range() { return component("Range"); }

Kind tier_or_null() {
  Kind kind = component("TierOrNull");
  kind.nullable = true;
  return kind;
}

Kind map() { return {.schema = {{"type", "object"}}}; }

Kind one_of(std::initializer_list<std::string_view> names) {
  json::array values;
  for (const std::string_view name : names) values.emplace_back(name);
  return {.schema = {{"type", "string"}, {"enum", std::move(values)}}};
}

Kind constant(std::string_view text) { return {.schema = {{"const", text}}}; }

Kind component(std::string_view name) {
  return {.schema = {{"$ref", "#/components/schemas/" + std::string(name)}}};
}

Kind list(const Kind& item) { return {.schema = {{"type", "array"}, {"items", item.schema}}}; }

Kind or_null(Kind kind) {
  kind.nullable = true;
  if (json::value* type = kind.schema.if_contains("type")) {
    *type = json::array{*type, "null"};
    if (json::value* names = kind.schema.if_contains("enum"))
      names->as_array().emplace_back(nullptr);
  } else {
    const json::object null{{"type", "null"}};
    kind.schema = json::object{{"anyOf", json::array{std::move(kind.schema), null}}};
  }
  return kind;
}

Kind optional(Kind kind) {
  kind.required = kind.nullable = false;
  return kind;
}

}  // namespace quire::kind
