// Commands to a cluster: slots, redirections, lost nodes, and servers that answer wrong or not.
#include "cachestore/redis/redis_cluster.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>

#include "tests/support/harness/fake_redis.h"
#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using test::FakeRedis;

Clock::time_point in(int ms) { return Clock::now() + std::chrono::milliseconds(ms); }

std::string get(const std::string& key) {
  std::string out;
  append_redis_command(out, {"GET", key});
  return out;
}

struct Asked {
  Status status;
  std::vector<std::string> texts;
};
Asked ask(RedisCluster& cluster, std::uint16_t slot, int count = 1, std::size_t window = 64,
          int ms = 5000) {
  std::vector<std::string> commands;
  for (int i = 0; i < count; ++i) commands.push_back(get("k" + std::to_string(i)));
  Asked out;
  out.texts.resize(commands.size());
  out.status = cluster.run(slot, commands, {.most = window}, in(ms),
                           [&](std::size_t i, RedisReply reply) {
                             out.texts.at(i) = reply.text;
                             return Status();
                           });
  return out;
}

/// The same at a replica.
Asked ask_replica(RedisCluster& cluster, std::uint16_t slot, int count = 1) {
  std::vector<std::string> commands;
  for (int i = 0; i < count; ++i) commands.push_back(get("k" + std::to_string(i)));
  Asked out;
  out.texts.resize(commands.size());
  out.status = cluster.run_at_replica(slot, commands, {.most = 2}, in(5000),
                                      [&](std::size_t i, RedisReply reply) {
                                        out.texts.at(i) = reply.text;
                                        return Status();
                                      });
  return out;
}

/// The reply to CLUSTER SLOTS of a cluster whose first node has every slot, and replicas.
std::string slots_with_replicas(const std::vector<RemoteHost>& nodes) {
  std::string out = "*1\r\n*" + std::to_string(2 + nodes.size()) + "\r\n:0\r\n:16383\r\n";
  for (const RemoteHost& node : nodes)
    out += "*2\r\n" + FakeRedis::bulk(node.name) + ":" + std::to_string(node.port) + "\r\n";
  return out;
}

bool is_slots(const FakeRedis::Command& c) { return c[0] == "CLUSTER"; }

TEST(RedisSlot, IsThatOfRedis) {
  EXPECT_EQ(redis_slot("123456789"), 12739);  // of the cluster specification
  EXPECT_EQ(redis_slot("{user1000}.following"), redis_slot("user1000"));
  EXPECT_EQ(redis_slot("foo{}{bar}"), redis_slot("foo{}{bar}"));
  EXPECT_NE(redis_slot("foo{}{bar}"), redis_slot("bar")) << "an empty tag is none";
  EXPECT_EQ(redis_slot("foo{{bar}}zap"), redis_slot("{bar"));
}

TEST(RedisCluster, AServerWithoutAClusterHasEverySlot) {
  FakeRedis server([](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::no_cluster() : FakeRedis::bulk("v of " + c[1]);
  });
  RedisCluster cluster(server.server());
  const Asked asked = ask(cluster, 16383, 200, 7);
  ASSERT_OK(asked.status);
  for (int i = 0; i < 200; ++i)
    EXPECT_EQ(asked.texts[static_cast<std::size_t>(i)], "v of k" + std::to_string(i));
  EXPECT_EQ(server.connections(), 1) << "connections are kept";
}

TEST(RedisCluster, EachSlotGoesToItsNode) {
  std::vector<RemoteHost> nodes;
  const auto answer = [&](int node) {
    return [&, node](const FakeRedis::Command& c) {
      return is_slots(c) ? FakeRedis::slots(nodes) : FakeRedis::bulk(std::to_string(node));
    };
  };
  FakeRedis a(answer(0)), b(answer(1));
  nodes = {a.host(), b.host()};
  RedisCluster cluster(a.server());
  EXPECT_EQ(ask(cluster, 0).texts[0], "0");
  EXPECT_EQ(ask(cluster, 8191).texts[0], "0");
  EXPECT_EQ(ask(cluster, 8192).texts[0], "1");
  EXPECT_EQ(ask(cluster, 16383).texts[0], "1");
}

