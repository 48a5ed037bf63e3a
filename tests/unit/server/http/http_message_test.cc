#include "server/http/http_message.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(HttpMessage, TargetIsSplitAndDecoded) {
  HttpRequest r;
  ASSERT_TRUE(parse_target("/v1/documents/a%2Fb/content?limit=5&metadata.x=a+b%21&flag", r).ok());
  EXPECT_EQ(r.path, (std::vector<std::string>{"v1", "documents", "a/b", "content"}));
  ASSERT_NE(r.param("limit"), nullptr);
  EXPECT_EQ(*r.param("limit"), "5");
  EXPECT_EQ(*r.param("metadata.x"), "a b!");
  EXPECT_EQ(*r.param("flag"), "");
  EXPECT_EQ(r.param("none"), nullptr);
}

TEST(HttpMessage, TrailingSlashAndAbsoluteFormAreTheSamePath) {
  HttpRequest a, b;
  ASSERT_TRUE(parse_target("/v1/documents/", a).ok());
  ASSERT_TRUE(parse_target("http://example.org:80/v1/documents", b).ok());
  EXPECT_EQ(a.path, b.path);
}

TEST(HttpMessage, BadTargetsAreRefused) {
  HttpRequest r;
  for (const auto* target : {"", "documents", "/a%2", "/a%zz", "/a%00b", "/a%ff", "/x?y=%c0%80"})
    EXPECT_FALSE(parse_target(target, r).ok()) << target;
}

TEST(HttpMessage, PercentEncodingComesBack) {
  const std::string text = "a b/ü?&=%~";
  EXPECT_EQ(*percent_decode(percent_encode(text), PlusSign::kLiteral), text);
}

TEST(HttpMessage, InvalidUtf8IsFoundWhereItBegins) {
  EXPECT_FALSE(invalid_utf8_at("plain ü € 😀"));
  EXPECT_EQ(invalid_utf8_at("ab\xff"), 2u);
  EXPECT_EQ(invalid_utf8_at("\xc0\x80"), 0u);          // overlong
  EXPECT_EQ(invalid_utf8_at("a\xed\xa0\x80"), 1u);     // surrogate
  EXPECT_EQ(invalid_utf8_at("\xf4\x90\x80\x80"), 0u);  // past U+10FFFF
  EXPECT_EQ(invalid_utf8_at("x\xe2\x82"), 1u);         // cut short
}

TEST(HttpMessage, HeadersCompareWithoutCase) {
  Headers h;
  h.add("X-One", "1");
  h.add("x-one", "2");
  EXPECT_EQ(h.count("X-ONE"), 2u);
  EXPECT_EQ(h.get("x-ONE"), "1");
  h.set("X-one", "3");
  EXPECT_EQ(h.count("x-one"), 1u);
}

TEST(HttpMessage, HeaderParametersAreRead) {
  EXPECT_EQ(header_parameter("multipart/form-data; boundary=\"a;b\\\"c\"; x=y", "boundary"),
            "a;b\"c");
  EXPECT_EQ(header_parameter("multipart/form-data; a=1; Boundary=xyz", "boundary"), "xyz");
  EXPECT_EQ(header_parameter("text/plain", "charset"), std::nullopt);
}

}  // namespace
}  // namespace quire
