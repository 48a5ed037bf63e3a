#include "engine/sample/json_schema_grammar.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <random>

#include "tests/support/json_schema.h"
#include "tests/unit/engine/sample/answer_maker.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

class JsonSchemaGrammarTest : public ::testing::Test {
 protected:
  bool takes(const std::string& schema, const std::string& text) {
    const auto grammar = json_schema_grammar(schema);
    EXPECT_TRUE(grammar.ok()) << schema << ": " << grammar.status().to_string();
    return grammar.ok() && accepts(**grammar, vocabulary_, text);
  }
  TestVocabulary vocabulary_;
};

TEST_F(JsonSchemaGrammarTest, ScalarsAreWrittenAsJsonHasThem) {
  for (const char* yes : {"0", "-7", "123456789012345678", "-0"})
    EXPECT_TRUE(takes(R"({"type":"integer"})", yes)) << yes;
  for (const char* no : {"", "-", "01", "1.0", "1e3", "1234567890123456789", "+1", "\"1\""})
    EXPECT_FALSE(takes(R"({"type":"integer"})", no)) << no;
  for (const char* yes : {"0", "-1.5", "2e10", "2.25E-3", "0.0"})
    EXPECT_TRUE(takes(R"({"type":"number"})", yes)) << yes;
  for (const char* no : {".5", "1.", "1e", "1e999", "NaN"})
    EXPECT_FALSE(takes(R"({"type":"number"})", no)) << no;
  EXPECT_TRUE(takes(R"({"type":["boolean","null"]})", "null"));
  EXPECT_TRUE(takes(R"({"type":["boolean","null"]})", "false"));
  EXPECT_FALSE(takes(R"({"type":["boolean","null"]})", "nul"));
}

TEST_F(JsonSchemaGrammarTest, StringsAreWellFormedUtf8AndCountCharacters) {
  const std::string any = R"({"type":"string"})",
                    two = R"({"type":"string","minLength":2,"maxLength":2})";
  for (const std::string yes :
       {R"("")", R"("a\"\\\/\b\f\n\r\t")", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"",
        R"("\u00e9")", R"("\ud83d\ude00")"})
    EXPECT_TRUE(takes(any, yes)) << yes;
  for (const std::string no :
       {R"(")", "\"\n\"", "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"",
        "\"\xe2\x82\"", R"("\x")", R"("\u12")", R"("\ud83d")", R"("\ude00")", R"("\ud83dx")"})
    EXPECT_FALSE(takes(any, no)) << no;
  for (const std::string yes : {R"("ab")", "\"\xf0\x9f\x98\x80\xc3\xa9\"", R"("\ud83d\ude00x")"})
    EXPECT_TRUE(takes(two, yes)) << yes;
  for (const std::string no : {R"("a")", R"("abc")"}) EXPECT_FALSE(takes(two, no)) << no;
}

TEST_F(JsonSchemaGrammarTest, ObjectsHaveTheirMembersInOrderAndTheRequiredOnes) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{)"
      R"("type":"integer"}},"required":["b"],"additionalProperties":false})";
  for (const char* yes :
       {R"({"b":1})", R"({"a": 1, "b": 2, "c": 3})", R"({"b":1,"c":2})", R"({"a":1,"b":2})"})
    EXPECT_TRUE(takes(schema, yes)) << yes;
  for (const char* no : {"{}", R"({"a":1})", R"({"b":1,"a":2})", R"({"b":1,})", R"({"b":1,"d":2})",
                         R"({"b":1,"b":1})", R"({ "b":1})", R"({"b":  1})"})
    EXPECT_FALSE(takes(schema, no)) << no;
  EXPECT_TRUE(takes(R"({"type":"object","properties":{},"additionalProperties":false})", "{}"));
  EXPECT_TRUE(takes(R"({"type":"object"})", R"({"x":[1,{"y":null}]})"));
  EXPECT_TRUE(takes(R"({"type":"object","additionalProperties":{"type":"boolean"}})",
                    R"({"x":true, "y":false})"));
  EXPECT_FALSE(
      takes(R"({"type":"object","additionalProperties":{"type":"boolean"}})", R"({"x":1})"));
  EXPECT_TRUE(takes(R"({"type":"object","required":["x"]})", R"({"x":[]})"))
      << "a required member may have any value";
  EXPECT_FALSE(takes(R"({"type":"object","required":["x"]})", "{}"));
  EXPECT_TRUE(takes(R"({"properties":{"q\"\u00e9":{"const":1}},"required":["q\"\u00e9"]})",
                    "{\"q\\\"\xc3\xa9\":1}"));
}

