// Stores over a bucket of a real S3 server in Python. Skipped where there is no `moto_server` in
// PATH (the package moto[server]).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <thread>

#include "tests/support/harness/redis_process.h"
#include "tests/support/harness/remote_replica.h"
#include "tests/support/loopback_client.h"

namespace quire {
namespace {

using test::Replica;

class StoreS3 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    program = test::program_in_path("moto_server");
    if (program.empty()) return;
    ::setenv("AWS_ACCESS_KEY_ID", "test", 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    port = test::free_port();
    const std::string number = std::to_string(port);
    pid = ::fork();
    if (pid == 0) {
      const int null = ::open("/dev/null", O_RDWR);
      ::dup2(null, 1);
      ::dup2(null, 2);
      ::execl(program.c_str(), program.c_str(), "-H", "127.0.0.1", "-p", number.c_str(), nullptr);
      ::_exit(127);
    }
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (request("GET", "/").status == 0 && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  static void TearDownTestSuite() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  void SetUp() override {
    if (program.empty()) GTEST_SKIP() << "there is no moto_server in PATH";
    static int number = 0;
    bucket = "bucket-" + std::to_string(++number);
    ASSERT_EQ(request("PUT", "/" + bucket).status, 200);
    url = "s3://" + bucket + "/some/prefix?endpoint=http://127.0.0.1:" + std::to_string(port);
  }
  static testing::RawResponse request(const std::string& method, const std::string& path,
                                      const std::string& body = {}) {
    testing::LoopbackClient client(port);
    if (!client.connected()) return {};
    // The server wants a signature, but does not check it.
    client.send(method + " " + path +
                " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: " +
                std::to_string(body.size()) +
                "\r\nAuthorization: AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/"
                "aws4_request, SignedHeaders=host, Signature=0\r\n\r\n" +
                body);
    return client.read_response().value_or(testing::RawResponse());
  }
  std::string object(std::uint64_t key, const std::string& part) const {
    return "/" + bucket + "/some/prefix/quire/1/" + remote_name(test::key_of(key), "m-test") + "/" +
           part;
  }

  static inline std::string program;
  static inline std::uint16_t port = 0;
  static inline pid_t pid = -1;
  std::string bucket, url;
};

TEST_F(StoreS3, WhatOneReplicaCommitsAnotherRecalls) {
  Replica a(url), b(url);
  ASSERT_OK(test::put_document(*a.store, "d", {1, 2}));
  EXPECT_EQ(a.counts().written, 2u);
  EXPECT_OK(b.check(1));
  EXPECT_OK(b.check(2));
  EXPECT_EQ(b.counts().hits, 2u);
  EXPECT_EQ(b.check(3).code(), Code::kNotFound);
  EXPECT_EQ(b.counts().misses, 1u);
}

TEST_F(StoreS3, EncryptedValuesComeBackWithTheirKeyAlone) {
  const auto timeout = std::chrono::seconds(5);
  Replica a(url, timeout, test::keys_of('1')), b(url, timeout, test::keys_of('1')),
      c(url, timeout, test::keys_of('2'));
  const test::SegmentShape large{{20, 4, 2}, 100'000};
  ASSERT_OK(test::put_document(*a.store, "d", {1}, large));
  EXPECT_OK(b.check(1, large)) << "each range begins and ends with a value";
  EXPECT_EQ(c.check(1, large).code(), Code::kNotFound);
  EXPECT_OK(b.check(1, large)) << "the other key's service left it alone";
}

TEST_F(StoreS3, ValuesOfSeveralRangesComeWhole) {
  Replica a(url), b(url);
  const test::SegmentShape large{{20, 4, 2}, 700'000};
  ASSERT_OK(test::put_document(*a.store, "d", {1}, large));
  EXPECT_OK(b.check(1, large));
}

TEST_F(StoreS3, ValuesOfSeveralPartsComeWhole) {
  Replica a(url), b(url);
  const test::SegmentShape large{{20, 4, 2}, 500'000};
  ASSERT_OK(test::put_document(*a.store, "d", {1}, large));
  // The server marks an object of parts by their number.
  const std::string list = request("GET", "/" + bucket + "?list-type=2").body;
  EXPECT_NE(list.find("-3"), std::string::npos) << list;
  EXPECT_OK(b.check(1, large));
}

TEST_F(StoreS3, DamageInTheBucketIsAMissThatIsDeletedAndCounted) {
  const std::vector<std::function<void()>> damages{
      [&] {
        std::string values = request("GET", object(1, "values")).body;
        values[values.size() / 2] ^= 1;
        ASSERT_EQ(request("PUT", object(1, "values"), values).status, 200);
      },
      [&] {
        const std::string values = request("GET", object(1, "values")).body;
        ASSERT_EQ(request("PUT", object(1, "values"), values.substr(0, 700)).status, 200);
      },
      [&] { ASSERT_EQ(request("DELETE", object(1, "values")).status, 204); },
      [&] { ASSERT_EQ(request("PUT", object(1, "record"), "no record").status, 200); },
      [&] {
        const std::string other = request("GET", object(2, "values")).body;
        ASSERT_EQ(request("PUT", object(1, "values"), other).status, 200);
      },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    Replica a(url), b(url);
    ASSERT_OK(test::put_document(*a.store, "d", {1, 2}));
    damages[i]();
    EXPECT_EQ(b.check(1).code(), Code::kCorruption);
    EXPECT_EQ(b.counts().bad, 1u);
    EXPECT_EQ(request("GET", object(1, "record")).status, 404);
    EXPECT_EQ(b.check(1).code(), Code::kNotFound);
    EXPECT_OK(b.check(2));
  }
}

TEST_F(StoreS3, ABucketThatIsNotThereCostsNoCommit) {
  Replica a("s3://nowhere?endpoint=http://127.0.0.1:" + std::to_string(port));
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  EXPECT_EQ(a.counts().write_failures, 1u);
  EXPECT_EQ(a.check(2).code(), Code::kNotFound);
}

TEST_F(StoreS3, RedisIsReadFirstAndFilledFromTheBucket) {
  if (test::redis_program().empty()) GTEST_SKIP() << "there is no redis-server in PATH";
  test::RedisProcess redis;
  Replica a(url), b(url + " " + redis.url());
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  {
    const auto segment = b.recall(test::recall_of(1));
    ASSERT_OK(segment);
    ASSERT_OK(b.store->commit_document(test::manifest_of("d", {1}), test::text_of("d"),
                                       std::span(&*segment, 1)));
  }
  EXPECT_EQ(b.counts(0).kind, "redis");
  EXPECT_EQ(b.counts(0).misses, 1u);
  EXPECT_EQ(b.counts(1).hits, 1u);
  EXPECT_EQ(b.counts(0).written, 1u);
  EXPECT_EQ(b.counts(1).written, 0u);
  Replica c(redis.url());
  EXPECT_OK(c.check(1));
}

}  // namespace
}  // namespace quire
