#include "server/http/request_parser.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

struct Parsed {
  std::optional<ProtocolError> error;
  bool head = false, done = false;
  HttpRequest request;
  std::string body, rest;
};

/// Feeds `text` in pieces of `step` bytes.
Parsed parse(const std::string& text, std::size_t step, std::uint32_t header_limit = 16 << 10) {
  RequestParser parser(ParserLimits{header_limit});
  Parsed out;
  std::string buffer;
  std::size_t at = 0;
  while (!parser.error() && !parser.done()) {
    const std::size_t used = parser.feed(buffer, out.body);
    buffer.erase(0, used);
    if (parser.error() || parser.done()) break;
    if (used > 0 && !buffer.empty()) continue;
    if (at == text.size()) break;
    buffer += text.substr(at, step);
    at += std::min(step, text.size() - at);
  }
  out.error = parser.error();
  out.head = parser.head_done();
  out.done = parser.done();
  out.request = parser.head();
  out.rest = buffer + text.substr(at);
  return out;
}

class RequestParserSteps : public ::testing::TestWithParam<std::size_t> {};

TEST_P(RequestParserSteps, BodyByContentLength) {
  const auto p = parse(
      "POST /v1/query?a=b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n",
      GetParam());
  ASSERT_FALSE(p.error) << p.error->message;
  EXPECT_TRUE(p.done);
  EXPECT_EQ(p.request.method, "POST");
  EXPECT_EQ(p.request.path.size(), 2u);
  EXPECT_EQ(p.body, "hello");
  EXPECT_EQ(p.rest, "GET / HTTP/1.1\r\n");
}

TEST_P(RequestParserSteps, ChunkedBody) {
  const auto p = parse(
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\nrest",
      GetParam());
  ASSERT_FALSE(p.error) << p.error->message;
  EXPECT_TRUE(p.done);
  EXPECT_EQ(p.body, "abc0123456789");
  EXPECT_EQ(p.rest, "rest");
}

TEST_P(RequestParserSteps, RequestsWithoutBodyEndAtTheirHead) {
  const auto p = parse("GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET", GetParam());
  ASSERT_FALSE(p.error);
  EXPECT_TRUE(p.done);
  EXPECT_TRUE(p.request.keep_alive);
  EXPECT_EQ(p.rest, "GET");
}

TEST_P(RequestParserSteps, OneEmptyLineMayStandBeforeARequest) {
  const auto p = parse("\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET", GetParam());
  ASSERT_FALSE(p.error) << p.error->message;
  EXPECT_TRUE(p.done);
  EXPECT_EQ(p.request.target, "/livez");
  EXPECT_EQ(p.rest, "GET");
  EXPECT_TRUE(parse("\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", GetParam()).error);
}

INSTANTIATE_TEST_SUITE_P(Steps, RequestParserSteps, ::testing::Values(1, 2, 7, 4096));

TEST(RequestParser, WhatTwoReadersCouldUnderstandDifferentlyIsRefused) {
  using namespace std::string_literals;
  const std::string start = "POST / HTTP/1.1\r\nHost: x\r\n";
  const std::pair<std::string, int> cases[] = {
      {start + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {start + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400},
      {start + "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
      {start + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
      {start + "Content-Length: 5, 5\r\n\r\n", 400},
      {start + "Content-Length: -1\r\n\r\n", 400},
      {start + "Content-Length: +5\r\n\r\n", 400},
      {start + "Content-Length: 0x5\r\n\r\n", 400},
      {start + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {start + "Content-Length : 5\r\n\r\n", 400},
      {start + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {start + "Transfer-Encoding: xchunked\r\n\r\n", 501},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417},
      {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"s, 400},
      {"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400},
      {start + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", 400},
      {start + "Transfer-Encoding: chunked, chunked\r\n\r\n", 501},
      {start + "Transfer-Encoding : chunked\r\n\r\n", 400},
      {start + "Content-Length:\r\n\r\n", 400},
      {start + "Content-Length: 5 5\r\n\r\n", 400},
      {start + "X: a\r\n folded: b\r\n\r\n", 400},
      {start + "X: a\r\n\tContent-Length: 5\r\n\r\n", 400},
      {start + " Content-Length: 5\r\n\r\n", 400},
      {start + ": no name\r\n\r\n", 400},
      {start + "X Y: b\r\n\r\n", 400},
      {start + "X: a\rContent-Length: 5\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: x\n\n", 400},
      {"GET / HTTP/1.1\r\nHost: x\nContent-Length: 5\r\n\r\n", 400},
      {"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
  };
  for (const auto& [text, status] : cases) {
    const auto p = parse(text, 4096);
    ASSERT_TRUE(p.error) << text;
    EXPECT_EQ(p.error->http_status, status) << text << p.error->message;
  }
}

TEST(RequestParser, AClientOfHttp10ExpectsNothing) {
  for (const auto& [version, expects] : {std::pair("1.0", false), std::pair("1.1", true)}) {
    RequestParser parser;
    std::string body;
    (void)parser.feed(std::string("POST / HTTP/") + version +
                          "\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
                      body);
    ASSERT_TRUE(parser.head_done()) << version;
    EXPECT_EQ(parser.expects_continue(), expects) << version;
  }
}

TEST(RequestParser, LargeHeadersAre431) {
  const auto p = parse("GET / HTTP/1.1\r\nHost: x\r\nX-Big: " + std::string(5000, 'a') + "\r\n\r\n",
                       512, 4096);
  ASSERT_TRUE(p.error);
  EXPECT_EQ(p.error->http_status, 431);
}

TEST(RequestParser, BrokenChunksAreRefused) {
  for (const auto* body :
       {"zz\r\nabc\r\n0\r\n\r\n", "3\r\nabcX0\r\n\r\n", "-1\r\n\r\n", "FFFFFFFFFFFFFFFFF\r\n",
        "0\r\nabc\r\n0.JT: x\r\n\r\n", "3 x\r\nabc\r\n0\r\n\r\n", "3\nabc\n0\n\n",
        "0\r\n folded: x\r\n\r\n", "\r\n", "8000000000000000\r\n", "0x3\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n",
        "3;a\rb\r\nabc\r\n0\r\n\r\n"}) {
    const auto p = parse(
        std::string("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n") + body,
        4096);
    EXPECT_TRUE(p.error) << body;
  }
}

TEST(RequestParser, ChunkExtensionsAndTrailersHaveABound) {
  const std::string start = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_TRUE(parse(start + "3;" + std::string(1 << 20, 'x'), 4096).error);
  std::string trailers;
  for (int i = 0; i < 20000; ++i) trailers += "X: y\r\n";
  EXPECT_TRUE(parse(start + "0\r\n" + trailers + "\r\n", 4096).error);
}

}  // namespace
}  // namespace quire
