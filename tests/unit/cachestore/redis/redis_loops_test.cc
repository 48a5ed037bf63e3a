// Long replies to many callers at once, which few event loops receive.
#include "cachestore/redis/redis_loops.h"

#include <gtest/gtest.h>

#include <future>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>

#include "cachestore/redis/redis_cluster.h"
#include "tests/support/harness/fake_redis.h"
#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using test::FakeRedis;

constexpr std::size_t kValueBytes = 300'000;

Clock::time_point in(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }

bool is_slots(const FakeRedis::Command& c) { return c[0] == "CLUSTER"; }

std::string value_of(const std::string& key) { return std::string(kValueBytes, key.back()); }

/// Reads the values of so many keys as a segment's; each goes where it belongs.
struct Read {
  std::vector<std::string> texts;
  std::vector<std::size_t> order;
  std::uint64_t expected_bytes = kValueBytes;
  RedisCluster::PlaceReply place = [this](std::size_t i, std::size_t bytes) {
    texts.at(i).assign(bytes, ' ');
    return std::as_writable_bytes(std::span(texts.at(i)));
  };

  Status run(RedisCluster& cluster, int count, int ms = 20'000) {
    std::vector<std::string> commands;
    for (int i = 0; i < count; ++i)
      append_redis_command(commands.emplace_back(), {"GET", "k" + std::to_string(i)});
    texts.resize(commands.size());
    return cluster.run(
        7, commands, {.most = 64, .reply_bytes = expected_bytes}, in(ms),
        [&](std::size_t i, RedisReply reply) {
          order.push_back(i);
          return reply.placed ? Status() : Status::io("not placed");
        },
        place);
  }
};

TEST(RedisLoops, ManyCallersGetTheirOwnValuesInOrder) {
  FakeRedis server([](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::no_cluster() : FakeRedis::bulk(value_of(c[1]));
  });
  RedisCluster cluster(server.server());
  std::vector<std::thread> callers;
  for (int t = 0; t < 6; ++t)
    callers.emplace_back([&] {
      Read read;
      ASSERT_OK(read.run(cluster, 9));
      for (std::size_t i = 0; i < 9; ++i) {
        EXPECT_EQ(read.order.at(i), i);
        EXPECT_TRUE(read.texts[i] == value_of("k" + std::to_string(i)));
      }
    });
  for (auto& t : callers) t.join();
}

TEST(RedisLoops, ARedirectedValueIsReadFromItsNode) {
  std::vector<RemoteHost> nodes;
  FakeRedis b([&](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::slots(nodes) : FakeRedis::bulk(value_of("moved"));
  });
  FakeRedis a([&](const FakeRedis::Command& c) {
    if (is_slots(c)) return FakeRedis::slots(nodes);
    return c[1] == "k1" ? "-MOVED 7 127.0.0.1:" + std::to_string(b.host().port) + "\r\n"
                        : FakeRedis::bulk(value_of(c[1]));
  });
  nodes = {a.host()};
  RedisCluster cluster(a.server());
  Read read;
  ASSERT_OK(read.run(cluster, 3));
  EXPECT_TRUE(read.texts[1] == value_of("moved"));
  EXPECT_TRUE(read.texts[2] == value_of("k2"));
  EXPECT_EQ(read.order, (std::vector<std::size_t>{0, 2, 1}));
}

TEST(RedisLoops, AnIdleConnectionThatWasClosedIsOpenedAgain) {
  FakeRedis server([](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::no_cluster() : FakeRedis::bulk(value_of(c[1]));
  });
  RedisCluster cluster(server.server());
  ASSERT_OK(Read().run(cluster, 1));
  server.hang_up();
  ASSERT_OK(Read().run(cluster, 1));
}

TEST(RedisLoops, AServerThatFallsSilentCostsItsCallerTheDeadlineAndOthersNothing) {
  std::promise<void> end;
  std::shared_future<void> ended = end.get_future().share();
  FakeRedis silent([&](const FakeRedis::Command& c) -> std::optional<std::string> {
    if (is_slots(c)) return FakeRedis::no_cluster();
    if (c[1] == "k0") return FakeRedis::bulk(value_of("k0")) + "$300000\r\nthe first bytes";
    ended.wait();
    return std::nullopt;
  });
  RedisCluster cluster(silent.server());
  std::vector<std::thread> callers;
  for (int t = 0; t < 5; ++t)  // more than there are loops
    callers.emplace_back([&] {
      Read read;
      EXPECT_EQ(read.run(cluster, 2, 200).code(), Code::kDeadlineExceeded);
      EXPECT_TRUE(read.texts[0] == value_of("k0"));
    });
  for (auto& t : callers) t.join();
  end.set_value();
}

