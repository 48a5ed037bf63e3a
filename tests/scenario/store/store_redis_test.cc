// Two stores over real Redis servers: one, and a cluster of six. Skipped where there is no
// redis-server (Debian's package of that name).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <set>
#include <thread>

#include "cachestore/redis/redis_cluster.h"
#include "tests/support/harness/redis_process.h"
#include "tests/support/harness/remote_replica.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using test::recall_of;
using test::Replica;
using test::turn_for;

std::string redis_key(std::uint64_t key) {
  return "quire:1:{" + remote_name(test::key_of(key), "m-test") + "}";
}

#define SKIP_WITHOUT_REDIS() \
  if (test::redis_program().empty()) GTEST_SKIP() << "there is no redis-server in PATH"

TEST(StoreRedis, WhatOneReplicaCommitsAnotherRecalls) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica a(redis.url()), b(redis.url());
  ASSERT_OK(test::put_document(*a.store, "d", {1, 2, 3}));
  EXPECT_EQ(a.counts().written, 3u);
  for (const std::uint64_t key : {1, 2, 3}) EXPECT_OK(b.check(key));
  EXPECT_EQ(b.counts().hits, 3u);
  EXPECT_EQ(b.check(4).code(), Code::kNotFound);
  const auto ttl = redis.ask({"TTL", redis_key(1)});
  ASSERT_TRUE(ttl);
  EXPECT_GT(ttl->integer, 6 * 24 * 3600);
}

TEST(StoreRedis, TwoReplicasThatWantOneContextTakeTurns) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica a(redis.url()), b(redis.url());
  const RecallRequest turn = turn_for(1);
  EXPECT_EQ(a.recall(turn).code(), Code::kNotFound);
  const std::string lease = "quire:1:lease:{" + remote_name(turn.turn, "m-test") + "}";
  const auto ttl = redis.ask({"PTTL", lease});
  ASSERT_TRUE(ttl);
  EXPECT_GT(ttl->integer, 0);
  EXPECT_LE(ttl->integer, 10'000);
  std::promise<Result<SegmentHandle>> at_b;
  b.store->recall_async(turn, [&](Result<SegmentHandle> r) { at_b.set_value(std::move(r)); });
  while (b.store->remote_stats().leases.waiting == 0) std::this_thread::yield();
  {
    const auto segment = test::put_segment(*a.store, 1);
    ASSERT_OK(segment);
    a.store->end_turn(turn);
  }
  const auto recalled = at_b.get_future().get();
  ASSERT_OK(recalled);
  EXPECT_OK(test::check_segment(*b.store, *recalled, 1));
  EXPECT_TRUE(test::RedisClusterProcess::wait_until([&] {
    return redis.ask({"EXISTS", lease}).value().integer == 0;
  }));
  EXPECT_EQ(a.store->remote_stats().leases.own, 1u);
  EXPECT_EQ(b.store->remote_stats().leases.spared, 1u);
}

TEST(StoreRedis, ALeaseOfADeadReplicaEndsAndOneOfAnotherIsLeftAlone) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica b(redis.url());
  const RecallRequest turn = turn_for(1);
  const std::string lease = "quire:1:lease:{" + remote_name(turn.turn, "m-test") + "}";
  ASSERT_TRUE(redis.ask({"SET", lease, "of a dead one", "PX", "300"}));
  EXPECT_EQ(b.recall(turn).code(), Code::kNotFound);
  EXPECT_EQ(b.store->remote_stats().leases.own, 1u);
  ASSERT_TRUE(redis.ask({"SET", lease, "of another"}));
  b.store->end_turn(turn);
  EXPECT_TRUE(test::RedisClusterProcess::wait_until(
      [&] { return b.store->remote_stats().leases.held == 0; }));
  EXPECT_EQ(redis.ask({"GET", lease}).value().text, "of another");
}