TEST_F(JsonSchemaGrammarTest, ArraysCountTheirItems) {
  const std::string schema =
      R"({"type":"array","items":{"enum":["red","blue"]},"minItems":1,"maxItems":3})";
  for (const char* yes : {R"(["red"])", R"(["red","blue", "red"])"})
    EXPECT_TRUE(takes(schema, yes)) << yes;
  for (const char* no : {"[]", R"(["red","red","red","red"])", R"(["green"])", R"(["red",])"})
    EXPECT_FALSE(takes(schema, no)) << no;
  EXPECT_TRUE(takes(R"({"type":"array","maxItems":0})", "[]"));
  EXPECT_FALSE(takes(R"({"type":"array","maxItems":0})", "[1]"));
  EXPECT_TRUE(takes(R"({"type":"array"})", R"([1,"x",[],{}])"));
}

TEST_F(JsonSchemaGrammarTest, AlternativesConstantsAndReferences) {
  EXPECT_TRUE(
      takes(R"({"anyOf":[{"type":"string"},{"type":"null"}],"title":"T","default":null})", "null"));
  EXPECT_TRUE(takes(R"({"oneOf":[{"const":{"a":[1,2]}},{"const":"x"}]})", R"({"a":[1,2]})"));
  EXPECT_TRUE(takes(R"({"type":"string","enum":["a",1,null]})", "\"a\""));
  EXPECT_FALSE(takes(R"({"type":"string","enum":["a",1,null]})", "1"));
  EXPECT_TRUE(takes(R"({"enum":[[-1.5,2.0],{"x":1e300}]})", "[-1.5,2.0]"))
      << "numbers as people write them";
  EXPECT_TRUE(takes(R"({"enum":[[-1.5,2.0],{"x":1e300}]})", R"({"x":1e+300})"));
  const std::string tree =
      R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{)"
      R"("type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},)"
      R"("required":["v","next"],"additionalProperties":false}}})";
  EXPECT_TRUE(takes(tree, R"({"v":1,"next":{"v":2,"next":null}})"));
  EXPECT_FALSE(takes(tree, R"({"v":1,"next":{"v":2}})"));
  EXPECT_TRUE(
      takes(R"({"type":"object","properties":{"children":{"type":"array","items":{"$ref":"#"}}},)"
            R"("required":["children"],"additionalProperties":false})",
            R"({"children":[{"children":[]}]})"));
  EXPECT_TRUE(takes(R"({"anyOf":[{"$ref":"#"},{"const":1}]})", "1"));
  EXPECT_TRUE(takes("{}", R"([{"a":"b"}])"));
  EXPECT_TRUE(takes("true", "3"));
}

TEST_F(JsonSchemaGrammarTest, EachValueOfALongEnumCanBeWritten) {
  json::array values;
  for (int i = 0; i < 500; ++i) values.emplace_back("label " + std::to_string(i * 7));
  values.emplace_back(17);
  const std::string schema = json::serialize(json::object{{"enum", values}});
  const auto grammar = json_schema_grammar(schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  for (const json::value& v : values)
    ASSERT_TRUE(accepts(**grammar, vocabulary_, json::serialize(v))) << v;
  for (const char* no : {"\"label\"", "\"label 1\"", "\"label 70\"0", "1", "\"17\""})
    EXPECT_FALSE(accepts(**grammar, vocabulary_, no)) << no;
}

TEST_F(JsonSchemaGrammarTest, EachOfManyAlternativesCanBeWritten) {
  json::array fixed{json::object{{"type", "boolean"}}, json::object{{"enum", {"x", 0.5}}}};
  for (int i = 0; i < 300; ++i)
    fixed.push_back({{"const", i % 2 == 0 ? json::value(i) : json::value{i, nullptr}},
                     {"title", "the value " + std::to_string(i)}});
  for (const char* keyword : {"anyOf", "oneOf"}) {
    const auto grammar = json_schema_grammar(json::serialize(json::object{{keyword, fixed}}));
    ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
    for (int i = 0; i < 300; ++i) {
      const std::string text = i % 2 == 0 ? std::to_string(i) : "[" + std::to_string(i) + ",null]";
      ASSERT_TRUE(accepts(**grammar, vocabulary_, text)) << text;
    }
    for (const char* yes : {"true", "\"x\"", "0.5"})
      EXPECT_TRUE(accepts(**grammar, vocabulary_, yes)) << yes;
    for (const char* no : {"1", "[2,null]", "300", "\"y\""})
      EXPECT_FALSE(accepts(**grammar, vocabulary_, no)) << no;
  }
}

TEST_F(JsonSchemaGrammarTest, MoreAlternativesThanAreFollowedAreRefused) {
  const auto union_of = [](int count) {
    json::array objects;
    for (int i = 0; i < count; ++i)
      objects.push_back({{"properties", {{"a" + std::to_string(i), json::object{}}}},
                         {"required", {"a" + std::to_string(i)}},
                         {"additionalProperties", false}});
    return json::serialize(json::object{{"items", json::object{{"anyOf", objects}}}});
  };
  const std::string many = union_of(240);
  for (const int i : {0, 100, 239})
    EXPECT_TRUE(takes(many, R"([{"a)" + std::to_string(i) + R"(":null}])")) << i;
  const Status status = json_schema_grammar(union_of(241)).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented) << status.to_string();
  EXPECT_EQ(status.field(), "items.anyOf");
  const auto object_of = [](int count, int required) {
    json::object properties;
    for (int i = 0; i < count; ++i) properties["m" + std::to_string(i)] = json::object{};
    return json::serialize(
        json::object{{"properties", properties}, {"required", {"m" + std::to_string(required)}}});
  };
  EXPECT_EQ(json_schema_grammar(object_of(242, 0)).status().field(), "properties");
  EXPECT_EQ(json_schema_grammar(object_of(242, 0)).status().code(), Code::kUnimplemented);
  EXPECT_TRUE(takes(object_of(400, 200), R"({"m199":1, "m200":2, "m399":3})"));
  EXPECT_FALSE(takes(object_of(400, 200), R"({"m199":1, "m399":3})"));
  for (const int i : {1, 100, 240})
    EXPECT_TRUE(takes(object_of(241, 0), R"({"m0":1e5,"m)" + std::to_string(i) + R"(":2})")) << i;
}

TEST_F(JsonSchemaGrammarTest, IntegersBetweenBoundsAreExactlyThose) {
  const std::tuple<const char*, int, int> ranges[] = {
      {R"({"type":"integer","minimum":0,"maximum":0})", 0, 0},
      {R"({"type":"integer","minimum":1,"maximum":5})", 1, 5},
      {R"({"type":"integer","minimum":-3,"maximum":120})", -3, 120},
      {R"({"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":101})", 10, 100},
      {R"({"type":"integer","minimum":-120,"maximum":-7})", -120, -7},
      {R"({"type":"integer","minimum":86,"maximum":1042})", 86, 1042},
      {R"({"type":"integer","minimum":0.5,"maximum":2.5})", 1, 2},
      {R"({"type":"integer","minimum":3,"exclusiveMinimum":3,"maximum":4})", 4, 4},
  };
  for (const auto& [schema, low, high] : ranges) {
    const auto grammar = json_schema_grammar(schema);
    ASSERT_TRUE(grammar.ok()) << schema << ": " << grammar.status().to_string();
    for (int i = -130; i <= 1100; i += i > 130 && i < 1030 ? 50 : 1)
      EXPECT_EQ(accepts(**grammar, vocabulary_, std::to_string(i)), i >= low && i <= high)
          << schema << ": " << i;
    for (const char* no : {"", "-", "00", "1.0", "+1", "01", "-01"})
      EXPECT_FALSE(accepts(**grammar, vocabulary_, no)) << schema << ": " << no;
  }
  EXPECT_TRUE(takes(R"({"type":"integer","minimum":18})", "999999999999999999"));
  EXPECT_FALSE(takes(R"({"type":"integer","minimum":18})", "17"));
  EXPECT_TRUE(takes(R"({"type":"integer","maximum":-1})", "-123456"));
  EXPECT_TRUE(takes(R"({"type":["integer","null"],"minimum":1})", "null"));
}

TEST_F(JsonSchemaGrammarTest, NumbersBetweenBoundsStayThere) {
  const std::string share = R"({"type":"number","minimum":0,"maximum":1})",
                    open = R"({"type":"number","exclusiveMinimum":-2,"exclusiveMaximum":3})";
  for (const char* yes : {"0", "1", "0.5", "0.999999", "1.0", "0.000"})
    EXPECT_TRUE(takes(share, yes)) << yes;
  for (const char* no : {"1.1", "-0.1", "2", "1e0", ".5", "1.000001", "-0"})
    EXPECT_FALSE(takes(share, no)) << no;
  for (const char* yes : {"-1.999", "0", "2.999999", "2", "-1", "-0.5"})
    EXPECT_TRUE(takes(open, yes)) << yes;
  for (const char* no : {"-2", "3", "3.0", "-2.0", "-2.5", "10"})
    EXPECT_FALSE(takes(open, no)) << no;
  for (const char* yes : {"12", "10.5", "99999"})
    EXPECT_TRUE(takes(R"({"minimum":10})", yes)) << yes;
  EXPECT_FALSE(takes(R"({"minimum":10})", "9.999"));
  EXPECT_TRUE(takes(R"({"type":"number","maximum":-5})", "-5.5"));
  EXPECT_FALSE(takes(R"({"type":"number","maximum":-5})", "-4.9"));
  EXPECT_TRUE(takes(R"({"type":"number","exclusiveMinimum":5})", "5.001"));
  EXPECT_FALSE(takes(R"({"type":"number","exclusiveMinimum":5})", "5.0"));
  const std::string part = R"({"type":"number","minimum":0.5,"exclusiveMaximum":1})";
  for (const char* yes : {"0.5", "0.50", "0.999999", "0.75"}) EXPECT_TRUE(takes(part, yes)) << yes;
  for (const char* no : {"0", "1", "1.0", "0.49", "0.4999999", "5e-1", "-0.5"})
    EXPECT_FALSE(takes(part, no)) << no;
  EXPECT_TRUE(takes(R"({"type":"number","exclusiveMinimum":-0.25,"maximum":1.5e3})", "1500.0"));
  EXPECT_FALSE(takes(R"({"type":"number","exclusiveMinimum":-0.25,"maximum":1.5e3})", "-0.25"));
  EXPECT_TRUE(takes(R"({"minimum":0.5,"exclusiveMinimum":0.25})", "0.5"));
  EXPECT_FALSE(takes(R"({"minimum":0.5,"exclusiveMinimum":0.5})", "0.5"));
}

TEST_F(JsonSchemaGrammarTest, NumbersAreMultiplesInDecimal) {
  const std::string fives = R"({"type":"integer","minimum":-10,"maximum":1000,"multipleOf":5})",
                    cents = R"({"type":"number","minimum":0,"multipleOf":0.01})",
                    both = R"({"type":["integer","null"],"multipleOf":2.5})";
  for (const char* yes : {"0", "5", "-10", "1000", "995"}) EXPECT_TRUE(takes(fives, yes)) << yes;
  for (const char* no : {"1", "-15", "1005", "5.0", "05", "-0", "5e1"})
    EXPECT_FALSE(takes(fives, no)) << no;
  for (const char* yes : {"0", "0.07", "19.9", "19.90", "1234567.29"})
    EXPECT_TRUE(takes(cents, yes)) << yes;
  for (const char* no : {"0.075", "0.001", "-1", "1e-2"}) EXPECT_FALSE(takes(cents, no)) << no;
  for (const char* yes : {"0", "5", "-15", "null"}) EXPECT_TRUE(takes(both, yes)) << yes;
  EXPECT_FALSE(takes(both, "2")) << "an integer multiple of 2.5 is one of 5";
  EXPECT_TRUE(takes(R"({"multipleOf":3})", "-9.0")) << "without a type it is a number";
}

TEST_F(JsonSchemaGrammarTest, FormatsAreDatesTimesAndUuids) {
  const std::string date = R"({"type":"string","format":"date"})",
                    time = R"({"type":"string","format":"time"})",
                    both = R"({"type":"string","format":"date-time"})",
                    uuid = R"({"type":"string","format":"uuid"})";
  for (const char* yes : {R"("2024-02-28")", R"("1999-12-31")", R"("2000-11-30")"})
    EXPECT_TRUE(takes(date, yes)) << yes;
  for (const char* no : {R"("2024-02-30")", R"("2024-13-01")", R"("2024-00-01")", R"("2024-04-31")",
                         R"("0000-01-01")", R"("2024-01-00")", R"("2024-1-1")"})
    EXPECT_FALSE(takes(date, no)) << no;
  for (const char* yes : {R"("00:00:00Z")", R"("23:59:59.123456+02:00")"})
    EXPECT_TRUE(takes(time, yes)) << yes;
  for (const char* no : {R"("24:00:00Z")", R"("12:60:00Z")", R"("12:00:00")"})
    EXPECT_FALSE(takes(time, no)) << no;
  EXPECT_TRUE(takes(both, R"("2024-05-06T07:08:09Z")"));
  EXPECT_FALSE(takes(both, R"("2024-05-06 07:08:09Z")"));
  EXPECT_TRUE(takes(uuid, R"("123e4567-e89b-12d3-a456-426614174000")"));
  EXPECT_FALSE(takes(uuid, R"("123e4567e89b12d3a456426614174000")"));
}

TEST_F(JsonSchemaGrammarTest, TuplesHaveTheirItemsInOrder) {
  const std::string pair =
      R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"minItems":2,)"
      R"("maxItems":2})";
  EXPECT_TRUE(takes(pair, R"([1,"a"])"));
  for (const char* no : {"[]", "[1]", R"(["a",1])", R"([1,"a",2])"})
    EXPECT_FALSE(takes(pair, no)) << no;
  const std::string closed = R"({"prefixItems":[{"const":1},{"const":2}],"items":false})";
  for (const char* yes : {"[]", "[1]", "[1,2]"}) EXPECT_TRUE(takes(closed, yes)) << yes;
  for (const char* no : {"[2]", "[1,2,3]", "[,2]"}) EXPECT_FALSE(takes(closed, no)) << no;
  const std::string more =
      R"({"prefixItems":[{"const":1}],"items":{"type":"boolean"},"minItems":2,"maxItems":3})";
  for (const char* yes : {"[1,true]", "[1,true,false]"}) EXPECT_TRUE(takes(more, yes)) << yes;
  for (const char* no : {"[1]", "[1,true,false,true]", "[1,1]"})
    EXPECT_FALSE(takes(more, no)) << no;
  EXPECT_TRUE(takes(R"({"prefixItems":[{"const":1},{"const":2}],"maxItems":1})", "[1]"));
  EXPECT_FALSE(takes(R"({"prefixItems":[{"const":1},{"const":2}],"maxItems":1})", "[1,2]"));
  EXPECT_TRUE(takes(R"({"items":false})", "[]"));
  const std::string none_first = R"({"prefixItems":[],"items":{"type":"boolean"}})";
  EXPECT_TRUE(takes(none_first, "[true,false]"));
  EXPECT_FALSE(takes(none_first, "[,true]"));
  EXPECT_TRUE(
      takes(R"({"allOf":[{"$ref":"#/$defs/a"}],"description":"d","$defs":{"a":{"const":"x"}}})",
            "\"x\""));
}

