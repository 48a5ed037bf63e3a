#include "base/json_object.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace quire {
namespace {

TEST(ParseJsonObject, TheLastOfRepeatedKeysStays) {
  const auto o = parse_json_object("config.json", "\xEF\xBB\xBF{\"a\":1,\"a\":2} \n");
  ASSERT_TRUE(o.ok()) << o.status().to_string();
  EXPECT_EQ(o->at("a").as_int64(), 2);
}

TEST(ParseJsonObject, ErrorsNameTheFileAndTheByte) {
  const std::pair<std::string, const char*> cases[] = {
      {"{\"a\":x}", "c.json: invalid JSON near byte 5: "},
      {"", "c.json: invalid JSON near byte 0: "},
      {"{\"\xFF\":1}", "c.json: invalid JSON near byte 2: not valid UTF-8"},
      {"{} x", "c.json: more text after the end of the JSON, at byte "},
      {"[1]", "c.json: must hold a JSON object"}};
  for (const auto& [text, message] : cases) {
    const auto o = parse_json_object("c.json", text);
    ASSERT_FALSE(o.ok()) << text;
    EXPECT_EQ(o.code(), Code::kInvalidArgument);
    EXPECT_EQ(o.status().field(), "c.json");
    EXPECT_TRUE(o.status().message().starts_with(message)) << o.status().message();
  }
}

TEST(JsonLookUps, AnotherTypeCountsAsMissing) {
  const auto o = parse_json_object("c.json", R"({"o":{},"a":[],"s":"x","b":true,"n":null})");
  ASSERT_TRUE(o.ok());
  EXPECT_NE(object_at(*o, "o"), nullptr);
  EXPECT_NE(array_at(*o, "a"), nullptr);
  EXPECT_EQ(string_at(*o, "s"), "x");
  EXPECT_EQ(bool_at(*o, "b"), true);
  for (const auto* name : {"n", "missing"}) {
    EXPECT_EQ(object_at(*o, name), nullptr);
    EXPECT_EQ(array_at(*o, name), nullptr);
    EXPECT_FALSE(string_at(*o, name));
    EXPECT_FALSE(bool_at(*o, name));
  }
  EXPECT_EQ(object_at(*o, "a"), nullptr);
  EXPECT_EQ(array_at(*o, "o"), nullptr);
  EXPECT_FALSE(string_at(*o, "b"));
  EXPECT_FALSE(bool_at(*o, "s"));
}

}  // namespace
}  // namespace quire
