#include "base/json_reader.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>

#include "base/json_parse.h"

namespace quire {
namespace {

namespace json = boost::json;
constexpr JsonNeed kRequired = JsonNeed::kRequired;

json::value value_of(std::string_view text) {
  auto v = parse_json(text);
  EXPECT_TRUE(v.ok()) << text << ": " << v.status().message();
  return v.ok() ? std::move(*v) : json::value();
}

/// The error of reading `text` as the object "cache"; code "" is none.
JsonError error_of(std::string_view text, const std::function<void(JsonReader&)>& read) {
  const json::value v = value_of(text);
  JsonReader r(v, "cache");
  read(r);
  return r.error().value_or(JsonError{});
}

TEST(JsonReader, ReadsEveryType) {
  const json::value v = value_of(
      R"({"s":"x","b":true,"i":-3,"whole":4.0,"n":0.5,"also":2,"o":{"k":1},"a":[1,2],)"
      R"("l":["p","q"],"mode":"fast"})");
  JsonReader r(v, "");
  std::string s, mode = "auto";
  bool b = false;
  std::int64_t i = 0, whole = 0;
  double n = 0, also = 0;
  r.string("s", s);
  r.boolean("b", b);
  r.integer("i", i, -3, 3);
  r.integer("whole", whole, 0, 4);
  r.number("n", n, 0, 1);
  r.number("also", also);
  r.one_of("mode", mode, {"auto", "fast"});
  const json::object* o = r.object("o");
  const json::array* a = r.array("a", 2, 2);
  EXPECT_EQ(r.strings("l", 2), (std::vector<std::string>{"p", "q"}));
  r.finish();
  ASSERT_TRUE(r.ok()) << r.error()->message;
  EXPECT_EQ(s, "x");
  EXPECT_TRUE(b);
  EXPECT_EQ(i, -3);
  EXPECT_EQ(whole, 4);
  EXPECT_EQ(n, 0.5);
  EXPECT_EQ(also, 2);
  EXPECT_EQ(mode, "fast");
  ASSERT_NE(o, nullptr);
  EXPECT_EQ(o->at("k"), 1);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->size(), 2u);
}

TEST(JsonReader, MissingAndNullMembersLeaveWhatWasThere) {
  const json::value v = value_of(R"({"s":null,"i":null})");
  JsonReader r(v, "");
  std::string s = "kept", mode = "auto";
  bool b = true;
  std::int64_t i = 7;
  double n = 0.25;
  r.string("s", s);
  r.boolean("b", b);
  r.integer("i", i, 0, 1);
  r.number("n", n, 0, 0.1);
  r.one_of("mode", mode, {"fast"});
  EXPECT_EQ(r.object("o"), nullptr);
  EXPECT_EQ(r.array("a", 1, 2), nullptr);
  EXPECT_TRUE(r.strings("l", 1).empty());
  EXPECT_FALSE(r.has("s"));
  r.finish();
  EXPECT_TRUE(r.ok());
  EXPECT_EQ(s, "kept");
  EXPECT_TRUE(b);
  EXPECT_EQ(i, 7);
  EXPECT_EQ(n, 0.25);
  EXPECT_EQ(mode, "auto");
}

TEST(JsonReader, RequiredMembersMustBeThere) {
  std::string s;
  bool b = false;
  std::int64_t i = 0;
  double n = 0;
  const std::pair<std::function<void(JsonReader&)>, const char*> cases[] = {
      {[&](JsonReader& r) { r.string("x", s, 9, kRequired); }, "a string"},
      {[&](JsonReader& r) { r.boolean("x", b, kRequired); }, "true or false"},
      {[&](JsonReader& r) { r.integer("x", i, 0, 9, kRequired); }, "an integer"},
      {[&](JsonReader& r) { r.number("x", n, 0, 9, kRequired); }, "a number"},
      {[&](JsonReader& r) { (void)r.object("x", kRequired); }, "an object"},
      {[&](JsonReader& r) { (void)r.array("x", 0, 9, kRequired); }, "an array"},
      {[&](JsonReader& r) { (void)r.strings("x", 9, kRequired); }, "an array"}};
  for (const auto& [read, type] : cases) {
    for (const auto* text : {"{}", R"({"x":null})"}) {
      const JsonError e = error_of(text, read);
      EXPECT_EQ(e.path, "cache.x");
      EXPECT_EQ(e.code, "invalid_value");
      EXPECT_EQ(e.message, std::string("cache.x is missing; it must be ") + type);
    }
  }
}

TEST(JsonReader, WrongTypesAreNamed) {
  std::string s = "kept";
  bool b = true;
  std::int64_t i = 7;
  double n = 7;
  struct Case {
    const char* text;
    std::function<void(JsonReader&)> read;
    const char *path, *message;
  };
  const Case cases[] = {{R"({"x":1})", [&](JsonReader& r) { r.string("x", s); }, "cache.x",
                         "cache.x must be a string, not an integer"},
                        {R"({"x":"true"})", [&](JsonReader& r) { r.boolean("x", b); }, "cache.x",
                         "cache.x must be true or false, not a string"},
                        {R"({"x":1.5})", [&](JsonReader& r) { r.integer("x", i, 0, 9); }, "cache.x",
                         "cache.x must be an integer, not a number"},
                        {R"({"x":1e300})", [&](JsonReader& r) { r.integer("x", i, 0, 9); },
                         "cache.x", "cache.x must be an integer, not a number"},
                        {R"({"x":true})", [&](JsonReader& r) { r.integer("x", i, 0, 9); },
                         "cache.x", "cache.x must be an integer, not a boolean"},
                        {R"({"x":[]})", [&](JsonReader& r) { r.number("x", n, 0, 9); }, "cache.x",
                         "cache.x must be a number, not an array"},
                        {R"({"x":[]})", [&](JsonReader& r) { (void)r.object("x"); }, "cache.x",
                         "cache.x must be an object, not an array"},
                        {R"({"x":{}})", [&](JsonReader& r) { (void)r.array("x", 0, 9); }, "cache.x",
                         "cache.x must be an array, not an object"},
                        {R"({"x":["a",null]})", [&](JsonReader& r) { (void)r.strings("x"); },
                         "cache.x[1]", "cache.x[1] must be a string, not null"}};
  for (const Case& c : cases) {
    const JsonError e = error_of(c.text, c.read);
    EXPECT_EQ(e.code, "invalid_value") << c.text;
    EXPECT_EQ(e.path, c.path) << c.text;
    EXPECT_EQ(e.message, c.message);
  }
  EXPECT_EQ(s, "kept");
  EXPECT_TRUE(b);
  EXPECT_EQ(i, 7);
  EXPECT_EQ(n, 7);
}

TEST(JsonReader, RangesIncludeTheirBounds) {
  struct Case {
    const char *text, *message;  ///< empty: it is in the range
  };
  const Case integers[] = {{R"({"x":1})", ""},
                           {R"({"x":10})", ""},
                           {R"({"x":0})", "cache.x is 0; it must be between 1 and 10"},
                           {R"({"x":11.0})", "cache.x is 11; it must be between 1 and 10"},
                           {R"({"x":18446744073709551615})",
                            "cache.x is 9223372036854775807; it must be between 1 and 10"}};
  for (const Case& c : integers) {
    std::int64_t out = 5;
    EXPECT_EQ(error_of(c.text, [&](JsonReader& r) { r.integer("x", out, 1, 10); }).message,
              c.message);
    EXPECT_EQ(out == 5, *c.message != '\0');
  }
  const Case numbers[] = {{R"({"x":-0.5})", ""},
                          {R"({"x":2})", ""},
                          {R"({"x":-1})", "cache.x is -1; it must be between -0.5 and 2"},
                          {R"({"x":2.5})", "cache.x is 2.5; it must be between -0.5 and 2"},
                          {R"({"x":18446744073709551615})",
                           "cache.x is 1.844674407e+19; it must be between -0.5 and 2"}};
  for (const Case& c : numbers) {
    double out = 1;
    EXPECT_EQ(error_of(c.text, [&](JsonReader& r) { r.number("x", out, -0.5, 2); }).message,
              c.message);
    EXPECT_EQ(out == 1, *c.message != '\0');
  }
}

TEST(JsonReader, SizesAndNamesAreBounded) {
  std::string s = "auto";
  const auto array = [](JsonReader& r) { (void)r.array("x", 1, 2); };
  EXPECT_EQ(error_of(R"({"x":[]})", array).message, "cache.x has 0 items; at least 1 are taken");
  EXPECT_EQ(error_of(R"({"x":[1,2,3]})", array).message,
            "cache.x has 3 items; at most 2 are taken");
  EXPECT_EQ(error_of(R"({"x":["a","b"]})", [](JsonReader& r) { (void)r.strings("x", 1); }).message,
            "cache.x has 2 items; at most 1 are taken");
  EXPECT_EQ(error_of(R"({"x":"abc"})", [&](JsonReader& r) { r.string("x", s, 2); }).message,
            "cache.x has 3 bytes; at most 2 are taken");
  const auto mode = [&](JsonReader& r) { r.one_of("x", s, {"auto", "fast"}); };
  EXPECT_EQ(error_of(R"({"x":"slow"})", mode).message, "cache.x is 'slow'; use one of: auto, fast");
  EXPECT_EQ(s, "auto");
}

TEST(JsonReader, NestedErrorsHaveTheirWholePath) {
  const json::value v = value_of(R"({"messages":[{"content":"a"},{"content":{"parts":[1]}}]})");
  JsonReader body(v, "");
  const json::array* list = body.array("messages", 1, 9);
  ASSERT_NE(list, nullptr);
  JsonReader message((*list)[1], body.path_of("messages[1]"));
  JsonReader content(*message.raw("content"), message.path_of("content"));
  (void)content.strings("parts");
  message.adopt(content.error());
  body.adopt(message.error());
  ASSERT_FALSE(body.ok());
  EXPECT_EQ(body.error()->path, "messages[1].content.parts[0]");
}

TEST(JsonReader, TheFirstErrorIsKept) {
  const JsonError e = error_of(R"({"a":1,"b":2,"c":3})", [](JsonReader& r) {
    std::string s;
    r.fail("a", "a is odd", "odd");
    r.string("b", s);
    r.adopt(JsonError{"x", "x", "x"});
    r.finish();
  });
  EXPECT_EQ(e.code, "odd");
  EXPECT_EQ(e.message, "a is odd");
  EXPECT_EQ(e.path, "cache.a");
  EXPECT_EQ(error_of("{}", [](JsonReader& r) { r.fail("", "empty"); }).path, "cache");
}

TEST(JsonReader, NullsOfAnyNameCanBePassed) {
  const auto value = parse_json(R"({"new":null})");
  ASSERT_TRUE(value.ok());
  for (const bool pass : {false, true}) {
    JsonReader r(*value, "");
    if (pass) r.pass_nulls();
    r.finish();
    EXPECT_EQ(r.ok(), pass);
  }
  EXPECT_EQ(error_of(R"({"new":null,"newer":1})",
                     [](JsonReader& r) {
                       r.pass_nulls();
                       r.finish();
                     })
                .path,
            "cache.newer");
}

TEST(JsonReader, UnknownMembersComeWithTheNearestName) {
  const auto read = [](JsonReader& r) {
    std::int64_t n = 0;
    r.integer("number", n, 0, 9);
    r.finish();
  };
  JsonError e = error_of(R"({"number":1,"numbr":1})", read);
  EXPECT_EQ(e.code, "unknown_field");
  EXPECT_EQ(e.path, "cache.numbr");
  EXPECT_EQ(e.message, "unknown field 'cache.numbr'; did you mean 'number'?");
  e = error_of(R"({"elsewhere":1})", read);
  EXPECT_EQ(e.message, "unknown field 'cache.elsewhere'");
  e = error_of("{\"" + std::string(500, 'z') + "\":1}", read);
  EXPECT_EQ(e.path, "cache." + std::string(128, 'z'));
}

TEST(JsonReader, AnythingButAnObjectIsRefused) {
  for (const auto* text : {"[]", "1", "null", "\"x\""}) {
    const JsonError e = error_of(text, [](JsonReader& r) {
      EXPECT_FALSE(r.has("a"));
      r.finish();
    });
    EXPECT_EQ(e.code, "invalid_value") << text;
    EXPECT_EQ(e.path, "cache") << text;
  }
  const json::value list = value_of("[]");
  EXPECT_EQ(JsonReader(list, "").error()->message, "the body must be an object, not an array");
}

TEST(JsonReader, CallersMayHaveWordsOfTheirOwn) {
  const json::value v = value_of(R"({"n":11})");
  JsonReader r(v.get_object(), "", [](const JsonMismatch& m) {
    return m.path + " < " + std::to_string(m.least) + " or > " + std::to_string(m.most);
  });
  std::int64_t n = 0;
  r.integer("n", n, 1, 10);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error()->message, "n < 1 or > 10");
}

TEST(WholeNumber, IsWhatAnIntegerMayBeWrittenAs) {
  EXPECT_EQ(whole_number(json::value(3)), 3);
  EXPECT_EQ(whole_number(json::value(-3.0)), -3);
  EXPECT_EQ(whole_number(json::value(UINT64_MAX)), INT64_MAX);
  for (const json::value& v : {json::value(0.5), json::value(1e16), json::value("3"),
                               json::value(true), json::value(nullptr)})
    EXPECT_FALSE(whole_number(v)) << json::serialize(v);
}

}  // namespace
}  // namespace quire
