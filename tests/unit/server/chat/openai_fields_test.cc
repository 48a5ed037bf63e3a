// The table of the OpenAI endpoints' fields: what it refuses, what it reads, and its documentation.
#include "server/chat/openai_fields.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>

#include "base/json_parse.h"
#include "server/json/openai_codec.h"
#include "server/openapi/openapi.h"
#include "server/service/route_table.h"

namespace quire {
namespace {

namespace json = boost::json;

std::optional<JsonError> read(OpenAiPath path, const json::object& more, OpenAiBody& out) {
  json::object body = more;
  const QueryDefaults defaults{"auto", "auto", "auto", 4};
  if (path == OpenAiPath::kChat) {
    if (!body.contains("messages"))
      body["messages"] = json::array{json::object{{"role", "user"}, {"content", "Hi"}}};
    return read_chat_completion(body, defaults, 2048, out);
  }
  if (!body.contains("prompt")) body["prompt"] = "Hi";
  return read_completion(body, defaults, 2048, out);
}

std::vector<OpenAiPath> paths_of(const OpenAiField& field) {
  std::vector<OpenAiPath> out;
  for (const OpenAiPath path : {OpenAiPath::kChat, OpenAiPath::kCompletion})
    if ((field.paths & static_cast<std::uint8_t>(path)) != 0) out.push_back(path);
  return out;
}

TEST(OpenAiFields, RefusedOnesAreNamedUnlessTheyAskForNothing) {
  for (const OpenAiField& field : openai_fields()) {
    if (field.use != FieldUse::kRefused) continue;
    for (const OpenAiPath path : paths_of(field)) {
      OpenAiBody out;
      const auto error = read(path, {{field.name, "something"}}, out);
      ASSERT_TRUE(error) << field.name;
      EXPECT_EQ(error->code, "unsupported_parameter") << field.name;
      EXPECT_EQ(error->path, field.name);
      EXPECT_NE(error->message.find(field.name), std::string::npos);
      for (std::string_view rest = field.harmless; !rest.empty();) {
        const std::size_t end = std::min(rest.find('|'), rest.size());
        const auto value = parse_json(rest.substr(0, end));
        ASSERT_TRUE(value.ok()) << field.name << " has the harmless value " << rest.substr(0, end);
        OpenAiBody taken;
        EXPECT_FALSE(read(path, {{field.name, *value}}, taken)) << field.name;
        rest.remove_prefix(std::min(end + 1, rest.size()));
      }
      for (const json::value& nothing :
           {json::value(nullptr), json::value(json::array()), json::value(json::object())}) {
        OpenAiBody taken;
        const bool asks = field.name == "web_search_options" && nothing.is_object();
        EXPECT_EQ(read(path, {{field.name, nothing}}, taken).has_value(), asks) << field.name;
      }
    }
  }
}

/// Values of the fields that are done which no reader may pass over.
TEST(OpenAiFields, WhatIsDoneIsRead) {
  for (const OpenAiField& field : openai_fields()) {
    if (field.use != FieldUse::kDone) continue;
    for (const OpenAiPath path : paths_of(field)) {
      // No field takes such an object: a reader that looks at it refuses it.
      OpenAiBody out;
      const auto error = read(path, {{field.name, json::object{{"no such member", 1}}}}, out);
      // These take objects, or are read by the model's side.
      if (field.name == "json_schema" || field.name == "guided_json") {
        EXPECT_TRUE(error) << field.name << " is a schema";
        continue;
      }
      EXPECT_TRUE(error) << field.name << " is not read";
      if (error) {
        EXPECT_TRUE(error->path.starts_with(field.name)) << field.name << ": " << error->path;
      }
    }
  }
}

TEST(OpenAiFields, UnknownOnesAreRefusedWithASuggestion) {
  OpenAiBody out;
  const auto error = read(OpenAiPath::kChat, {{"max_token", 5}}, out);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "unknown_field");
  EXPECT_NE(error->message.find("max_tokens"), std::string::npos) << error->message;
  const auto other = read(OpenAiPath::kCompletion, {{"tools", json::array()}}, out);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->code, "unknown_field");
}

TEST(OpenAiFields, EachStandsOnceForAPath) {
  for (const OpenAiField& a : openai_fields()) {
    int count = 0;
    for (const OpenAiField& b : openai_fields()) count += a.name == b.name && (a.paths & b.paths);
    EXPECT_EQ(count, 1) << a.name;
  }
}

TEST(OpenAiFields, TheDocumentationShowsTheTable) {
  std::ifstream in(QUIRE_SOURCE_DIR "/docs/openai.md");
  const std::string page{std::istreambuf_iterator<char>(in), {}};
  const std::string open = "<!-- fields -->\n", close = "<!-- /fields -->";
  const std::size_t begin = page.find(open), end = page.find(close);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos);
  const std::string shown = page.substr(begin + open.size(), end - begin - open.size());
  EXPECT_EQ(shown, openai_fields_markdown()) << "put this into docs/openai.md:\n"
                                             << openai_fields_markdown();
}

TEST(OpenAiFields, TheDescriptionOfTheApiHasWhatIsDone) {
  const auto document = openapi_document(all_routes());
  ASSERT_TRUE(document.ok()) << document.status().to_string();
  const auto& schemas = document->at("components").as_object().at("schemas").as_object();
  for (const OpenAiField& field : openai_fields()) {
    if (field.use != FieldUse::kDone) continue;
    for (const OpenAiPath path : paths_of(field)) {
      const char* schema = path == OpenAiPath::kChat ? "ChatRequest" : "CompletionRequest";
      EXPECT_TRUE(schemas.at(schema).as_object().at("properties").as_object().contains(field.name))
          << schema << " lacks " << field.name;
    }
  }
}

}  // namespace
}  // namespace quire
