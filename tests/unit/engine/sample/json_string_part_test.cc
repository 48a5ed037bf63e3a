#include "engine/sample/json_string_part.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <regex>

#include "tests/unit/engine/sample/answer_maker.h"

namespace quire::testing {
namespace {

class JsonStringPartTest : public ::testing::Test {
 protected:
  Result<std::shared_ptr<const Grammar>> made(const JsonStrings& strings) {
    GrammarBuilder builder;
    QUIRE_ASSIGN_OR_RETURN(const auto part, json_string_part(builder, strings));
    return builder.finish(part);
  }
  /// Says which texts, written as JSON, the strings are to have and which not.
  void expect(const JsonStrings& strings, const std::vector<std::string>& good,
              const std::vector<std::string>& bad) {
    const auto grammar = made(strings);
    ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
    const auto written = [](const std::string& text) {
      return boost::json::serialize(boost::json::string(text));
    };
    for (const std::string& yes : good)
      EXPECT_TRUE(accepts(**grammar, vocabulary_, written(yes))) << yes;
    for (const std::string& no : bad)
      EXPECT_FALSE(accepts(**grammar, vocabulary_, written(no))) << no;
  }
  std::string fault(const JsonStrings& strings, Code code) {
    const Status status = made(strings).status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    return status.field();
  }
  TestVocabulary vocabulary_;
};

TEST_F(JsonStringPartTest, PatternsHaveALength) {
  expect({.pattern = "^[a-c]*$", .min = 2, .max = 3}, {"ab", "abc", "cc"}, {"", "a", "abca", "ad"});
  expect({.pattern = "^[A-Z]{2}-[0-9]+$", .max = 6}, {"AB-1", "AB-123"}, {"AB-", "AB-1234", "A-1"});
  expect({.pattern = "b", .min = 3}, {"bbb", "aab", "xbyz", "éb\n"}, {"b", "ab", "aaa"});
  expect({.pattern = "^[é€😀]+$", .min = 2, .max = 2}, {"é😀", "€€"}, {"é", "é€😀"});
  expect({.pattern = "^[\"\\\\]+$", .min = 2, .max = 2}, {"\"\\", "\\\\"}, {"\"", "\"\"\""});
  expect({.pattern = "^(?:ab)+$", .min = 3, .max = 1000},
         {"abab", std::string(2, 'a').replace(0, 2, "abababab")}, {"ab", "aba"});
  expect({.pattern = "^x$", .min = 1, .max = 5}, {"x"}, {"", "xx"});
  std::string label(63, 'a');
  expect({.pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", .min = 1, .max = 63},
         {"a", "a-b", label, "0--9"}, {"", "-a", "a-", label + "a"});
}

TEST_F(JsonStringPartTest, PatternsHaveAFormat) {
  expect({.format = "date", .pattern = "^2024-"}, {"2024-02-28"}, {"2023-02-28", "2024-02-30"});
  expect({.format = "date-time", .pattern = "Z$"}, {"2024-05-06T07:08:09Z"},
         {"2024-05-06T07:08:09+02:00"});
  // What zod writes for an address and for one of a domain.
  const std::string zod =
      R"(^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+)"
      R"([A-Za-z]{2,}$)";
  expect({.format = "email", .pattern = zod}, {"a.b@example.org"},
         {".a@example.org", "a..b@example.org", "a@example", "a@b@example.org"});
  expect({.format = "email", .pattern = "@example\\.org$", .max = 16}, {"ab@example.org"},
         {"ab@example.com", "abcdef@example.org"});
  expect({.format = "uuid",
          .pattern = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-"
                     "[0-9a-fA-F]{12}$"},
         {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567-e89b-02d3-a456-426614174000"});
}

TEST_F(JsonStringPartTest, FormatsHaveALength) {
  // What pydantic writes for HttpUrl and EmailStr.
  const JsonStrings url{.format = "uri", .min = 1, .max = 2083};
  expect(url, {"https://example.org", "http://a.example.org:80/b/c"},
         {"", "ftp://example.org", "example.org", "https://"});
  expect({.format = "uri", .max = 20}, {"https://example.org/"}, {"https://example.org/a"});
  expect({.format = "date", .min = 10, .max = 10}, {"2024-02-28"}, {"2024-2-28"});
  expect({.format = "password", .min = 2, .max = 3}, {"ab", "é\"\n"}, {"a", "abcd"});
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const MadeAnswer answer = make_answer(**made({.format = "uri", .max = 20}), vocabulary_, seed,
                                          100);
    EXPECT_FALSE(answer.stuck) << answer.text;
    if (answer.complete) {
      EXPECT_LE(answer.text.size(), 22u) << answer.text;
    }
  }
}

TEST_F(JsonStringPartTest, EachFormatHasItsTexts) {
  const std::string v4 = "123e4567-e89b-42d3-a456-426614174000";
  expect({.format = "uuid4"}, {v4}, {"123e4567-e89b-12d3-a456-426614174000"});
  expect({.format = "uuid"}, {v4, "00000000-0000-0000-0000-000000000000"},
         {"123e4567e89b42d3a456426614174000", v4 + "0"});
  expect({.format = "date"}, {"2024-02-28", "1999-12-31", "2000-11-30", "2024-10-09"},
         {"2024-02-29", "2024-02-30", "2024-13-01", "2024-00-01", "2024-04-31", "0000-01-01",
          "2024-01-00", "2024-1-1", "2024-06-40"});
  expect({.format = "time"}, {"00:00:00Z", "23:59:59.123456+02:00", "19:00:00-23:59"},
         {"24:00:00Z", "12:60:00Z", "12:00:00", "12:00:00.Z", "12:00:00+24:00"});
  expect({.format = "date-time"}, {"2024-05-06T07:08:09Z"}, {"2024-05-06 07:08:09Z", "2024-05-06"});
  expect({.format = "duration"}, {"P3W", "P1DT2H", "PT5M", "PT1H30M", "PT9S"},
         {"P", "PT", "1D", "P1H"});
  expect({.format = "ipv4"}, {"0.0.0.0", "255.249.199.99"}, {"256.0.0.0", "1.2.3", "01.2.3.4"});
  expect({.format = "ipv6"}, {"1:2:3:4:5:6:7:abcd"}, {"::1", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:g"});
  expect({.format = "ipvanyaddress"}, {"1.2.3.4", "1:2:3:4:5:6:7:8"}, {"1.2.3", ""});
  expect({.format = "email"}, {"a.b+c@example.org"},
         {"a", "a@b", "@example.org", "a@@example.org"});
  expect({.format = "hostname"}, {"localhost", "a-b.example.org"}, {"-a", "a-", "a..b", ""});
  expect({.format = "base64"}, {"", "TQ==", "TWE=", "TWFu", "TWFuTQ=="},
         {"T", "TQ=", "TWFuT", "T==="});
  EXPECT_EQ(fault({.format = "uuid9"}, Code::kUnimplemented), "format");
  EXPECT_EQ(fault({.format = "regex"}, Code::kUnimplemented), "format");
}

TEST_F(JsonStringPartTest, WhatLeavesNothingOrTakesTooMuchIsNamed) {
  EXPECT_EQ(fault({.format = "date", .max = 3}, Code::kInvalidArgument), "maxLength");
  EXPECT_EQ(fault({.pattern = "^a{2}$", .min = 3}, Code::kInvalidArgument), "minLength");
  EXPECT_EQ(fault({.format = "date", .pattern = "x"}, Code::kInvalidArgument), "pattern");
  EXPECT_EQ(fault({.pattern = "^(?!a)a$"}, Code::kInvalidArgument), "pattern");
  EXPECT_EQ(fault({.pattern = "^(a|b)*a(a|b){30}$", .min = 1, .max = 99}, Code::kUnimplemented),
            "pattern");
  EXPECT_EQ(fault({.pattern = "a", .max = 1 << 20}, Code::kUnimplemented), "maxLength");
  EXPECT_EQ(fault({.pattern = "(", .max = 3}, Code::kInvalidArgument), "pattern");
  EXPECT_EQ(fault({.pattern = "\\b", .max = 3}, Code::kUnimplemented), "pattern");
}

TEST_F(JsonStringPartTest, EachOfManyAlternativesCanBeWritten) {
  std::string pattern = "^(?:";
  for (int i = 0; i < 400; ++i) pattern += (i > 0 ? "|k" : "k") + std::to_string(i) + "[xy]";
  const auto grammar = made({.pattern = pattern + ")$"});
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  for (int i = 0; i < 400; ++i)
    ASSERT_TRUE(accepts(**grammar, vocabulary_, "\"k" + std::to_string(i) + "y\"")) << i;
  EXPECT_FALSE(accepts(**grammar, vocabulary_, "\"k400x\""));
}

}  // namespace
}  // namespace quire::testing
