#include "server/openapi/openapi.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <set>
#include <string>

#include "base/json_parse.h"
#include "server/reply/reply_schemas.h"
#include "server/support/version.h"

namespace quire {
namespace json = boost::json;
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

json::object reference(const std::string& kind, const std::string& name) {
  return {{"$ref", "#/components/" + kind + "/" + name}};
}

/// All fragments and replies merged: `paths` by path and method, `components` by kind and name.
struct Fragments {
  json::object paths, components;

  Status add(const OpenApiFragment& fragment) {
    const std::string name(fragment.name);
    auto parsed = parse_json(fragment.text, JsonLimits{64});
    if (!parsed.ok() || !parsed->is_object())
      return Status::invalid(name, name + " is no JSON object: " + parsed.status().message());
    for (const auto& [section, value] : parsed->as_object()) {
      if (!value.is_object() || (section != "paths" && section != "components"))
        return Status::invalid(name, name + " has a member that is neither paths nor components");
      json::object& into = section == "paths" ? paths : components;
      for (const auto& [outer, members] : value.as_object())
        for (const auto& [inner, member] : members.as_object())
          QUIRE_RETURN_IF_ERROR(insert(into, name, outer, inner, member));
    }
    return {};
  }
  /// Adds the schemas of the replies that are tables.
  Status add_replies() {
    for (auto& [name, schema] : reply_schemas())
      QUIRE_RETURN_IF_ERROR(insert(components, "server/reply", "schemas", name, schema));
    return {};
  }

