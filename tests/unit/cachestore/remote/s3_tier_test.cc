// Requests to a bucket carry a signature that the server can verify: it is computed here anew.
#include "cachestore/remote/s3_tier.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "tests/support/status_matchers.h"

namespace quire {
namespace {

constexpr std::string_view kFine = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n";

/// Keeps heads and bodies of requests, and answers each with 200 and an empty body, or as it is
/// told.
class FakeBucket {
 public:
  /// Returns a reply without "Connection: close" and the empty line that end its head, or with its
  /// body behind them.
  using Answer = std::function<std::string(const std::string& head)>;
  explicit FakeBucket(Answer answer = [](const std::string&) { return std::string(kFine); })
      : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const bool listens = ::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                         ::listen(listener_, 4) == 0 &&
                         ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) ==
                             0;
    QUIRE_CHECK(listens, "no port for a fake bucket");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int fd; (fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) serve(fd);
    });
  }
  ~FakeBucket() {
    end();
    ::close(listener_);
  }
  /// Ends the server, after which `heads` does not change.
  void end() {
    if (!thread_.joinable()) return;
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
  }
  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }

  std::vector<std::string> heads, bodies;  // the server's thread writes them

 private:
  void serve(int fd) {
    std::string head;
    char c;
    while (head.find("\r\n\r\n") == std::string::npos && ::recv(fd, &c, 1, 0) == 1) head += c;
    heads.push_back(head);
    if (head.find("Expect: 100-continue") != std::string::npos) {
      constexpr std::string_view kGoOn = "HTTP/1.1 100 Continue\r\n\r\n";
      (void)::send(fd, kGoOn.data(), kGoOn.size(), MSG_NOSIGNAL);
    }
    std::size_t body = 0;
    if (const auto at = head.find("Content-Length: "); at != std::string::npos)
      body = std::strtoull(head.c_str() + at + 16, nullptr, 10);
    std::string& text = bodies.emplace_back();
    while (body > 0 && ::recv(fd, &c, 1, 0) == 1) {
      text += c;
      --body;
    }
    std::string reply = answer_(head);
    if (reply.find("\r\n\r\n") == std::string::npos) reply += "Connection: close\r\n\r\n";
    (void)::send(fd, reply.data(), reply.size(), MSG_NOSIGNAL);
    ::close(fd);
  }
  const Answer answer_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

std::string raw(const Digest& d) {
  return {reinterpret_cast<const char*>(d.bytes.data()), d.bytes.size()};
}
std::string hmac(std::string key, const std::string& text) {
  key.resize(64, '\0');
  std::string inner = key, outer = key;
  for (char& c : inner) c = static_cast<char>(c ^ 0x36);
  for (char& c : outer) c = static_cast<char>(c ^ 0x5c);
  return raw(sha256(outer + raw(sha256(inner + text))));
}
std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

/// Returns the signature that AWS documents for this request ("Signature Version 4").
std::string signature_of(const std::string& head, const std::string& secret,
                         const std::string& signed_headers) {
  std::istringstream lines(head);
  std::string method, path, line;
  lines >> method >> path;
  std::getline(lines, line);
  std::map<std::string, std::string> headers;
  while (std::getline(lines, line) && line.size() > 1) {
    const std::size_t colon = line.find(": ");
    std::string name = line.substr(0, colon);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    headers[name] = line.substr(colon + 2, line.size() - colon - 3);
  }
  const std::size_t mark = std::min(path.find('?'), path.size());
  std::string request = method + "\n" + path.substr(0, mark) + "\n" +
                        (mark < path.size() ? path.substr(mark + 1) : "") + "\n";
  std::istringstream names(signed_headers);
  for (std::string name; std::getline(names, name, ';');)
    request += name + ":" + headers[name] + "\n";
  request += "\n" + signed_headers + "\n" + headers["x-amz-content-sha256"];
  const std::string date = headers["x-amz-date"], day = date.substr(0, 8);
  const std::string text = "AWS4-HMAC-SHA256\n" + date + "\n" + day +
                           "/eu-west-1/s3/aws4_request\n" + sha256(request).hex();
  return hex(
      hmac(hmac(hmac(hmac(hmac("AWS4" + secret, day), "eu-west-1"), "s3"), "aws4_request"), text));
}

std::string between(const std::string& text, const std::string& from, char to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return {};
  return text.substr(at + from.size(), text.find(to, at + from.size()) - at - from.size());
}

