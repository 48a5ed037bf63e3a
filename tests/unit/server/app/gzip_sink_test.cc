// Bodies with Content-Encoding: gzip, over a real socket.
#include "server/app/gzip_sink.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json_parse.h"
#include "tests/support/gzip_text.h"
#include "tests/support/loopback_client.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

using testing::RawResponse;

class GzipSinkTest : public test::StubAppTest {
 protected:
  static std::string code_of(const RawResponse& r) {
    const auto v = parse_json(r.body);
    if (!v.ok() || !v->is_object() || !v->as_object().contains("error"))
      return "no error body: " + r.body;
    return std::string(v->as_object().at("error").as_object().at("code").as_string());
  }
};

TEST_F(GzipSinkTest, GzipBodiesAreExpandedAndOtherEncodingsRefused) {
  Config c;
  c.disk.path = ::testing::TempDir();  // a stream of lines is kept there
  services.set_config(c);
  std::string text;
  ingest.on_documents = [&](const std::vector<DocumentInput>& documents) {
    text = documents.at(0).text.value_or("");
  };
  const auto send = [&](const std::string& body, const std::string& encoding,
                        const std::string& type = "application/json") {
    return call("POST", "/v1/documents", body, {"Content-Encoding: " + encoding}, type);
  };
  EXPECT_EQ(send(testing::gzip_text(R"({"text":"packed"})"), "gzip").status, 200);
  EXPECT_EQ(text, "packed");
  EXPECT_EQ(send(testing::gzip_text("plain"), "x-gzip", "text/plain").status, 200);
  EXPECT_EQ(text, "plain");
  EXPECT_EQ(
      send(testing::gzip_text("{\"text\":\"line\"}\n"), "GZIP", "application/x-ndjson").status,
      200);
  EXPECT_EQ(text, "line");
  EXPECT_EQ(send(R"({"text":"as it is"})", "identity").status, 200);
  for (const char* encoding : {"br", "deflate", "zstd", "gzip, br", "gzip, gzip"}) {
    const auto r = send("plain text", encoding, "text/plain");
    EXPECT_EQ(r.status, 415) << encoding;
    EXPECT_EQ(code_of(r), "unsupported_media_type");
    EXPECT_NE(r.body.find(std::string("'") + encoding + "'"), std::string::npos) << r.body;
    EXPECT_EQ(r.header("accept-encoding"), "gzip");
  }
  for (const auto& broken :
       {std::string("plain text"), testing::gzip_text("plain").substr(0, 15)}) {
    const auto r = send(broken, "gzip", "text/plain");
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(code_of(r), "invalid_value");
    EXPECT_NE(r.body.find("gzip"), std::string::npos) << r.body;
  }
  EXPECT_EQ(text, "as it is");
}

TEST_F(GzipSinkTest, TheLimitOfABodyIsThatOfItsExpansion) {
  Config c;
  c.server.max_body_bytes = 1 << 20;
  services.set_config(c);
  const std::string bomb = testing::gzip_text(std::string(64 << 20, 'a'));
  ASSERT_LT(bomb.size(), 1u << 20);
  const auto r = call("POST", "/v1/documents", bomb, {"Content-Encoding: gzip"}, "text/plain");
  EXPECT_EQ(r.status, 413);
  EXPECT_EQ(code_of(r), "payload_too_large");
  EXPECT_NE(r.body.find("(server.max_body_bytes)"), std::string::npos) << r.body;
}

/// A stream lies on the disk, not in memory, and has no limit of its own.
TEST_F(GzipSinkTest, AStreamThatExpandsALotIsRefused) {
  Config c;
  c.disk.path = ::testing::TempDir();
  c.server.max_body_bytes = 1 << 20;
  services.set_config(c);
  const auto send = [&](const std::string& lines) {
    return call("POST", "/v1/documents", testing::gzip_text(lines), {"Content-Encoding: gzip"},
                "application/x-ndjson");
  };
  std::string lines, distinct;
  while (lines.size() < (32u << 20)) lines += "{\"text\":\"" + std::string(1000, 'a') + "\"}\n";
  ASSERT_LT(testing::gzip_text(lines).size(), lines.size() / 200);
  const auto bomb = send(lines);
  EXPECT_EQ(bomb.status, 413);
  EXPECT_EQ(code_of(bomb), "payload_too_large");
  EXPECT_NE(bomb.body.find("100 times"), std::string::npos) << bomb.body;
  EXPECT_LT(send(lines.substr(0, 1012 * 900)).status, 300) << "a small one may be so alike";
  std::mt19937 rng(1);
  while (distinct.size() < (3u << 20)) {
    std::string text;
    while (text.size() < 2000) text += std::to_string(rng()) + " ";
    distinct += "{\"text\":\"" + text + "\"}\n";
  }
  EXPECT_LT(send(distinct).status, 300) << "texts do not expand so much";
}

}  // namespace
}  // namespace quire