 private:
  static Status insert(json::object& into, const std::string& from, std::string_view outer,
                       std::string_view inner, const json::value& member) {
    if (!into.contains(outer)) into[outer] = json::object();
    if (into[outer].as_object().emplace(inner, member).second) return {};
    return Status::invalid(
        from, from + ": " + std::string(outer) + " " + std::string(inner) + " stands twice");
  }
};

/// Returns the names in braces of a pattern.
std::vector<std::string> path_parameters(std::string_view pattern) {
  std::vector<std::string> out;
  for (auto begin = pattern.find('{'); begin != std::string_view::npos;
       begin = pattern.find('{', begin + 1))
    out.emplace_back(pattern.substr(begin + 1, pattern.find('}', begin) - begin - 1));
  return out;
}

json::object problem_content(ErrorStyle style) {
  const char* type = style == ErrorStyle::kNative ? "application/problem+json" : "application/json";
  const char* schema = style == ErrorStyle::kAnthropic ? "AnthropicError"
                       : style == ErrorStyle::kOllama  ? "OllamaError"
                                                       : "Problem";
  return {{type, json::object{{"schema", reference("schemas", schema)}}}};
}

/// Adds the error statuses that follow from the kind of route.
void add_errors(const Route& route, json::object& responses) {
  const json::object own = problem_content(route.style);
  // What cannot be read as a request has no route, whose style its reply could have.
  json::object any = own;
  for (const auto& [type, schema] : problem_content(ErrorStyle::kNative)) any.emplace(type, schema);
  const auto add = [&](const char* status, const char* description, const json::object& content) {
    if (!responses.contains(status))
      responses[status] = json::object{{"description", description}, {"content", content}};
  };
  add("400", "A value, a field or the request itself is not valid", any);
  if (!route.public_path) {
    add("401", "No API key, or one that is not known", own);
    add("403", "The key may not do this, or not in this namespace", own);
    add("429", "The key's limit is used up; Retry-After says when to come back", own);
  }
  if (route.pattern.find('{') != std::string_view::npos)
    add("404", "There is nothing of that name in the namespace", own);
  if (route.body != BodyUse::kNone) {
    add("413", "The body is larger than server.max_body_bytes", own);
    add("415", "The body's media type is not one of those listed, or its encoding is not gzip",
        own);
  }
  if (route.needs_ready)
    add("503", "Loading, draining or overloaded; Retry-After says when to come back", own);
  add("default", "Any other error", any);
}

json::object operation(const Route& route, OpenApiKeys keys, json::object described) {
  json::object o;
  o["operationId"] = lower(route.method) + "_" + std::string(route.endpoint);
  o["summary"] = route.summary;
  if (route.public_path || keys == OpenApiKeys::kNone)
    o["security"] = json::array();
  else
    o["security"] = json::array{json::object{{"bearer", json::array()}},
                                json::object{{"api_key", json::array()}},
                                json::object{{"x_api_key", json::array()}}};
  if (!route.public_path) o["x-quire-scope"] = scope_name(route.scope);
  json::array parameters;
  if (auto* given = described.if_contains("parameters")) parameters = given->as_array();
  for (const auto& name : path_parameters(route.pattern))
    parameters.insert(parameters.begin(), reference("parameters", name));
  if (!route.public_path) parameters.push_back(reference("parameters", "namespace"));
  if (!parameters.empty()) o["parameters"] = std::move(parameters);
  for (auto& [name, value] : described)
    if (name != "parameters" && name != "responses") o[name] = std::move(value);
  json::object responses = described.at("responses").as_object();
  add_errors(route, responses);
  o["responses"] = std::move(responses);
  return o;
}

void collect_references(const json::value& value, std::set<std::string>& out) {
  if (const auto* list = value.if_array()) {
    for (const auto& item : *list) collect_references(item, out);
  } else if (const auto* object = value.if_object()) {
    for (const auto& [name, member] : *object) {
      if (name == "$ref" && member.is_string())
        out.emplace(member.as_string());
      else
        collect_references(member, out);
    }
  }
}

Status check_references(const json::object& document) {
  std::set<std::string> wanted;
  collect_references(document, wanted);
  const auto& components = document.at("components").as_object();
  std::size_t found = 0;
  for (const auto& [kind, members] : components) {
    if (kind == "securitySchemes") continue;
    for (const auto& [name, _] : members.as_object()) {
      const std::string path = "#/components/" + std::string(kind) + "/" + std::string(name);
      if (!wanted.contains(path))
        return Status::invalid(std::string(name), "nothing uses the component " + path);
      ++found;
    }
  }
  if (found == wanted.size()) return {};
  for (const auto& path : wanted) {
    const auto slash = path.rfind('/');
    const std::string kind = path.substr(13, slash - 13), name = path.substr(slash + 1);
    if (!components.contains(kind) || !components.at(kind).as_object().contains(name))
      return Status::invalid(path, "there is no component " + path);
  }
  return {};
}

json::object security_schemes() {
  return {{"bearer", json::object{{"type", "http"}, {"scheme", "bearer"}}},
          {"api_key", json::object{{"type", "apiKey"}, {"in", "header"}, {"name", "api-key"}}},
          {"x_api_key", json::object{{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}};
}

}  // namespace

Result<json::object> openapi_document(const std::vector<Route>& routes, OpenApiKeys keys) {
  Fragments fragments;
  for (const auto& fragment : openapi_fragments()) QUIRE_RETURN_IF_ERROR(fragments.add(fragment));
  QUIRE_RETURN_IF_ERROR(fragments.add_replies());
  json::object paths;
  std::size_t used = 0, described = 0;
  for (const auto& [_, methods] : fragments.paths) described += methods.as_object().size();
  for (const Route& route : routes) {
    const json::string_view pattern(route.pattern.data(), route.pattern.size());
    const auto* path = fragments.paths.if_contains(pattern);
    const auto* found = path ? path->as_object().if_contains(lower(route.method)) : nullptr;
    const std::string name = std::string(route.method) + " " + std::string(route.pattern);
    if (!found || !found->as_object().contains("responses"))
      return Status::invalid(name, name + " has no description of its replies in server/openapi");
    if (route.body != BodyUse::kNone && !found->as_object().contains("requestBody"))
      return Status::invalid(name, name + " has no description of its body in server/openapi");
    ++used;
    if (!paths.contains(pattern)) paths[pattern] = json::object();
    paths[pattern].as_object()[lower(route.method)] = operation(route, keys, found->as_object());
  }
  if (used != described) {
    for (const auto& [path, methods] : fragments.paths)
      for (const auto& [method, _] : methods.as_object())
        if (!paths.contains(path) || !paths.at(path).as_object().contains(method))
          return Status::invalid(std::string(path), "server/openapi describes " +
                                                        std::string(method) + " " +
                                                        std::string(path) + ", which is no route");
  }
  json::object document;
  document["openapi"] = "3.1.0";
  document["info"] = json::object{
      {"title", "Quire"},
      {"version", version()},
      {"description",
       "Caches document contexts once and answers questions over them by id. `/documents...` and "
       "`/query...` are permanent aliases of the paths under /v1. "
       "Members that are not described may be added to replies."}};
  document["paths"] = std::move(paths);
  fragments.components["securitySchemes"] = security_schemes();
  document["components"] = std::move(fragments.components);
  QUIRE_RETURN_IF_ERROR(check_references(document));
  return document;
}

}  // namespace quire