TEST(RedisCluster, MovedAndAskAreFollowedForTheCommandsThatTheyMeet) {
  std::vector<RemoteHost> nodes;
  bool asking = false;
  FakeRedis b([&](const FakeRedis::Command& c) -> std::string {
    if (is_slots(c)) return FakeRedis::slots(nodes);
    if (c[0] == "ASKING") return asking = true, "+OK\r\n";
    const bool asked = std::exchange(asking, false);
    return FakeRedis::bulk((asked ? "asked " : "moved ") + c[1]);
  });
  FakeRedis a([&](const FakeRedis::Command& c) -> std::string {
    if (is_slots(c)) return FakeRedis::slots(nodes);
    const std::string to = "127.0.0.1:" + std::to_string(b.host().port);
    if (c[1] == "k1") return "-MOVED 5 " + to + "\r\n";
    if (c[1] == "k2") return "-ASK 5 :" + std::to_string(b.host().port) + "\r\n";
    return FakeRedis::bulk("here " + c[1]);
  });
  nodes = {a.host()};
  RedisCluster cluster(a.server());
  const Asked asked = ask(cluster, 5, 4);
  ASSERT_OK(asked.status);
  EXPECT_EQ(asked.texts[0], "here k0");
  EXPECT_EQ(asked.texts[1], "moved k1");
  EXPECT_EQ(asked.texts[2], "asked k2");
  EXPECT_EQ(asked.texts[3], "here k3");
}

TEST(RedisCluster, RedirectionsInACircleEnd) {
  std::vector<RemoteHost> nodes;
  const auto to_other = [&](std::size_t other) {
    return [&, other](const FakeRedis::Command& c) -> std::string {
      if (is_slots(c)) return FakeRedis::slots(nodes);
      return "-MOVED 5 127.0.0.1:" + std::to_string(nodes[other].port) + "\r\n";
    };
  };
  FakeRedis a(to_other(1)), b(to_other(0));
  nodes = {a.host(), b.host()};
  RedisCluster cluster(a.server());
  EXPECT_EQ(ask(cluster, 5).status.code(), Code::kUnavailable);
}

TEST(RedisCluster, AnIdleConnectionThatWasClosedIsOpenedAgain) {
  FakeRedis server([](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::no_cluster() : FakeRedis::bulk("v");
  });
  RedisCluster cluster(server.server());
  ASSERT_OK(ask(cluster, 1).status);
  server.hang_up();
  EXPECT_OK(ask(cluster, 1).status);
  EXPECT_EQ(server.connections(), 2);
}

TEST(RedisCluster, ALostNodeIsForgottenAndItsSlotsAreLearnedFromAnother) {
  std::vector<RemoteHost> nodes;
  auto answer = [&](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::slots(nodes) : FakeRedis::bulk("b");
  };
  FakeRedis b(answer);
  auto a = std::make_unique<FakeRedis>([&](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::slots(nodes) : FakeRedis::bulk("a");
  });
  nodes = {a->host(), b.host()};
  RedisServer server;
  server.hosts = {a->host()};
  RedisCluster cluster(server);
  EXPECT_EQ(ask(cluster, 0).texts[0], "a");
  nodes = {b.host()};
  a.reset();
  const Asked asked = ask(cluster, 0);
  ASSERT_OK(asked.status);
  EXPECT_EQ(asked.texts[0], "b");
}

