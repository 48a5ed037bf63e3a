// Replies of Redis, cut anywhere, and bytes that are none.
#include "cachestore/redis/redis_reply.h"

#include <gtest/gtest.h>

#include <span>

#include "tests/support/harness/cut_source.h"
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

/// Asks for the next reply until it has come.
Result<RedisReply> receive(RedisReplyStream& stream, const RedisReplyStream::ReadSome& read,
                           const RedisReplyStream::PlaceString& place = {}) {
  for (;;) {
    auto reply = stream.receive(read, place);
    QUIRE_RETURN_IF_ERROR(reply.status());
    if (*reply) return std::move(**reply);
  }
}

TEST(RedisReplyStream, AStringGoesWhereItBelongsHoweverItIsCut) {
  const std::string long_one(700'000, 'v');
  const std::string all = "+OK\r\n$4\r\na\r\nb\r\n$0\r\n\r\n$-1\r\n*2\r\n$1\r\nx\r\n:7\r\n$" +
                          std::to_string(long_one.size()) + "\r\n" + long_one + "\r\n:5\r\n";
  for (const std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{1000}, all.size()}) {
    SCOPED_TRACE(step);
    std::string_view bytes = all;
    const auto read = test::cut_source(bytes, step);
    RedisReplyStream stream;
    std::string to;
    std::vector<std::size_t> asked;
    const auto place = [&](std::size_t size) {
      asked.push_back(size);
      to.assign(size, ' ');
      return std::as_writable_bytes(std::span(to));
    };
    EXPECT_EQ(receive(stream, read, place)->text, "OK");
    const auto text = receive(stream, read, place);
    ASSERT_OK(text);
    EXPECT_TRUE(text->placed && text->text.empty());
    EXPECT_EQ(to, "a\r\nb");
    EXPECT_EQ(receive(stream, read, place)->kind, Kind::kString) << "an empty one";
    EXPECT_EQ(receive(stream, read, place)->kind, Kind::kNil);
    EXPECT_EQ(receive(stream, read, place)->items.at(0).text, "x") << "within an array";
    EXPECT_TRUE(receive(stream, read, place)->placed);
    EXPECT_TRUE(to == long_one);
    EXPECT_EQ(receive(stream, read, place)->integer, 5);
    EXPECT_EQ(asked, (std::vector<std::size_t>{4, long_one.size()}));
    EXPECT_EQ(receive(stream, read, place).code(), Code::kUnavailable);
  }
}

TEST(RedisReplyStream, WithoutAPlaceOrOneOfAnotherSizeTheReplyHasTheText) {
  std::string small;
  const std::vector<RedisReplyStream::PlaceString> places{
      {},
      [](std::size_t) { return std::span<std::byte>(); },
      [&](std::size_t size) {
        small.assign(size - 1, ' ');
        return std::as_writable_bytes(std::span(small));
      }};
  for (const auto& place : places) {
    std::string_view bytes = "$4\r\nabcd\r\n";
    RedisReplyStream stream;
    const auto reply = receive(stream, test::cut_source(bytes, 5), place);
    ASSERT_OK(reply);
    EXPECT_FALSE(reply->placed);
    EXPECT_EQ(reply->text, "abcd");
  }
}

TEST(RedisReplyStream, BytesThatAreNoReplyAreRefused) {
  std::string to;
  const auto place = [&](std::size_t size) {
    to.assign(size, ' ');
    return std::as_writable_bytes(std::span(to));
  };
  for (const std::string& bad :
       {std::string("$4\r\nabcdef\r\n"), std::string("HTTP/1.1 400 Bad Request\r\n"),
        std::string("*-7\r\n"), std::string("$x\r\nabcd\r\n"), std::string(70'000, '+')}) {
    std::string_view bytes = bad;
    RedisReplyStream stream;
    EXPECT_EQ(receive(stream, test::cut_source(bytes, 7), place).code(), Code::kIo)
        << bad.substr(0, 30);
  }
}

TEST(RedisReply, ACommandIsCountedAndMayHoldAnyByte) {
  std::string out;
  append_redis_command(out, {"SET", "k", std::string_view("\r\n\0x", 4)});
  EXPECT_EQ(out, std::string("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\n\r\n\0x\r\n", 30));
}

}  // namespace
}  // namespace quire