TEST(StoreRedis, WithoutRightsForLeasesEveryReplicaComputesAndTheTierStaysUp) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  ASSERT_TRUE(redis.ask({"ACL", "SETUSER", "quire", "on", ">s3cr3t", "~quire:*", "-@all", "+hget",
                         "+hset", "+expire", "+unlink", "+cluster|slots", "+auth"}));
  Replica a("redis://quire:s3cr3t@127.0.0.1:" + std::to_string(redis.host().port));
  for (std::uint64_t key = 1; key <= 10; ++key) {
    EXPECT_EQ(a.recall(turn_for(key, key)).code(), Code::kNotFound);
  }
  EXPECT_EQ(a.store->remote_stats().leases.unavailable, 10u);
  EXPECT_TRUE(a.counts().up);
  ASSERT_TRUE(redis.ask({"ACL", "SETUSER", "quire", "+set", "+get", "+eval", "+pexpire"}));
  Replica b("redis://quire:s3cr3t@127.0.0.1:" + std::to_string(redis.host().port));
  const RecallRequest turn = turn_for(11);
  EXPECT_EQ(b.recall(turn).code(), Code::kNotFound);
  b.store->end_turn(turn);
  EXPECT_TRUE(test::RedisClusterProcess::wait_until(
      [&] { return b.store->remote_stats().leases.held == 0; }));
  EXPECT_EQ(b.store->remote_stats().leases.unavailable, 0u);
}

TEST(StoreRedis, LargeValuesAndManyOfThemPass) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica a(redis.url()), b(redis.url());
  const test::SegmentShape large{{20, 4, 2}, 700'000};
  ASSERT_OK(test::put_document(*a.store, "d", {1}, large));
  EXPECT_OK(b.check(1, large));
  EXPECT_GT(b.counts().read_bytes_per_second, 0);
}

TEST(StoreRedis, EncryptedValuesComeBackWithTheirKeyAlone) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  const auto timeout = std::chrono::seconds(5);
  Replica a(redis.url(), timeout, test::keys_of('1')), b(redis.url(), timeout, test::keys_of('1')),
      c(redis.url(), timeout, test::keys_of('2'));
  const test::SegmentShape large{{20, 4, 2}, 100'000};
  ASSERT_OK(test::put_document(*a.store, "d", {1}, large));
  EXPECT_OK(b.check(1, large));
  EXPECT_EQ(c.check(1, large).code(), Code::kNotFound);
  EXPECT_OK(b.check(1, large)) << "the other key's service left it alone";
}

TEST(StoreRedis, DamageInRedisIsAMissThatIsDeletedAndCounted) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  const auto get = [&](std::uint64_t key, std::string_view field) {
    return redis.ask({"HGET", redis_key(key), field}).value().text;
  };
  const auto set = [&](std::string_view field, const std::string& value) {
    ASSERT_TRUE(redis.ask({"HSET", redis_key(1), field, value}));
  };
  const std::vector<std::function<void()>> damages{
      [&] {  // a flipped bit
        std::string value = get(1, "2");
        value[200] ^= 4;
        set("2", value);
      },
      [&] { set("2", get(1, "2").substr(0, 100)); },
      [&] {
        ASSERT_TRUE(redis.ask({"HDEL", redis_key(1), "5"}));
      },
      [&] {  // two values change places
        const std::string first = get(1, "0"), second = get(1, "1");
        set("0", second);
        set("1", first);
      },
      [&] { set("0", get(2, "0")); },
      [&] { set("r", get(2, "r")); },
      [&] { set("r", "no record"); },
      [&] {
        ASSERT_TRUE(redis.ask({"COPY", redis_key(2), redis_key(1), "REPLACE"}));
      },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    Replica a(redis.url()), b(redis.url());
    ASSERT_OK(test::put_document(*a.store, "d", {1, 2}));
    damages[i]();
    EXPECT_EQ(b.check(1).code(), Code::kCorruption);
    EXPECT_EQ(b.counts().bad, 1u);
    EXPECT_EQ(redis.ask({"EXISTS", redis_key(1)}).value().integer, 0);
    EXPECT_EQ(b.check(1).code(), Code::kNotFound);
    EXPECT_OK(b.check(2));
  }
}

TEST(StoreRedis, AKeyOfAnotherKindIsNoAnswer) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica b(redis.url());
  ASSERT_TRUE(redis.ask({"SET", redis_key(1), "a string"}));
  EXPECT_EQ(b.check(1).code(), Code::kIo);
}