TEST_F(JsonSchemaGrammarTest, RoomThatNoAnswerFitsIntoChangesNothing) {
  const auto grammar = json_schema_grammar(R"({"type":"string","minLength":10})");
  GrammarMatcher tight(**grammar, vocabulary_.trie()), free(**grammar, vocabulary_.trie());
  const auto a = tight.allowed(11), b = free.allowed();
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  EXPECT_FALSE(tight.narrowed());
  const auto any = json_schema_grammar(R"({"type":"string"})");
  GrammarMatcher last(**any, vocabulary_.trie());
  ASSERT_TRUE(last.advance(vocabulary_.id_of("\"a")));
  (void)last.allowed(1);
  EXPECT_TRUE(last.narrowed());
  EXPECT_TRUE(last.withheld(vocabulary_.id_of("a")));
  EXPECT_FALSE(last.withheld(vocabulary_.id_of("\"")));
  EXPECT_FALSE(last.withheld(vocabulary_.id_of("\n"))) << "the grammar never allowed it";
}

TEST_F(JsonSchemaGrammarTest, WhatTheSubsetLacksIsRefusedWithItsPlace) {
  const std::tuple<const char*, Code, const char*> cases[] = {
      {R"({"type":"string","pattern":"a\\b"})", Code::kUnimplemented, "pattern"},
      {R"({"type":"object","properties":{"a":{"pattern":"^(a|b)*a(a|b){30}$","minLength":1}}})",
       Code::kUnimplemented, "properties.a.pattern"},
      {R"({"type":"string","format":"regex"})", Code::kUnimplemented, "format"},
      {R"({"type":"string","format":"date","maxLength":3})", Code::kInvalidArgument, "maxLength"},
      {R"({"type":"string","format":1})", Code::kInvalidArgument, "format"},
      {R"({"type":"string","pattern":1})", Code::kInvalidArgument, "pattern"},
      {R"({"type":"object","properties":{"age":{"type":"integer","multipleOf":999983}}})",
       Code::kUnimplemented, "properties.age.multipleOf"},
      {R"({"type":"number","multipleOf":0})", Code::kInvalidArgument, "multipleOf"},
      {R"({"type":"number","multipleOf":-1})", Code::kInvalidArgument, "multipleOf"},
      {R"({"type":"number","multipleOf":"2"})", Code::kInvalidArgument, "multipleOf"},
      {R"({"type":"number","minimum":1,"maximum":2,"multipleOf":5})", Code::kInvalidArgument,
       "multipleOf"},
      {R"({"type":"number","minimum":1e15})", Code::kInvalidArgument, "minimum"},
      {R"({"type":"integer","minimum":1e18})", Code::kInvalidArgument, "minimum"},
      {R"({"type":"integer","minimum":"0"})", Code::kInvalidArgument, "minimum"},
      {R"({"type":"integer","minimum":3,"maximum":2})", Code::kInvalidArgument, "maximum"},
      {R"({"type":"integer","minimum":0.2,"exclusiveMaximum":1})", Code::kInvalidArgument,
       "exclusiveMaximum"},
      {R"({"type":"number","minimum":2,"exclusiveMaximum":2})", Code::kInvalidArgument,
       "exclusiveMaximum"},
      {R"({"type":"array","prefixItems":[{}],"items":false,"minItems":2})", Code::kInvalidArgument,
       "minItems"},
      {R"({"type":"array","prefixItems":[{"pattern":"\\b"}]})", Code::kUnimplemented,
       "prefixItems[0].pattern"},
      {R"({"type":"array","items":{"type":"array","uniqueItems":true}})", Code::kUnimplemented,
       "items.uniqueItems"},
      {R"({"allOf":[{"type":"string"},{"maxLength":3}]})", Code::kUnimplemented, "allOf"},
      {R"({"allOf":[]})", Code::kInvalidArgument, "allOf"},
      {R"({"anyOf":[{"type":"string"},{"not":{}}]})", Code::kUnimplemented, "anyOf[1].not"},
      {R"({"type":"object","anyOf":[{}]})", Code::kUnimplemented, "type"},
      {R"({"$ref":"https://example.org/schema"})", Code::kUnimplemented, "$ref"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array","contains":{}}}})", Code::kUnimplemented,
       "$defs.a.contains"},
      {R"({"type":"object","properties":{"a":{}},"additionalProperties":{"type":"string"}})",
       Code::kUnimplemented, "additionalProperties"},
      {R"({"minLength":1,"minItems":1})", Code::kUnimplemented, "type"},
      {R"({"$ref":"#/$defs/none"})", Code::kInvalidArgument, "$ref"},
      {R"({"type":"text"})", Code::kInvalidArgument, "type"},
      {R"({"type":[]})", Code::kInvalidArgument, "type"},
      {R"({"type":"string","maxLength":-1})", Code::kInvalidArgument, "maxLength"},
      {R"({"type":"string","minLength":3,"maxLength":2})", Code::kInvalidArgument, "maxLength"},
      {R"({"enum":[]})", Code::kInvalidArgument, "enum"},
      {R"({"type":"object","properties":{"a":{}},"required":["b"],"additionalProperties":false})",
       Code::kInvalidArgument, "required"},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
       Code::kInvalidArgument, ""},
      {"false", Code::kInvalidArgument, ""},
      {"[]", Code::kInvalidArgument, ""},
      {"{", Code::kInvalidArgument, ""},
  };
  for (const auto& [schema, code, field] : cases) {
    const auto status = json_schema_grammar(schema).status();
    EXPECT_EQ(status.code(), code) << schema << ": " << status.to_string();
    EXPECT_EQ(status.field(), field) << schema << ": " << status.to_string();
  }
}