TEST(S3Tier, EveryKindOfRequestIsSignedAsTheServerVerifies) {
  ::setenv("AWS_ACCESS_KEY_ID", "AKID", 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG", 1);
  ::setenv("AWS_SESSION_TOKEN", "a/token+of=a/session", 1);
  FakeBucket server;
  auto tier = make_s3_tier({server.endpoint(), "bucket", "some/prefix", "eu-west-1"});
  ::unsetenv("AWS_SESSION_TOKEN");
  ASSERT_OK(tier);
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  EXPECT_OK((*tier)->get_record("m-1.abc", deadline));
  EXPECT_OK((*tier)->put(
      "m-1.abc", 1, 5, deadline, [](std::uint64_t) { return std::string("bytes"); },
      [] { return std::string("record"); }));
  EXPECT_OK((*tier)->remove("m-1.abc", deadline));
  tier->reset();
  server.end();
  ASSERT_EQ(server.heads.size(), 6u);
  for (const std::string& head : server.heads) {
    SCOPED_TRACE(head);
    const std::string names = between(head, "SignedHeaders=", ',');
    EXPECT_EQ(names, "host;x-amz-content-sha256;x-amz-date;x-amz-security-token");
    EXPECT_NE(head.find("x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"), std::string::npos);
    EXPECT_EQ(between(head, "Signature=", '\r'),
              signature_of(head, "wJalrXUtnFEMI/K7MDENG", names));
    EXPECT_NE(head.find(" /bucket/some/prefix/quire/1/m-1.abc/"), std::string::npos);
  }
}

/// A bucket that takes uploads in parts, as S3 answers them.
class PartsBucket {
 public:
  /// The first `busy` parts are answered with 503, and so is every one with `end_busy` 2; with 1
  /// the end of the upload fails behind a status of 200.
  explicit PartsBucket(int busy = 0, int end_busy = 0) : busy_(busy), end_busy_(end_busy) {}

  FakeBucket server{[this](const std::string& head) {
    if (head.starts_with("POST") && head.find("?uploads=") != std::string::npos)
      return with_body("<R><Bucket>b</Bucket><UploadId>an/id+1</UploadId></R>");
    if (head.starts_with("POST"))
      return with_body(end_busy_ == 1 ? "<Error><Code>InternalError</Code></Error>" : "<R></R>");
    if (head.find("partNumber=") == std::string::npos) return std::string(kFine);
    if (busy_ > 0 || end_busy_ == 2) {
      --busy_;
      return std::string("HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n");
    }
    return std::string(kFine) + "ETag: \"part" + between(head, "partNumber=", '&') + "\"\r\n";
  }};

  /// Writes three values of ten bytes in parts of eight, and ends the server.
  Status put() {
    ::setenv("AWS_ACCESS_KEY_ID", "AKID", 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    auto tier = make_s3_tier({server.endpoint(), "bucket", "", "eu-west-1"}, 8);
    QUIRE_RETURN_IF_ERROR(tier.status());
    const Status s = (*tier)->put(
        "m-1.abc", 3, 30, Clock::now() + std::chrono::minutes(1),
        [](std::uint64_t i) { return std::string(10, static_cast<char>('a' + i)); },
        [] { return std::string("record"); });
    tier->reset();
    server.end();
    return s;
  }
  /// Returns the places of the requests whose heads begin so and hold `what`.
  std::vector<std::size_t> find(const std::string& method, const std::string& what) const {
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < server.heads.size(); ++i)
      if (server.heads[i].starts_with(method) && server.heads[i].find(what) != std::string::npos)
        out.push_back(i);
    return out;
  }

 private:
  static std::string with_body(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\nConnection: close\r\n\r\n" + body;
  }
  int busy_, end_busy_;
};

TEST(S3Tier, ManyValuesAreUploadedInSignedParts) {
  PartsBucket bucket;
  ASSERT_OK(bucket.put());
  std::map<std::string, std::string> parts;
  for (const std::size_t i : bucket.find("PUT", "?partNumber=")) {
    parts[between(bucket.server.heads[i], "partNumber=", '&')] = bucket.server.bodies[i];
    EXPECT_NE(bucket.server.heads[i].find("&uploadId=an%2Fid%2B1 "), std::string::npos);
  }
  const std::map<std::string, std::string> wanted{
      {"1", "aaaaaaaa"}, {"2", "aabbbbbb"}, {"3", "bbbbcccc"}, {"4", "cccccc"}};
  EXPECT_EQ(parts, wanted);
  const auto ends = bucket.find("POST", "/m-1.abc/values?uploadId=");
  ASSERT_EQ(ends.size(), 1u);
  const std::string& list = bucket.server.bodies[ends.front()];
  EXPECT_TRUE(
      list.starts_with("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber>"
                       "<ETag>&quot;part1&quot;</ETag></Part><Part><PartNumber>2"))
      << list;
  const auto records = bucket.find("PUT", "/m-1.abc/record");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_GT(records.front(), ends.front()) << "a segment with a record is whole";
  for (const std::string& head : bucket.server.heads) {
    SCOPED_TRACE(head);
    EXPECT_EQ(between(head, "Signature=", '\r'),
              signature_of(head, "secret", between(head, "SignedHeaders=", ',')));
  }
}

TEST(S3Tier, PartsThatFindTheBucketBusyAreSentAgain) {
  PartsBucket bucket(2);
  EXPECT_OK(bucket.put());
  EXPECT_EQ(bucket.find("PUT", "?partNumber=").size(), 6u);
}

TEST(S3Tier, AnUploadThatFailsIsGivenUpAndLeavesNoRecord) {
  for (const int how : {1, 2}) {
    PartsBucket bucket(0, how);
    EXPECT_EQ(bucket.put().code(), Code::kUnavailable);
    EXPECT_EQ(bucket.find("DELETE", "/values?uploadId=an%2Fid%2B1 ").size(), 1u);
    EXPECT_TRUE(bucket.find("PUT", "/record").empty());
  }
}

TEST(S3Tier, WithoutCredentialsItNamesTheVariables) {
  ::unsetenv("AWS_ACCESS_KEY_ID");
  ::unsetenv("AWS_SECRET_ACCESS_KEY");
  const auto tier = make_s3_tier({"http://127.0.0.1:1", "bucket", "", "us-east-1"});
  EXPECT_EQ(tier.status().field(), "remote.url");
  EXPECT_NE(tier.status().message().find("AWS_ACCESS_KEY_ID"), std::string::npos);
}

}  // namespace
}  // namespace quire