TEST(StoreRedis, AServerThatHangsOrDiesCostsTheTimeLimitAndNoCommit) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica a(redis.url()), b(redis.url(), std::chrono::milliseconds(50));
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_OK(b.check(1));
  redis.pause();
  EXPECT_EQ(b.recall(recall_of(2)).code(), Code::kDeadlineExceeded);
  redis.go_on();
  redis.end();
  for (std::uint64_t key = 3; key < 12; ++key) EXPECT_EQ(b.recall(recall_of(key)).ok(), false);
  EXPECT_FALSE(b.counts().up);
  ASSERT_OK(test::put_document(*b.store, "e", {20}));
  const auto segment = b.store->find_segment(test::key_of(20));
  ASSERT_TRUE(segment);
  EXPECT_OK(test::check_segment(*b.store, *segment, 20));
}

TEST(StoreRedis, AFullServerIsReadOnAndKeepsNoPartOfWhatItRefused) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica a(redis.url()), b(redis.url());
  ASSERT_OK(test::put_document(*a.store, "d1", {1}));
  ASSERT_TRUE(redis.ask({"CONFIG", "SET", "maxmemory-policy", "noeviction"}));
  ASSERT_TRUE(redis.ask({"CONFIG", "SET", "maxmemory", "1"}));
  for (std::uint64_t key = 2; key <= 12; ++key)
    ASSERT_OK(test::put_document(*a.store, "d" + std::to_string(key), {key}));
  EXPECT_EQ(a.counts().write_failures, 11u);
  EXPECT_TRUE(a.counts().up);
  EXPECT_OK(b.check(1));
  EXPECT_EQ(redis.ask({"DBSIZE"})->integer, 1);
  ASSERT_TRUE(redis.ask({"CONFIG", "SET", "maxmemory", "0"}));
  ASSERT_OK(test::put_document(*a.store, "d13", {13}));
  EXPECT_OK(b.check(13)) << "it takes more once it has room";
}

TEST(StoreRedis, AUserWithFewRightsIsEnough) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  ASSERT_TRUE(redis.ask({"ACL", "SETUSER", "quire", "on", ">s3cr3t", "~quire:*", "-@all", "+hget",
                         "+hset", "+expire", "+unlink", "+cluster|slots", "+auth"}));
  const std::string port = std::to_string(redis.host().port);
  Replica a("redis://quire:s3cr3t@127.0.0.1:" + port);
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  EXPECT_EQ(a.counts().written, 1u);
  Replica b("redis://quire:wrong@127.0.0.1:" + port);
  EXPECT_EQ(b.check(1).code(), Code::kFailedPrecondition);
}

/// The payload of a segment that put_segment() writes.
std::uint64_t payload_of(std::uint64_t key) {
  const auto info = test::recall_of(key);
  return info.value_bytes + test::sketch_of(key, 0, test::SegmentShape().value_bytes).size();
}

/// Returns which of the keys 1 to `last` Redis has, by a replica that asks.
std::vector<std::uint64_t> shared_keys(test::RedisProcess& redis, std::uint64_t last) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t key = 1; key <= last; ++key)
    if (const auto there = redis.ask({"EXISTS", redis_key(key)}); there && there->integer == 1)
      out.push_back(key);
  return out;
}

TEST(StoreRedis, TheOldestKvOfATenantGoesForItsQuotaAtAllReplicas) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  const std::uint64_t quota = payload_of(1) * 7 / 2;  // three and a half segments
  Replica a(redis.url(), std::chrono::seconds(5), nullptr, quota);
  Replica b(redis.url(), std::chrono::seconds(5), nullptr, quota);
  ASSERT_OK(test::put_document(*a.store, "d1", {1, 2}));
  ASSERT_OK(test::put_document(*b.store, "d2", {3, 4}));
  EXPECT_EQ(shared_keys(redis, 5).size(), 3u);
  EXPECT_EQ(b.store->remote_stats().quota_removed, 1u);
  EXPECT_EQ(redis.ask({"EXISTS", redis_key(4)})->integer, 1);
  // What is deleted makes room.
  ASSERT_OK(b.store->delete_document("default", "d2"));
  ASSERT_TRUE(testing::soon([&] {
    return redis.ask({"EXISTS", redis_key(3), redis_key(4)})->integer == 0;
  }));
  ASSERT_OK(test::put_document(*b.store, "d3", {5}));
  ASSERT_OK(test::put_document(*b.store, "d4", {6}));
  EXPECT_EQ(b.store->remote_stats().quota_removed, 1u);
  EXPECT_EQ(shared_keys(redis, 6).size(), 3u);
}