/// Returns the schema for the checker, which finds references in a document of named parts: "#"
/// becomes "#/self".
json::object document_of(const json::object& schema) {
  json::object self = schema;
  self.erase("$defs");
  std::string text = json::serialize(json::object{{"self", self}, {"$defs", schema.at("$defs")}});
  constexpr std::string_view kSelf = R"("$ref":"#")";
  for (std::size_t at = text.find(kSelf); at != std::string::npos; at = text.find(kSelf, at + 1))
    text.replace(at, kSelf.size(), R"("$ref":"#/self")");
  return json::parse(text).as_object();
}

/// Makes random schemas of the subset. Recursion ends, because it is an alternative to null or is
/// in an array that may be empty.
class SchemaMaker {
 public:
  explicit SchemaMaker(std::uint64_t seed) : rng_(seed) {}

  json::object whole() {
    // Both are objects, so that a reference to one is nested in something.
    json::object root = object(3);
    root["$defs"] = json::object{{"named", object(2)}};
    return root;
  }

 private:
  int below(int n) { return static_cast<int>(rng_() % static_cast<std::uint64_t>(n)); }

  json::object one(int depth) {
    switch (below(depth > 0 ? 13 : 8)) {
      case 0:
        return {{"type", "integer"}};
      case 1:
        return {{"type", json::array{"number", "null"}}};
      case 2:
        return {{"type", "boolean"}, {"description", "a switch"}};
      case 3: {
        const int min = below(4);
        return {{"type", "string"}, {"minLength", min}, {"maxLength", min + below(6)}};
      }
      case 4:
        return {{"enum", json::array{"red", 10, -1.5, nullptr, true, "\xc3\xa9\"\\"}}};
      case 5:
        return {{"const", json::object{{"k", json::array{1, "x"}}}}};
      case 6: {
        const int min = below(40) - 20;
        return {{"type", "integer"}, {"minimum", min}, {"maximum", min + below(300)}};
      }
      case 7: {
        const double min = (below(800) - 400) * (below(2) == 0 ? 1 : 0.01);
        return {{"type", "number"},
                {below(2) == 0 ? "minimum" : "exclusiveMinimum", min},
                {below(2) == 0 ? "maximum" : "exclusiveMaximum", min + 1 + below(9) * 0.125}};
      }
      case 8:
        return {{"anyOf", json::array{one(depth - 1), one(depth - 1)}}};
      case 9:
        return {{"anyOf", json::array{json::object{{"$ref", below(2) == 0 ? "#" : "#/$defs/named"}},
                                      json::object{{"type", "null"}}}}};
      case 10: {
        const int min = below(3);
        return {{"type", "array"},
                {"items", one(depth - 1)},
                {"minItems", min},
                {"maxItems", min + below(3)}};
      }
      default:
        return object(depth);
    }
  }

  json::object object(int depth) {
    json::object properties;
    json::array required;
    const char* names[] = {"name", "a", "b c", "\xe2\x82\xac", "q\"uote"};
    for (const char* name : names) {
      if (below(2) == 0) continue;
      properties[name] = one(depth - 1);
      if (below(2) == 0) required.emplace_back(name);
    }
    return {{"type", "object"},
            {"properties", properties},
            {"required", required},
            {"additionalProperties", false}};
  }

  std::mt19937_64 rng_;
};

TEST_F(JsonSchemaGrammarTest, AnyModelWritesValidJsonForAnySchema) {
  int complete = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const json::object schema = SchemaMaker(seed).whole();
    const json::object document = document_of(schema);
    const auto grammar = json_schema_grammar(json::serialize(schema));
    ASSERT_TRUE(grammar.ok()) << json::serialize(schema) << ": " << grammar.status().to_string();
    const MadeAnswer answer = make_answer(**grammar, vocabulary_, seed, 400);
    ASSERT_FALSE(answer.stuck) << json::serialize(schema) << " after " << answer.text;
    if (!answer.complete) continue;
    ++complete;
    boost::system::error_code ec;
    json::parse_options deep;
    deep.max_depth = 1000;  // recursion goes as deep as the model makes it
    const json::value value = json::parse(answer.text, ec, {}, deep);
    ASSERT_FALSE(ec) << answer.text;
    const auto problems = check_schema(value, document.at("self"), document, Unlisted::kFine);
    EXPECT_TRUE(problems.empty()) << json::serialize(schema) << " gave " << answer.text << ": "
                                  << problems.front();
  }
  EXPECT_GT(complete, 200) << "the test should see whole answers";
}