// A machine that is gone refuses nothing: whoever calls it waits in vain.
TEST(RedisCluster, AfterASilenceItsSlotsAreLearnedFromAnother) {
  std::mutex mu;
  std::vector<RemoteHost> nodes;
  const auto slots = [&] {
    const std::lock_guard lock(mu);
    return FakeRedis::slots(nodes);
  };
  std::promise<void> end;
  std::shared_future<void> ended = end.get_future().share();
  std::atomic<bool> silent = false;
  FakeRedis b(
      [&](const FakeRedis::Command& c) { return is_slots(c) ? slots() : FakeRedis::bulk("b"); });
  FakeRedis a([&](const FakeRedis::Command& c) {
    if (silent) ended.wait();
    return is_slots(c) ? slots() : FakeRedis::bulk("a");
  });
  nodes = {a.host(), b.host()};
  RedisCluster cluster(a.server());
  EXPECT_EQ(ask(cluster, 0).texts[0], "a");
  silent = true;
  EXPECT_EQ(ask(cluster, 0, 1, 1, 30).status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(ask(cluster, 0, 1, 1, 30).status.code(), Code::kDeadlineExceeded)
      << "nobody has taken over yet";
  {
    const std::lock_guard lock(mu);
    nodes = {b.host()};
  }
  const Asked asked = ask(cluster, 0);
  end.set_value();
  ASSERT_OK(asked.status);
  EXPECT_EQ(asked.texts[0], "b");
}

TEST(RedisCluster, RefusalsAndOddRepliesAreErrorsWithAName) {
  std::string reply;
  FakeRedis server(
      [&](const FakeRedis::Command& c) { return is_slots(c) ? FakeRedis::no_cluster() : reply; });
  for (const auto& [text, code] : std::vector<std::pair<std::string, Code>>{
           {"-CLUSTERDOWN The cluster is down\r\n", Code::kUnavailable},
           {"-LOADING Redis is loading\r\n", Code::kUnavailable},
           {"-OOM command not allowed\r\n", Code::kResourceExhausted},
           {"-NOPERM no permissions\r\n", Code::kFailedPrecondition},
           {"-NOAUTH Authentication required\r\n", Code::kFailedPrecondition},
           {"-MOVED somewhere\r\n", Code::kIo},
           {"-MOVED 5 h:99999\r\n", Code::kIo},
           {"bytes of another protocol\r\n", Code::kIo}}) {
    reply = text;
    RedisCluster cluster(server.server());
    EXPECT_EQ(ask(cluster, 5).status.code(), code) << text;
  }
}

TEST(RedisCluster, OddTopologiesAreRefused) {
  std::string reply;
  FakeRedis server([&](const FakeRedis::Command&) { return reply; });
  for (const auto* odd :
       {"*0\r\n", "+OK\r\n", "*1\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:99999\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:5\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n"}) {
    reply = odd;
    RedisCluster cluster(server.server());
    EXPECT_FALSE(ask(cluster, 5).status.ok()) << odd;
  }
}

TEST(RedisCluster, ASlotThatNobodyHasIsAnErrorAndTheNextCallLooksAgain) {
  std::vector<RemoteHost> nodes;
  std::atomic<bool> whole = false;
  FakeRedis server([&](const FakeRedis::Command& c) -> std::string {
    if (!is_slots(c)) return FakeRedis::bulk("v");
    if (whole) return FakeRedis::slots(nodes);
    return "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n" + FakeRedis::bulk("127.0.0.1") + ":" +
           std::to_string(nodes[0].port) + "\r\n";
  });
  nodes = {server.host()};
  RedisCluster cluster(server.server());
  EXPECT_EQ(ask(cluster, 500).status.code(), Code::kUnavailable);
  whole = true;
  EXPECT_OK(ask(cluster, 500).status);
}

TEST(RedisCluster, ASilentServerCostsTheDeadlineAndNoMore) {
  std::promise<void> end;
  std::shared_future<void> ended = end.get_future().share();
  FakeRedis server([&](const FakeRedis::Command& c) -> std::optional<std::string> {
    if (is_slots(c)) return FakeRedis::no_cluster();
    ended.wait();
    return std::nullopt;
  });
  RedisCluster cluster(server.server());
  EXPECT_EQ(ask(cluster, 5, 1, 1, 30).status.code(), Code::kDeadlineExceeded);
  end.set_value();
}

TEST(RedisCluster, AReplyThatIsCutShortIsALostConnection) {
  FakeRedis server([&](const FakeRedis::Command& c) -> std::optional<std::string> {
    if (is_slots(c)) return FakeRedis::no_cluster();
    if (c[1] == "k0") return "$10\r\nabc";
    return std::nullopt;
  });
  RedisCluster cluster(server.server());
  EXPECT_EQ(ask(cluster, 5, 2).status.code(), Code::kUnavailable);
}

TEST(RedisCluster, StoppingEndsACallThatWaits) {
  std::promise<void> begun, end;
  std::shared_future<void> ended = end.get_future().share();
  std::once_flag once;
  FakeRedis server([&](const FakeRedis::Command& c) -> std::optional<std::string> {
    if (is_slots(c)) return FakeRedis::no_cluster();
    std::call_once(once, [&] { begun.set_value(); });
    ended.wait();
    return std::nullopt;
  });
  RedisCluster cluster(server.server());
  std::thread caller(
      [&] { EXPECT_EQ(ask(cluster, 5, 1, 1, 600'000).status.code(), Code::kUnavailable); });
  begun.get_future().wait();
  cluster.stop();
  caller.join();
  end.set_value();
}

TEST(RedisCluster, UserAndPasswordAreSentAndARefusalNamesTheSetting) {
  std::mutex mu;
  FakeRedis::Command login;
  FakeRedis server([&](const FakeRedis::Command& c) -> std::string {
    if (c[0] == "AUTH") {
      const std::lock_guard lock(mu);
      login = c;
      return c.back() == "right" ? "+OK\r\n" : "-WRONGPASS invalid username-password pair\r\n";
    }
    return is_slots(c) ? FakeRedis::no_cluster() : FakeRedis::bulk("v");
  });
  RedisServer named = server.server();
  named.user = "quire";
  named.password = "right";
  RedisCluster cluster(named);
  EXPECT_OK(ask(cluster, 5).status);
  EXPECT_EQ(login, (FakeRedis::Command{"AUTH", "quire", "right"}));
  named.user.clear();
  named.password = "hunter2";
  RedisCluster refused(named);
  const Status s = ask(refused, 5).status;
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.field(), "remote.url");
  EXPECT_EQ(s.message().find("hunter2"), std::string::npos);
  EXPECT_EQ(login, (FakeRedis::Command{"AUTH", "hunter2"}));
}

TEST(RedisCluster, ReplicasAreReadAfterTheyWereToldSo) {
  std::vector<RemoteHost> nodes;
  std::mutex mu;
  std::vector<std::string> seen;
  FakeRedis replica([&](const FakeRedis::Command& c) -> std::string {
    const std::lock_guard lock(mu);
    seen.push_back(c[0]);
    return c[0] == "READONLY" ? "+OK\r\n" : FakeRedis::bulk("replica " + c[1]);
  });
  FakeRedis owner([&](const FakeRedis::Command& c) {
    return is_slots(c) ? slots_with_replicas(nodes) : FakeRedis::bulk("owner " + c[1]);
  });
  nodes = {owner.host(), replica.host()};
  RedisCluster cluster(owner.server());
  const Asked asked = ask_replica(cluster, 7, 3);
  ASSERT_OK(asked.status);
  EXPECT_EQ(asked.texts, (std::vector<std::string>{"replica k0", "replica k1", "replica k2"}));
  EXPECT_EQ(seen, (std::vector<std::string>{"READONLY", "GET", "GET", "GET"}));
  EXPECT_EQ(ask(cluster, 7).texts[0], "owner k0");
  replica.hang_up();
  EXPECT_OK(ask_replica(cluster, 7).status) << "on a new connection";
}

TEST(RedisCluster, ASlotHasOneReplicaAndAnotherWhileThatOneCannotBeRead) {
  std::vector<RemoteHost> nodes;
  const auto answer = [](const std::string& name) {
    return [name](const FakeRedis::Command&) { return FakeRedis::bulk(name); };
  };
  auto one = std::make_unique<FakeRedis>(answer("one"));
  FakeRedis two(answer("two"));
  FakeRedis owner([&](const FakeRedis::Command&) { return slots_with_replicas(nodes); });
  nodes = {owner.host(), one->host(), two.host()};
  RedisCluster cluster(owner.server());
  EXPECT_EQ(ask_replica(cluster, 6).texts[0], "one");
  EXPECT_EQ(ask_replica(cluster, 6).texts[0], "one") << "values of one segment";
  EXPECT_EQ(ask_replica(cluster, 7).texts[0], "two");
  one.reset();
  EXPECT_EQ(ask_replica(cluster, 6).status.code(), Code::kUnavailable);
  EXPECT_EQ(ask_replica(cluster, 6).texts[0], "two");
}

TEST(RedisCluster, WithoutAReplicaOrItsRightNothingIsFound) {
  FakeRedis single([&](const FakeRedis::Command& c) {
    return is_slots(c) ? FakeRedis::no_cluster() : FakeRedis::bulk("v");
  });
  RedisCluster alone(single.server());
  EXPECT_EQ(ask_replica(alone, 7).status.code(), Code::kNotFound);
  std::vector<RemoteHost> nodes;
  FakeRedis replica(
      [](const FakeRedis::Command&) { return std::string("-NOPERM no permissions\r\n"); });
  FakeRedis owner([&](const FakeRedis::Command&) { return slots_with_replicas(nodes); });
  nodes = {owner.host(), replica.host()};
  RedisCluster cluster(owner.server());
  EXPECT_EQ(ask_replica(cluster, 7).status.code(), Code::kNotFound);
}

TEST(RedisCluster, AReplicaOfOtherSlotsIsAnErrorAndIsForgotten) {
  std::vector<RemoteHost> nodes;
  std::atomic<int> learned{0};
  FakeRedis replica([](const FakeRedis::Command& c) {
    return std::string(c[0] == "READONLY" ? "+OK\r\n" : "-MOVED 7 127.0.0.1:1\r\n");
  });
  FakeRedis owner([&](const FakeRedis::Command&) {
    ++learned;
    return slots_with_replicas(nodes);
  });
  nodes = {owner.host(), replica.host()};
  RedisCluster cluster(owner.server());
  EXPECT_EQ(ask_replica(cluster, 7).status.code(), Code::kUnavailable);
  EXPECT_EQ(ask_replica(cluster, 7).status.code(), Code::kNotFound) << "it is left alone";
  EXPECT_EQ(learned, 2);
}

TEST(RedisCluster, ASingleServerNamesItsReplicas) {
  FakeRedis replica([](const FakeRedis::Command& c) {
    return c[0] == "READONLY" ? FakeRedis::no_cluster() : FakeRedis::bulk("replica");
  });
  FakeRedis master(
      [&](const FakeRedis::Command& c) -> std::string {
        if (is_slots(c)) return FakeRedis::no_cluster();
        if (c[0] != "ROLE") return FakeRedis::bulk("master");
        return "*3\r\n" + FakeRedis::bulk("master") + ":5\r\n*1\r\n*3\r\n" +
               FakeRedis::bulk("127.0.0.1") + FakeRedis::bulk(std::to_string(replica.host().port)) +
               FakeRedis::bulk("5");
      },
      true);
  RedisCluster cluster(master.server());
  EXPECT_EQ(ask_replica(cluster, 7).texts[0], "replica");
  EXPECT_EQ(ask(cluster, 7).texts[0], "master");
}

/// A sentinel that names one server as the master "m".
class Sentinel {
 public:
  explicit Sentinel(RemoteHost master) : master_(std::move(master)) {}
  void name(const RemoteHost& master) {
    const std::lock_guard lock(mu_);
    master_ = master;
  }
  RedisServer server(const std::string& master = "m") const {
    RedisServer out = redis_.server();
    out.sentinel_master = master;
    return out;
  }
  FakeRedis::Command login() {
    const std::lock_guard lock(mu_);
    return login_;
  }

 private:
  std::string answer(const FakeRedis::Command& c) {
    const std::lock_guard lock(mu_);
    if (c[0] == "AUTH") return login_ = c, "+OK\r\n";
    if (c[0] != "SENTINEL") return "-ERR not of a sentinel\r\n";
    if (c[2] != "m")
      return c[1] == "REPLICAS" ? "-ERR No such master with that name\r\n" : "*-1\r\n";
    if (c[1] == "GET-MASTER-ADDR-BY-NAME")
      return "*2\r\n" + FakeRedis::bulk(master_.name) +
             FakeRedis::bulk(std::to_string(master_.port));
    const auto replica = [](const std::string& port, const std::string& flags,
                            const std::string& status) {
      return "*8\r\n" + FakeRedis::bulk("ip") + FakeRedis::bulk("127.0.0.1") +
             FakeRedis::bulk("port") + FakeRedis::bulk(port) + FakeRedis::bulk("flags") +
             FakeRedis::bulk(flags) + FakeRedis::bulk("master-link-status") +
             FakeRedis::bulk(status);
    };
    return "*3\r\n" + replica("1", "slave", "err") +
           replica("2", "s_down,slave,disconnected", "ok") +
           replica(std::to_string(master_.port), "slave", "ok");
  }

  std::mutex mu_;
  RemoteHost master_;         // guarded by mu_
  FakeRedis::Command login_;  // guarded by mu_
  FakeRedis redis_{[this](const FakeRedis::Command& c) { return answer(c); }};
};

TEST(RedisCluster, TheMasterIsTheOneThatSentinelsName) {
  const auto answer = [](const std::string& name) {
    return [name](const FakeRedis::Command& c) -> std::string {
      if (is_slots(c)) return "-ERR the topology is the sentinels' to tell\r\n";
      return FakeRedis::bulk(name);
    };
  };
  auto a = std::make_unique<FakeRedis>(answer("a"));
  FakeRedis b(answer("b"));
  Sentinel sentinel(a->host());
  RedisCluster cluster(sentinel.server());
  EXPECT_EQ(ask(cluster, 5).texts[0], "a");
  EXPECT_EQ(ask_replica(cluster, 5).texts[0], "a") << "the replica that follows is read";
  sentinel.name(b.host());
  a.reset();
  const Asked asked = ask(cluster, 5);
  ASSERT_OK(asked.status);
  EXPECT_EQ(asked.texts[0], "b");
}

TEST(RedisCluster, AMasterThatBecameAReplicaIsLookedForAgain) {
  std::atomic<bool> demoted = false;
  FakeRedis a([&](const FakeRedis::Command&) {
    return demoted ? "-READONLY You can't write against a read only replica.\r\n"
                   : FakeRedis::bulk("a");
  });
  FakeRedis b([](const FakeRedis::Command&) { return FakeRedis::bulk("b"); });
  Sentinel sentinel(a.host());
  RedisCluster cluster(sentinel.server());
  EXPECT_EQ(ask(cluster, 5).texts[0], "a");
  demoted = true;
  sentinel.name(b.host());
  EXPECT_EQ(ask(cluster, 5).status.code(), Code::kUnavailable);
  EXPECT_EQ(ask(cluster, 5).texts[0], "b");
}

TEST(RedisCluster, AMasterThatIsSilentIsLookedForAgain) {
  std::promise<void> end;
  std::shared_future<void> ended = end.get_future().share();
  FakeRedis a([&](const FakeRedis::Command&) -> std::optional<std::string> {
    ended.wait();
    return std::nullopt;
  });
  FakeRedis b([](const FakeRedis::Command&) { return FakeRedis::bulk("b"); });
  Sentinel sentinel(a.host());
  RedisCluster cluster(sentinel.server());
  EXPECT_EQ(ask(cluster, 5, 1, 1, 100).status.code(), Code::kDeadlineExceeded);
  sentinel.name(b.host());
  const Asked asked = ask(cluster, 5);
  end.set_value();
  ASSERT_OK(asked.status);
  EXPECT_EQ(asked.texts[0], "b");
}

TEST(RedisCluster, SentinelsHaveALoginOfTheirOwnAndMustKnowTheMaster) {
  FakeRedis a([](const FakeRedis::Command&) { return FakeRedis::bulk("a"); });
  Sentinel sentinel(a.host());
  RedisServer server = sentinel.server();
  server.sentinel_password = "q";
  RedisCluster cluster(server);
  EXPECT_OK(ask(cluster, 5).status);
  EXPECT_EQ(sentinel.login(), (FakeRedis::Command{"AUTH", "q"}));
  RedisCluster lost(sentinel.server("other"));
  const Status s = ask(lost, 5).status;
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_NE(s.message().find("'other'"), std::string::npos);
}

}  // namespace
}  // namespace quire