TEST(StoreRedis, MoreThanItsQuotaIsNotShared) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  Replica a(redis.url(), std::chrono::seconds(5), nullptr, payload_of(1) / 2);
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  EXPECT_TRUE(shared_keys(redis, 1).empty());
  EXPECT_EQ(a.store->remote_stats().quota_refused, 1u);
}

TEST(StoreRedis, WhatCannotBeCountedIsNotSharedAndTheTierStaysUp) {
  SKIP_WITHOUT_REDIS();
  test::RedisProcess redis;
  ASSERT_TRUE(redis.ask({"ACL", "SETUSER", "quire", "on", ">s3cr3t", "~quire:*", "-@all", "+hget",
                         "+hset", "+expire", "+unlink", "+cluster|slots", "+auth"}));
  Replica a("redis://quire:s3cr3t@127.0.0.1:" + std::to_string(redis.host().port),
            std::chrono::seconds(5), nullptr, payload_of(1) * 10);
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  EXPECT_TRUE(shared_keys(redis, 1).empty());
  EXPECT_EQ(a.store->remote_stats().quota_refused, 1u);
  EXPECT_TRUE(a.counts().up);
}

TEST(StoreRedis, OverTlsTheServerMustBeTheOneThatIsTrusted) {
  SKIP_WITHOUT_REDIS();
  const test::TempFolder folder;
  const std::string key = folder.path("key.pem"), cert = folder.path("cert.pem");
  const std::string make =
      "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=quire -addext "
      "subjectAltName=IP:127.0.0.1 -keyout " +
      key + " -out " + cert + " 2>/dev/null";
  if (std::system(make.c_str()) != 0) GTEST_SKIP() << "there is no openssl in PATH";
  const std::string port = std::to_string(test::free_port());
  test::RedisProcess redis({"--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key,
                            "--tls-ca-cert-file", cert});
  if (!redis.ask({"PING"})) GTEST_SKIP() << "this redis-server has no TLS";
  const std::string address = "rediss://127.0.0.1:" + port;
  const std::string known = address + "?ca=" + cert + "&cert=" + cert + "&key=" + key;
  Replica a(known), b(known);
  const test::SegmentShape large{{20, 4, 2}, 200'000};
  ASSERT_OK(test::put_document(*a.store, "d", {1}, large));
  EXPECT_EQ(a.counts().written, 1u);
  EXPECT_OK(b.check(1, large));
  Replica stranger(address);
  EXPECT_EQ(stranger.check(1).code(), Code::kFailedPrecondition) << "the certificate is unknown";
  Replica nameless(address + "?ca=" + cert);
  EXPECT_FALSE(nameless.check(1).ok()) << "the server wants a certificate";
  const std::string gone = folder.path("gone.pem");
  std::filesystem::copy_file(cert, gone);
  RemoteOptions options;
  options.url = address + "?ca=" + gone;
  Replica lost(options.url);
  std::filesystem::remove(gone);
  EXPECT_EQ(lost.check(1).code(), Code::kInvalidArgument);
  EXPECT_EQ(open_remote_tiers(options).code(), Code::kInvalidArgument) << "a start is refused";
}

/// A server, a replica of it, and three sentinels that watch both.
class Sentinels {
 public:
  Sentinels() : replica_({"--replicaof", "127.0.0.1", std::to_string(master.host().port)}) {
    for (int i = 0; i < 3; ++i) {
      const std::string file = folder_.path("sentinel" + std::to_string(i) + ".conf");
      std::ofstream(file) << "sentinel monitor quire 127.0.0.1 " << master.host().port
                          << " 2\nsentinel down-after-milliseconds quire 500\n"
                             "sentinel failover-timeout quire 3000\n";
      sentinels_.push_back(
          std::make_unique<test::RedisProcess>(std::vector<std::string>{"--sentinel"}, file));
    }
    ready = test::RedisClusterProcess::wait_until([this] {
      const auto info = replica_.ask({"INFO", "replication"});
      return info && info->text.find("master_link_status:up") != std::string::npos &&
             std::ranges::all_of(sentinels_, [](const auto& sentinel) {
               const auto others = sentinel->ask({"SENTINEL", "SENTINELS", "quire"});
               const auto replicas = sentinel->ask({"SENTINEL", "REPLICAS", "quire"});
               return others && others->items.size() == 2 && replicas &&
                      replicas->items.size() == 1;
             });
    });
  }
  std::string url() const {
    std::string out = "redis+sentinel://";
    for (const auto& s : sentinels_)
      out += (out.back() == '/' ? "" : ",") + ("127.0.0.1:" + std::to_string(s->host().port));
    return out + "/quire";
  }
  test::RedisProcess master;
  bool ready = false;

 private:
  test::TempFolder folder_;
  test::RedisProcess replica_;
  std::vector<std::unique_ptr<test::RedisProcess>> sentinels_;
};

TEST(StoreRedis, SentinelsNameTheServerThatTakesOver) {
  SKIP_WITHOUT_REDIS();
  Sentinels sentinels;
  ASSERT_TRUE(sentinels.ready);
  Replica a(sentinels.url()), b(sentinels.url());
  ASSERT_OK(test::put_document(*a.store, "d", {1, 2}));
  ASSERT_OK(b.check(1));
  ASSERT_TRUE(sentinels.master.wait_for_replica());
  sentinels.master.end();
  EXPECT_TRUE(test::RedisClusterProcess::wait_until([&] { return b.check(2).ok(); }))
      << "what was written before is still there";
  std::uint64_t next = 10;
  EXPECT_TRUE(test::RedisClusterProcess::wait_until([&] {
    return test::put_document(*a.store, "e" + std::to_string(next), {next}).ok() &&
           b.check(next++).ok();
  })) << "what is written now goes to the new master";
}

class StoreRedisCluster : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::redis_program().empty()) cluster = std::make_unique<test::RedisClusterProcess>();
  }
  static void TearDownTestSuite() { cluster.reset(); }
  void SetUp() override {
    SKIP_WITHOUT_REDIS();
    ASSERT_TRUE(cluster->healthy);
  }
  static std::unique_ptr<test::RedisClusterProcess> cluster;
};
std::unique_ptr<test::RedisClusterProcess> StoreRedisCluster::cluster;

