// Replies of Redis, cut anywhere, and bytes that are none.
#include "cachestore/remote/redis_reply.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using Kind = RedisReply::Kind;

TEST(RedisReply, EveryKindComesWholeHoweverItIsCut) {
  const std::string all(
      "+OK\r\n-MOVED 1 h:2\r\n:42\r\n$-1\r\n$4\r\na\r\nb\r\n*2\r\n$1\r\nx\r\n*1\r\n:7\r\n*-1\r\n");
  for (std::size_t step = 1; step <= all.size(); ++step) {
    RedisReplyReader reader;
    std::vector<RedisReply> replies;
    for (std::size_t at = 0; at < all.size(); at += step) {
      ASSERT_OK(reader.feed(std::string_view(all).substr(at, step)));
      for (;;) {
        auto next = reader.next();
        ASSERT_OK(next);
        if (!*next) break;
        replies.push_back(std::move(**next));
      }
    }
    ASSERT_EQ(replies.size(), 7u) << step;
    EXPECT_EQ(replies[0].kind, Kind::kStatus);
    EXPECT_EQ(replies[0].text, "OK");
    EXPECT_TRUE(replies[1].is_error("MOVED"));
    EXPECT_FALSE(replies[1].is_error("MOVE"));
    EXPECT_EQ(replies[2].integer, 42);
    EXPECT_EQ(replies[3].kind, Kind::kNil);
    EXPECT_EQ(replies[4].text, "a\r\nb");
    ASSERT_EQ(replies[5].items.size(), 2u);
    EXPECT_EQ(replies[5].items[1].items.at(0).integer, 7);
    EXPECT_EQ(replies[6].kind, Kind::kNil);
  }
}

TEST(RedisReply, BytesThatAreNoReplyAreRefusedForGood) {
  for (const auto* bad : {"HTTP/1.1 400 Bad Request\r\n", "*99999999\r\n", "*-7\r\n",
                          "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n"}) {
    RedisReplyReader reader;
    ASSERT_OK(reader.feed(bad));
    EXPECT_EQ(reader.next().code(), Code::kIo) << bad;
    EXPECT_EQ(reader.next().code(), Code::kIo) << bad;
    EXPECT_EQ(reader.feed("+OK\r\n").code(), Code::kIo) << bad;
  }
}

TEST(RedisReply, ACommandIsCountedAndMayHoldAnyByte) {
  std::string out;
  append_redis_command(out, {"SET", "k", std::string_view("\r\n\0x", 4)});
  EXPECT_EQ(out, std::string("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\0x\r\n", 30));
}

}  // namespace
}  // namespace quire