TEST(RedisLoops, StoppingEndsACallThatWaits) {
  std::promise<void> begun, end;
  std::shared_future<void> ended = end.get_future().share();
  FakeRedis server([&](const FakeRedis::Command& c) -> std::optional<std::string> {
    if (is_slots(c)) return FakeRedis::no_cluster();
    begun.set_value();
    ended.wait();
    return std::nullopt;
  });
  RedisCluster cluster(server.server());
  std::thread caller(
      [&] { EXPECT_EQ(Read().run(cluster, 1, 600'000).code(), Code::kUnavailable); });
  begun.get_future().wait();
  cluster.stop();
  caller.join();
  end.set_value();
}

TEST(RedisLoops, BytesThatAreNoReplyAndAConnectionThatEndsAreErrors) {
  std::string reply;
  FakeRedis server([&](const FakeRedis::Command& c) -> std::optional<std::string> {
    if (is_slots(c)) return FakeRedis::no_cluster();
    if (c[1] == "k0") return reply;
    return std::nullopt;
  });
  for (const auto& [text, code] : std::vector<std::pair<std::string, Code>>{
           {"bytes of another protocol\r\n", Code::kIo},
           {"$3\r\nabcdef\r\n", Code::kIo},
           {"$300000\r\nand the connection ends", Code::kUnavailable}}) {
    reply = text;
    RedisCluster cluster(server.server());
    Read read;
    read.expected_bytes = 1;  // so that both are asked for at once
    EXPECT_EQ(read.run(cluster, 2).code(), code) << text;
  }
}

TEST(RedisLoops, WhatACallerThrowsComesOutOfItsCall) {
  FakeRedis server([](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::no_cluster() : FakeRedis::bulk(value_of(c[1]));
  });
  RedisCluster cluster(server.server());
  Read read;
  read.place = [](std::size_t, std::size_t) -> std::span<std::byte> { throw std::bad_alloc(); };
  EXPECT_THROW((void)read.run(cluster, 2), std::bad_alloc);
  EXPECT_OK(Read().run(cluster, 2)) << "the loop goes on";
}

TEST(RedisLoops, WorkThatCouldDoMoreLetsOthersHaveTheirTurn) {
  const std::atomic<bool> stopping{false};
  RedisLoops loops(1, stopping);
  FakeRedis server([](const FakeRedis::Command&) { return FakeRedis::bulk("v"); });
  const auto open = [&] {
    auto c = RedisConnection::open(server.host(), server.server(), in(20'000), stopping);
    EXPECT_OK(c);
    return std::move(*c);
  };
  const auto one = open(), other = open();
  std::atomic<bool> other_ran{false};
  std::thread caller([&] {
    EXPECT_OK(loops.run(*one, in(20'000), [&]() -> Result<RedisLoops::Step> {
      return other_ran ? RedisLoops::Step::kDone : RedisLoops::Step::kGoesOn;
    }));
  });
  EXPECT_OK(loops.run(*other, in(20'000), [&]() -> Result<RedisLoops::Step> {
    other_ran = true;
    return RedisLoops::Step::kDone;
  }));
  caller.join();
}

TEST(RedisLoops, WithoutALoopTheCallerDoesItItself) {
  const std::atomic<bool> stopping{false};
  RedisLoops none(0, stopping);
  FakeRedis server([](const FakeRedis::Command& c) { return FakeRedis::bulk(c[1]); });
  auto c = RedisConnection::open(server.host(), server.server(), in(20'000), stopping);
  ASSERT_OK(c);
  std::string command;
  append_redis_command(command, {"GET", "k"});
  ASSERT_OK((*c)->send(command, in(20'000)));
  std::string text;
  EXPECT_OK(none.run(**c, in(20'000), [&]() -> Result<RedisLoops::Step> {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<RedisReply> reply, (*c)->receive_now());
    if (!reply) return RedisLoops::Step::kWaits;
    text = reply->text;
    return RedisLoops::Step::kDone;
  }));
  EXPECT_EQ(text, "k");
}

}  // namespace
}  // namespace quire