TEST_F(StoreRedisCluster, SegmentsSpreadOverTheNodesAndComeBack) {
  Replica a(cluster->url()), b(cluster->url());
  std::vector<std::uint64_t> keys;
  std::set<std::uint64_t> masters;
  for (std::uint64_t key = 1; key <= 30; ++key) {
    keys.push_back(key);
    masters.insert(redis_slot(redis_key(key)) * 3ull / 16384);
  }
  ASSERT_EQ(masters.size(), 3u) << "the keys of this test fall into all parts";
  ASSERT_OK(test::put_document(*a.store, "d", keys));
  for (const std::uint64_t key : keys) EXPECT_OK(b.check(key)) << key;
  EXPECT_EQ(b.counts().hits, 30u);
}

TEST_F(StoreRedisCluster, AQuotaHoldsOverAllNodes) {
  const std::uint64_t quota = payload_of(1) * 21 / 2;
  Replica a(cluster->url(), std::chrono::seconds(5), nullptr, quota);
  Replica b(cluster->url());
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 201; key <= 230; ++key) keys.push_back(key);
  ASSERT_OK(test::put_document(*a.store, "d", keys));
  std::size_t shared = 0;
  for (const std::uint64_t key : keys) shared += b.check(key).ok();
  EXPECT_GE(shared, 9u);
  EXPECT_LE(shared, 10u);
}

