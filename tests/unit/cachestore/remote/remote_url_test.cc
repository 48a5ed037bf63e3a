// The address of the shared tiers: what it may name, and what a wrong one is told.
#include "cachestore/remote/remote_url.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace quire {
namespace {

TEST(RemoteUrl, NothingIsNoTier) {
  for (const auto* url : {"", "  "}) {
    const auto parsed = parse_remote_url(url);
    ASSERT_OK(parsed);
    EXPECT_TRUE(parsed->redis.empty() && parsed->s3.empty());
  }
}

TEST(RemoteUrl, NamesHostsPortsAndTheUser) {
  const auto parsed = parse_remote_url("redis://us%40er:p%3aw@a:7000,[::1]:7001,c");
  ASSERT_OK(parsed);
  ASSERT_EQ(parsed->redis.size(), 1u);
  const RedisServer& server = parsed->redis[0];
  ASSERT_EQ(server.hosts.size(), 3u);
  EXPECT_EQ(server.hosts[0], (RemoteHost{"a", 7000}));
  EXPECT_EQ(server.hosts[1], (RemoteHost{"::1", 7001}));
  EXPECT_EQ(server.hosts[2], (RemoteHost{"c", 6379}));
  EXPECT_EQ(server.user, "us@er");
  EXPECT_EQ(server.password, "p:w");
  EXPECT_FALSE(server.tls);
}

TEST(RemoteUrl, TlsTakesFiles) {
  const auto parsed = parse_remote_url("rediss://:secret@h?ca=/a.pem&cert=/b.pem&key=/c.pem");
  ASSERT_OK(parsed);
  const RedisServer& server = parsed->redis.at(0);
  EXPECT_TRUE(server.tls);
  EXPECT_TRUE(server.user.empty());
  EXPECT_EQ(server.ca_file + server.certificate_file + server.key_file, "/a.pem/b.pem/c.pem");
}

TEST(RemoteUrl, SentinelsNameTheMaster) {
  const auto parsed = parse_remote_url(
      "redis+sentinel://u:p@a,b:7000/my-master?sentinel_user=s&sentinel_password=q%20r");
  ASSERT_OK(parsed);
  const RedisServer& server = parsed->redis.at(0);
  ASSERT_EQ(server.hosts.size(), 2u);
  EXPECT_EQ(server.hosts[0], (RemoteHost{"a", 26379}));
  EXPECT_EQ(server.hosts[1], (RemoteHost{"b", 7000}));
  EXPECT_EQ(server.user + server.password, "up");
  EXPECT_EQ(server.sentinel_master, "my-master");
  EXPECT_EQ(server.sentinel_user, "s");
  EXPECT_EQ(server.sentinel_password, "q r");
  EXPECT_FALSE(server.tls);
  const auto tls = parse_remote_url("rediss+sentinel://a/m?ca=/a.pem");
  ASSERT_OK(tls);
  EXPECT_TRUE(tls->redis.at(0).tls);
}

TEST(RemoteUrl, BothKindsStandSideBySide) {
  const auto parsed = parse_remote_url(
      "s3://bucket/a/b/?endpoint=http://127.0.0.1:9000/&region=eu-west-1 redis://h");
  ASSERT_OK(parsed);
  ASSERT_EQ(parsed->redis.size(), 1u);
  ASSERT_EQ(parsed->s3.size(), 1u);
  EXPECT_EQ(parsed->s3[0].endpoint, "http://127.0.0.1:9000");
  EXPECT_EQ(parsed->s3[0].bucket, "bucket");
  EXPECT_EQ(parsed->s3[0].prefix, "a/b");
  EXPECT_EQ(parsed->s3[0].region, "eu-west-1");
  const auto plain = parse_remote_url("s3://bucket");
  ASSERT_OK(plain);
  EXPECT_EQ(plain->s3[0].endpoint, "https://s3.us-east-1.amazonaws.com");
}

TEST(RemoteUrl, AWrongOneNamesTheSettingAndNeverThePassword) {
  for (const auto* bad : {"redis:/x",
                          "http://x",
                          "redis://",
                          "redis://,a",
                          "redis://a:0",
                          "redis://a:70000",
                          "redis://a:x",
                          "redis://a/1",
                          "redis://a/1/",
                          "redis://user@a",
                          "redis://user:@a",
                          "redis://[::1",
                          "redis://[::1]x",
                          "redis://u:hunter2%zz@a",
                          "redis://u:hunter2@a:bad",
                          "redis://a?ca=x",
                          "rediss://a?cert=x",
                          "rediss://a?color=red",
                          "redis://a redis://b",
                          "redis://a redis+sentinel://b/m",
                          "redis://a?sentinel_password=x",
                          "redis+sentinel://a",
                          "redis+sentinel://a/",
                          "redis+sentinel://a/m/n",
                          "redis+sentinel:///m",
                          "redis+sentinel://u:hunter2@a/m m",
                          "redis+sentinel://a/m?sentinel_user=x",
                          "redis+other://a/m",
                          "redisss://a",
                          "s3://",
                          "s3://b/p?endpoint=host",
                          "s3://b/p q",
                          "s3://b/..?x=1",
                          "s3://a_b",
                          "s3://b/$"}) {
    const auto parsed = parse_remote_url(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument) << bad;
    EXPECT_EQ(parsed.status().field(), "remote.url") << bad;
    EXPECT_EQ(parsed.status().message().find("hunter2"), std::string::npos) << bad;
  }
}

}  // namespace
}  // namespace quire
