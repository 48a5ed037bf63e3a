#include "server/json/parse.h"

#include <gtest/gtest.h>

#include <boost/json/object.hpp>

#include "server/json/reader.h"

namespace quire {
namespace {

TEST(ParseJson, ReadsWhatIsValid) {
  const auto v = parse_json(R"( {"a":[1,-2,3.5,"\u00fc",true,null],"b":{}} )");
  ASSERT_TRUE(v.ok()) << v.status().message();
  EXPECT_EQ(to_text(*v), R"({"a":[1,-2,3.5,"ü",true,null],"b":{}})");
}

TEST(ParseJson, RefusesWhatIsNot) {
  for (const auto* text : {"", "  ", "{", "{\"a\":}", "[1,]", "{'a':1}", "NaN", "[Infinity]", "1 2",
                           "{\"a\":1}x", "\"\xff\"", "// c\n1", "\"a\nb\"", "01", "{\"a\" 1}"})
    EXPECT_FALSE(parse_json(text).ok()) << text;
}

TEST(ParseJson, RefusesAKeyGivenTwiceAndNamesIt) {
  const auto v = parse_json("{\"a\":1,\n\"b\":{\"c\":1,\"\\u0063\":2}}");
  ASSERT_FALSE(v.ok());
  EXPECT_NE(v.status().message().find("\"c\""), std::string::npos) << v.status().message();
  EXPECT_TRUE(parse_json(R"([{"a":1},{"a":2},{"b":{"a":1}}])").ok());
}

TEST(ParseJson, DepthIsBounded) {
  EXPECT_TRUE(parse_json(std::string(30, '[') + std::string(30, ']')).ok());
  const auto deep = parse_json(std::string(100000, '[') + std::string(100000, ']'));
  ASSERT_FALSE(deep.ok());
  EXPECT_NE(deep.status().message().find("32"), std::string::npos);
}

TEST(ParseJson, ErrorsSayWhere) {
  const auto v = parse_json("{\"a\": 1,\n  \"b\": x}");
  ASSERT_FALSE(v.ok());
  EXPECT_NE(v.status().message().find("line 2"), std::string::npos) << v.status().message();
}

TEST(Rfc3339, ComesBack) {
  EXPECT_EQ(rfc3339(1740823500123), "2025-03-01T10:05:00.123Z");
  EXPECT_EQ(*parse_rfc3339("2025-03-01T10:05:00.123Z"), 1740823500123);
  EXPECT_EQ(*parse_rfc3339("2025-03-01T12:05:00+02:00"), 1740823500000);
  for (const auto* bad : {"", "2025-03-01", "2025-13-01T00:00:00Z", "2025-03-01T10:05:00",
                          "2025-03-01T10:05:00Zx", "x"})
    EXPECT_FALSE(parse_rfc3339(bad).ok()) << bad;
}

std::optional<ReadError> read(const std::string& text, std::int64_t& n) {
  const auto v = parse_json(text);
  ObjectReader r(*v, "cache");
  std::string mode = "auto", name;
  r.integer("number", n, 1, 10);
  r.one_of("mode", mode, {"auto", "fast"});
  r.string("name", name, 8);
  r.finish();
  return r.error();
}

TEST(ObjectReader, NamesWhatIsWrongByPath) {
  std::int64_t n = 3;
  EXPECT_FALSE(read(R"({"number":7,"mode":"fast"})", n));
  EXPECT_EQ(n, 7);
  EXPECT_FALSE(read(R"({"number":null})", n));
  EXPECT_EQ(n, 7);
  const std::pair<const char*, const char*> cases[] = {
      {R"({"number":11})", "cache.number"},
      {R"({"number":"1"})", "cache.number"},
      {R"({"number":1.5})", "cache.number"},
      {R"({"mode":"slow"})", "cache.mode"},
      {R"({"name":"far too long"})", "cache.name"},
      {R"({"number":18446744073709551615})", "cache.number"}};
  for (const auto& [text, param] : cases) {
    const auto e = read(text, n);
    ASSERT_TRUE(e) << text;
    EXPECT_EQ(e->param, param);
    EXPECT_EQ(e->code, "invalid_value");
  }
}

TEST(ObjectReader, UnknownMembersComeWithTheNearestName) {
  std::int64_t n = 0;
  const auto e = read(R"({"numbr":1})", n);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->code, "unknown_field");
  EXPECT_EQ(e->param, "cache.numbr");
  EXPECT_NE(e->message.find("'number'"), std::string::npos) << e->message;
}

TEST(ObjectReader, AnythingButAnObjectIsRefused) {
  for (const auto* text : {"[]", "1", "null", "\"x\""}) {
    std::int64_t n = 0;
    const auto e = read(text, n);
    ASSERT_TRUE(e) << text;
    EXPECT_EQ(e->param, "cache");
  }
}

}  // namespace
}  // namespace quire