TEST_F(StoreRedisCluster, ASlotThatMovesIsFollowed) {
  Replica a(cluster->url()), b(cluster->url());
  ASSERT_OK(test::put_document(*a.store, "d", {101}));
  ASSERT_OK(b.check(101)) << "b knows the topology before the slot moves";
  const auto slot = redis_slot(redis_key(102));
  ASSERT_OK(test::put_document(*a.store, "e", {102}));
  const std::size_t from = slot * 3ull / 16384, to = (from + 1) % 3;
  auto& source = *cluster->nodes[from];
  auto& target = *cluster->nodes[to];
  const std::string text = std::to_string(slot), port = std::to_string(target.host().port);
  const auto source_id = source.ask({"CLUSTER", "MYID"})->text,
             target_id = target.ask({"CLUSTER", "MYID"})->text;
  (void)target.ask({"CLUSTER", "SETSLOT", text, "IMPORTING", source_id});
  (void)source.ask({"CLUSTER", "SETSLOT", text, "MIGRATING", target_id});
  ASSERT_FALSE(source.ask({"MIGRATE", "127.0.0.1", port, redis_key(102), "0", "5000"})->is_error());
  EXPECT_OK(b.check(102)) << "by ASK";
  (void)target.ask({"CLUSTER", "SETSLOT", text, "NODE", target_id});
  (void)source.ask({"CLUSTER", "SETSLOT", text, "NODE", target_id});
  Replica c(cluster->url());
  EXPECT_OK(c.check(102)) << "by MOVED, or by the new topology";
}

TEST_F(StoreRedisCluster, ARecallAsksTheReplicaOfAMasterThatHangs) {
  Replica a(cluster->url()), b(cluster->url());
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 301; key <= 330; ++key)
    if (redis_slot(redis_key(key)) < 16384 / 3) keys.push_back(key);
  ASSERT_GE(keys.size(), 3u);
  ASSERT_OK(test::put_document(*a.store, "d", keys));
  ASSERT_TRUE(test::RedisClusterProcess::wait_until([] {
    const auto slots = cluster->nodes[0]->ask({"CLUSTER", "SLOTS"});
    return slots && std::ranges::all_of(slots->items, [](const RedisReply& range) {
             return range.items.size() > 3;
           });
  })) << "the cluster names the replicas";
  ASSERT_OK(b.check(keys[0])) << "b knows the topology";
  ASSERT_TRUE(cluster->nodes[0]->wait_for_replica());
  cluster->nodes[0]->pause();
  EXPECT_OK(b.check(keys[1]));
  EXPECT_OK(b.check(keys[2]));
  cluster->nodes[0]->go_on();
  EXPECT_EQ(b.counts().hits, 3u);
  EXPECT_EQ(b.counts().second_way_hits, 2u);
  EXPECT_GE(b.store->remote_stats().hedged_reads, 2u);
  EXPECT_EQ(b.store->remote_stats().hedges_won, 2u);
  ASSERT_TRUE(test::RedisClusterProcess::wait_until([] { return cluster->all_ok(); }));
}

TEST_F(StoreRedisCluster, AReplicaTakesOverForALostMaster) {
  Replica a(cluster->url(), std::chrono::milliseconds(500)),
      b(cluster->url(), std::chrono::milliseconds(500));
  std::vector<std::uint64_t> keys;
  for (std::uint64_t key = 201; key <= 230; ++key) keys.push_back(key);
  ASSERT_OK(test::put_document(*a.store, "d", keys));
  ASSERT_OK(b.check(keys[0]));
  // What was written is on the replica.
  for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(cluster->nodes[i]->wait_for_replica());
  cluster->nodes[0]->end();
  const auto lost = std::ranges::find_if(
      keys, [](std::uint64_t key) { return redis_slot(redis_key(key)) < 16384 / 3; });
  ASSERT_NE(lost, keys.end());
  const bool back = test::RedisClusterProcess::wait_until([&] { return b.check(*lost).ok(); });
  EXPECT_TRUE(back);
  for (const std::uint64_t key : keys)
    EXPECT_TRUE(test::RedisClusterProcess::wait_until([&] { return b.check(key).ok(); })) << key;
}

}  // namespace
}  // namespace quire
