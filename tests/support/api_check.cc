#include "tests/support/api_check.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "base/json_parse.h"
#include "base/status.h"
#include "server/openapi/openapi.h"
#include "tests/support/json_schema.h"

namespace quire::testing {
namespace json = boost::json;
namespace {

const json::object& description() {
  static const json::object document = [] {
    auto made = openapi_document(all_routes());
    QUIRE_CHECK(made.ok(), made.status().to_string());
    return std::move(*made);
  }();
  return document;
}

/// Returns the described operation of a request; null: no route has this path and method.
const json::object* operation_of(const std::string& method, const std::string& target) {
  static const RouteTable table(all_routes());
  const std::string path = target.substr(0, target.find_first_of("?#"));
  std::vector<std::string> segments;
  for (std::size_t at = 1; at < path.size();) {
    const auto end = std::min(path.find('/', at), path.size());
    segments.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  const auto match = table.match(method, segments);
  if (!match.route) return nullptr;
  std::string name(match.route->method);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const json::string_view pattern(match.route->pattern.data(), match.route->pattern.size());
  return &description().at("paths").as_object().at(pattern).as_object().at(name).as_object();
}

std::vector<std::string> check_body(const std::string& body, const json::value& schema) {
  const auto value = parse_json(body);
  if (!value.ok()) return {"the body is no JSON: " + value.status().message()};
  return check_schema(*value, schema, description(), Unlisted::kWrong);
}

const json::object& problem_schema() {
  static const json::object schema = {{"$ref", "#/components/schemas/Problem"}};
  return schema;
}

std::vector<std::string> check_events(const std::string& body, const json::object& operation) {
  const auto* events = operation.if_contains("x-events");
  if (!events) return {"its events are not described"};
  std::vector<std::string> problems;
  std::size_t at = 0;
  while (at < body.size()) {
    const auto end = std::min(body.find("\n\n", at), body.size());
    std::string name = "message", data;
    for (std::size_t line = at; line < end;) {
      const auto line_end = std::min(body.find('\n', line), end);
      const std::string text = body.substr(line, line_end - line);
      if (text.starts_with("event: ")) name = text.substr(7);
      if (text.starts_with("data: ")) data = text.substr(6);
      line = line_end + 1;
    }
    at = end + 2;
    // Skips a comment, the end mark, and an event that was cut off.
    if (data.empty() || data == "[DONE]" || end == body.size()) continue;
    const auto* schema = events->as_object().if_contains(name);
    if (!schema) {
      problems.push_back("the event " + name + " is not described");
      continue;
    }
    for (auto& problem : check_body(data, *schema))
      problems.push_back("event " + name + ": " + problem);
  }
  return problems;
}

}  // namespace

std::vector<std::string> check_reply(const std::string& method, const std::string& target,
                                     const RawResponse& reply) {
  if (method == "HEAD" || method == "OPTIONS" || reply.status == 0) return {};
  const std::string type = reply.header("content-type")
                               .value_or("")
                               .substr(0, reply.header("content-type").value_or("").find(';'));
  const auto* operation = operation_of(method, target);
  if (!operation) {
    if (reply.status < 400) return {"it succeeds, but is no route"};
    return check_body(reply.body, problem_schema());
  }
  const auto& responses = operation->at("responses").as_object();
  const auto* response = responses.if_contains(std::to_string(reply.status));
  if (!response && reply.status >= 400) response = responses.if_contains("default");
  if (!response) return {"the status " + std::to_string(reply.status) + " is not described"};
  const auto* content = response->as_object().if_contains("content");
  if (!content && reply.status < 400 && reply.body.empty()) return {};
  const auto* media = content ? content->as_object().if_contains(type) : nullptr;
  if (!media) {
    // The connection itself refuses a request before its route is known.
    if (reply.status >= 400 && type == "application/problem+json")
      return check_body(reply.body, problem_schema());
    return {"the media type '" + type + "' is not described for status " +
            std::to_string(reply.status)};
  }
  if (type == "text/event-stream") return check_events(reply.body, *operation);
  if (type == "application/x-ndjson") {
    // Each line is what a whole reply would be.
    const auto& line_schema = content->as_object().at("application/json").as_object().at("schema");
    std::vector<std::string> problems;
    for (std::size_t at = 0; at < reply.body.size();) {
      const auto end = std::min(reply.body.find('\n', at), reply.body.size());
      for (auto& problem : check_body(reply.body.substr(at, end - at), line_schema))
        problems.push_back("a line: " + problem);
      at = end + 1;
    }
    return problems;
  }
  if (!type.ends_with("json")) return {};
  return check_body(reply.body, media->as_object().at("schema"));
}

}  // namespace quire::testing