TEST_F(JsonSchemaGrammarTest, AnAnswerEndsWithinItsRoomWheneverOneCan) {
  int ended_early = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const std::string schema = json::serialize(SchemaMaker(seed).whole());
    const auto grammar = json_schema_grammar(schema);
    ASSERT_TRUE(grammar.ok());
    const std::int64_t fewest = ShortestEnd(**grammar, vocabulary_.trie()).of((*grammar)->root());
    for (const std::int64_t room : {fewest, fewest + 3, fewest + 40}) {
      const MadeAnswer answer = make_answer(**grammar, vocabulary_, seed, static_cast<int>(room),
                                            Room::kMinded);
      EXPECT_FALSE(answer.stuck) << schema << " after " << answer.text;
      EXPECT_TRUE(answer.complete) << schema << " with " << room << " tokens gave " << answer.text;
      EXPECT_TRUE(accepts(**grammar, vocabulary_, answer.text)) << answer.text;
      ended_early += answer.narrowed;
    }
  }
  EXPECT_GT(ended_early, 30) << "the test should see answers that had to end";
}

TEST_F(JsonSchemaGrammarTest, AnyModelWritesAnObject) {
  const auto grammar = json_object_grammar();
  int complete = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const MadeAnswer answer = make_answer(*grammar, vocabulary_, seed, 400);
    ASSERT_FALSE(answer.stuck) << answer.text;
    if (!answer.complete) continue;
    ++complete;
    boost::system::error_code ec;
    const json::value value = json::parse(answer.text, ec);
    EXPECT_TRUE(!ec && value.is_object()) << answer.text;
  }
  EXPECT_GT(complete, 30);
}

}  // namespace
}  // namespace quire::testing
