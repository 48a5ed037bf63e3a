#include "server/openapi/openapi.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <set>

#include "base/json_parse.h"
#include "tests/support/api_check.h"
#include "tests/support/json_schema.h"

namespace quire {
namespace {

namespace json = boost::json;

void no_handler(std::shared_ptr<Call>) {}

Route made_up(std::string_view method, std::string_view pattern, BodyUse body = BodyUse::kNone) {
  Route r;
  r.method = method;
  r.pattern = pattern;
  r.endpoint = "made_up";
  r.handler = no_handler;
  r.scope = Scope::kRead;
  r.body = body;
  r.summary = "Made up";
  return r;
}

TEST(OpenApi, DescribesEveryRouteOnceAndNothingElse) {
  const auto routes = all_routes();
  const auto document = openapi_document(routes);
  ASSERT_TRUE(document.ok()) << document.status().to_string();
  std::size_t operations = 0;
  std::set<std::string> ids;
  for (const auto& [path, methods] : document->at("paths").as_object()) {
    for (const auto& [method, operation] : methods.as_object()) {
      ++operations;
      const auto& o = operation.as_object();
      EXPECT_TRUE(ids.emplace(o.at("operationId").as_string()).second) << o.at("operationId");
      EXPECT_FALSE(o.at("summary").as_string().empty());
      const auto& responses = o.at("responses").as_object();
      EXPECT_TRUE(responses.contains("default")) << path;
      EXPECT_TRUE(responses.contains("200") || responses.contains("202")) << path;
    }
  }
  EXPECT_EQ(operations, routes.size());
}

TEST(OpenApi, ARouteWithoutADescriptionIsRefused) {
  auto routes = all_routes();
  routes.push_back(made_up("GET", "/v1/made/up"));
  EXPECT_EQ(openapi_document(routes).status().field(), "GET /v1/made/up");
  routes.pop_back();
  routes.pop_back();
  EXPECT_EQ(openapi_document(routes).status().code(), Code::kInvalidArgument)
      << "a description whose route is gone";
  routes = all_routes();
  for (auto& r : routes)
    if (r.pattern == "/livez") r.body = BodyUse::kJson;
  EXPECT_EQ(openapi_document(routes).status().field(), "GET /livez")
      << "a body that is not described";
}

TEST(OpenApi, AServiceWithoutKeysAsksForNone) {
  for (const auto& [keys, count] :
       {std::pair(OpenApiKeys::kAsked, 3), std::pair(OpenApiKeys::kNone, 0)}) {
    const auto document = openapi_document(all_routes(), keys);
    ASSERT_TRUE(document.ok());
    const auto& query =
        document->at("paths").as_object().at("/v1/query").as_object().at("post").as_object();
    EXPECT_EQ(query.at("security").as_array().size(), static_cast<std::size_t>(count));
    EXPECT_EQ(query.at("x-quire-scope").as_string(), "query");
  }
}

TEST(OpenApi, ErrorsFollowFromTheRoute) {
  const auto document = openapi_document(all_routes());
  ASSERT_TRUE(document.ok());
  const auto& paths = document->at("paths").as_object();
  const auto& put = paths.at("/v1/documents/{id}").as_object().at("put").as_object();
  for (const auto* status : {"400", "401", "403", "404", "413", "415", "429", "503", "default"})
    EXPECT_TRUE(put.at("responses").as_object().contains(status)) << status;
  EXPECT_TRUE(put.at("responses")
                  .as_object()
                  .at("400")
                  .as_object()
                  .at("content")
                  .as_object()
                  .contains("application/problem+json"));
  EXPECT_EQ(put.at("x-quire-scope").as_string(), "write");
  const auto& probe = paths.at("/livez").as_object().at("get").as_object();
  EXPECT_TRUE(probe.at("security").as_array().empty());
  EXPECT_FALSE(probe.at("responses").as_object().contains("401"));
  const auto& models = paths.at("/v1/models/{id}").as_object().at("get").as_object();
  EXPECT_TRUE(models.at("responses")
                  .as_object()
                  .at("404")
                  .as_object()
                  .at("content")
                  .as_object()
                  .contains("application/json"));
  // The connection refuses what it cannot read before it knows the route.
  const auto& wrong = models.at("responses").as_object().at("400").as_object().at("content");
  EXPECT_TRUE(wrong.as_object().contains("application/json"));
  EXPECT_TRUE(wrong.as_object().contains("application/problem+json"));
}

json::value value_of(const std::string& text) {
  auto v = parse_json(text);
  EXPECT_TRUE(v.ok()) << text;
  return v.ok() ? std::move(*v) : json::value();
}

bool fits(const std::string& value, const std::string& schema,
          testing::Unlisted unlisted = testing::Unlisted::kWrong) {
  static const json::object document = value_of(R"({"a":{"b":{"type":"integer"}}})").as_object();
  return testing::check_schema(value_of(value), value_of(schema), document, unlisted).empty();
}

TEST(JsonSchema, ChecksEveryKeywordItKnowsAndRefusesOthers) {
  EXPECT_TRUE(fits("1", R"({"type":"integer"})"));
  EXPECT_TRUE(fits("1.0", R"({"type":"integer"})"));
  EXPECT_FALSE(fits("1.5", R"({"type":"integer"})"));
  EXPECT_TRUE(fits("null", R"({"type":["string","null"]})"));
  EXPECT_FALSE(fits("true", R"({"type":["string","null"]})"));
  EXPECT_FALSE(fits("\"x\"", R"({"enum":["y",null]})"));
  EXPECT_FALSE(fits("\"x\"", R"({"const":"y"})"));
  EXPECT_FALSE(fits("{}", R"({"required":["a"]})"));
  EXPECT_FALSE(fits(R"({"b":1})", R"({"properties":{"a":{}}})"));
  EXPECT_TRUE(fits(R"({"b":1})", R"({"properties":{"a":{}}})", testing::Unlisted::kFine));
  EXPECT_FALSE(fits(R"({"b":1})", R"({"properties":{"a":{}},"additionalProperties":false})",
                    testing::Unlisted::kFine));
  EXPECT_FALSE(fits(R"({"b":1})", R"({"additionalProperties":{"type":"string"}})"));
  EXPECT_FALSE(fits(R"([1,"x"])", R"({"items":{"type":"integer"}})"));
  EXPECT_FALSE(fits("[1]", R"({"minItems":2})"));
  EXPECT_FALSE(fits("[1,2]", R"({"maxItems":1})"));
  EXPECT_FALSE(fits("1", R"({"minimum":2})"));
  EXPECT_FALSE(fits("1", R"({"maximum":0.5})"));
  EXPECT_FALSE(fits("1", R"({"exclusiveMinimum":1})"));
  EXPECT_FALSE(fits("\"\"", R"({"minLength":1})"));
  EXPECT_TRUE(fits("\"\xc3\xa9\"", R"({"maxLength":1})"));
  EXPECT_FALSE(fits("\"ab\"", R"({"maxLength":1})"));
  EXPECT_FALSE(fits("\"ab\"", R"({"pattern":"^b"})"));
  EXPECT_FALSE(fits("1", R"({"anyOf":[{"type":"string"},{"type":"null"}]})"));
  EXPECT_FALSE(fits("1", R"({"oneOf":[{"type":"number"},{"type":"integer"}]})"));
  EXPECT_FALSE(fits("\"x\"", R"({"$ref":"#/a/b"})"));
  EXPECT_FALSE(fits("1", R"({"$ref":"#/a/c"})"));
  EXPECT_FALSE(fits("1", R"({"multipleOf":2})")) << "an unknown keyword";
}

TEST(ApiCheck, FindsWhatIsNotDescribed) {
  const auto reply = [](int status, const std::string& type, const std::string& body) {
    testing::RawResponse r;
    r.status = status;
    r.head = "HTTP/1.1 200 OK\r\nContent-Type: " + type + "\r\n\r\n";
    r.body = body;
    return r;
  };
  EXPECT_TRUE(
      testing::check_reply("GET", "/livez", reply(200, "application/json", R"({"status":"ok"})"))
          .empty());
  EXPECT_FALSE(testing::check_reply("GET", "/livez",
                                    reply(200, "application/json", R"({"status":"ok","more":1})"))
                   .empty());
  EXPECT_FALSE(testing::check_reply("GET", "/livez", reply(200, "text/plain", "ok")).empty());
  EXPECT_FALSE(
      testing::check_reply("GET", "/livez", reply(201, "application/json", R"({"status":"ok"})"))
          .empty());
  EXPECT_FALSE(testing::check_reply("GET", "/nothing", reply(404, "application/problem+json", "{}"))
                   .empty());
  EXPECT_TRUE(testing::check_reply("GET", "/v1/jobs/j/events",
                                   reply(200, "text/event-stream", ": ping\n\n"))
                  .empty());
  EXPECT_FALSE(testing::check_reply("GET", "/v1/jobs/j/events",
                                    reply(200, "text/event-stream", "event: odd\ndata: {}\n\n"))
                   .empty());
  EXPECT_FALSE(testing::check_reply("GET", "/v1/jobs/j/events",
                                    reply(200, "text/event-stream", "event: done\ndata: {}\n\n"))
                   .empty());
}

}  // namespace
}  // namespace quire
