// Services that share KV through Redis: what one has computed, another does not compute. Skipped
// where there is no redis-server (Debian's package of that name).
#include <boost/json/serialize.hpp>
#include <chrono>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/support/harness/redis_process.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

void post(const ServiceProcess& service, const std::string& id, unsigned seed,
          const std::string& kv = "eager", int words = 1500) {
  const auto r = service.call("POST", "/v1/documents?wait=true",
                              R"({"id":")" + id + R"(","kv":")" + kv + R"(","text":)" +
                                  quoted(sample_text(seed, words)) + "}");
  ASSERT_EQ(r.status, 200) << r.body;
}

json::value ask(const ServiceProcess& service, const std::string& id, const std::string& strategy) {
  int status = 0;
  const auto r = service.json("POST", "/v1/query",
                              R"({"query":"What was built by the guild?","document_ids":[")" + id +
                                  R"("],"max_tokens":16,"cache":{"strategy":")" + strategy + "\"}}",
                              {}, &status);
  EXPECT_EQ(status, 200) << json::serialize(r);
  return r;
}

double metric(const ServiceProcess& service, const std::string& series) {
  const std::string text = service.call("GET", "/metrics").body;
  const std::size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

class Remote : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::redis_program().empty()) GTEST_SKIP() << "there is no redis-server in PATH";
    redis = std::make_unique<test::RedisProcess>();
    flags = {"--remote.url=" + redis->url(), "--remote.write=through", "--remote.timeout_ms=20000",
             "--remote.lease_ms=120000"};
    a.start(folder.path() / "a", flags);
    b.start(folder.path() / "b", flags);
  }
  TempFolder folder;
  std::unique_ptr<test::RedisProcess> redis;
  std::vector<std::string> flags;
  ServiceProcess a, b;
};

TEST_F(Remote, ADocumentThatAnotherServiceHasIsNotComputed) {
  post(a, "d", 1);
  EXPECT_GT(metric(a, R"(quire_remote_written_contexts_total{tier="redis"})"), 0);
  post(b, "d", 1);
  EXPECT_GT(metric(b, R"(quire_remote_contexts_total{tier="redis",outcome="hit"})"), 0);
  EXPECT_EQ(metric(b, R"(quire_remote_contexts_total{tier="redis",outcome="miss"})"), 0);
  const auto document = b.json("GET", "/v1/documents/d");
  EXPECT_EQ(text_at(document, "cache.state"), "resident");
  EXPECT_EQ(int_at(document, "cache.tiers.remote"), int_at(document, "cache.blocks"));
  const double computed = metric(b, "quire_ingest_tokens_total");
  EXPECT_EQ(metric(b, "quire_deduplicated_tokens_total"), computed) << "none was computed";
  const auto here = ask(b, "d", "exact"), there = ask(a, "d", "exact"),
             anew = ask(b, "d", "recompute");
  EXPECT_TRUE(at(here, "cache.misses").as_array().empty());
  EXPECT_EQ(text_at(here, "answer"), text_at(there, "answer"));
  EXPECT_EQ(text_at(here, "answer"), text_at(anew, "answer"));
  EXPECT_EQ(text_at(b.json("GET", "/health"), "checks.remote"), "ok");
}

/// Returns the tokens that a service has computed for documents.
double computed_tokens(const ServiceProcess& service) {
  return metric(service, "quire_ingest_tokens_total") -
         metric(service, "quire_deduplicated_tokens_total");
}

TEST_F(Remote, ADocumentPostedToBothServicesAtOnceIsComputedOnce) {
  std::thread at_a([&] { post(a, "d", 3, "eager", 6000); });
  post(b, "d", 3, "eager", 6000);
  at_a.join();
  const auto document = b.json("GET", "/v1/documents/d");
  EXPECT_GT(int_at(document, "chunks"), 3);
  EXPECT_EQ(text_at(document, "cache.state"), "resident");
  EXPECT_EQ(text_at(a.json("GET", "/v1/documents/d"), "cache.state"), "resident");
  EXPECT_EQ(computed_tokens(a) + computed_tokens(b),
            static_cast<double>(int_at(document, "tokens")));
  double own = 0, spared = 0;
  for (const ServiceProcess* service : {&a, &b}) {
    own += metric(*service, R"(quire_remote_turns_total{outcome="own"})");
    spared += metric(*service, R"(quire_remote_turns_total{outcome="spared"})");
    EXPECT_EQ(metric(*service, R"(quire_remote_turns_total{outcome="given_up"})"), 0);
    EXPECT_EQ(metric(*service, "quire_remote_turns_waiting"), 0);
  }
  EXPECT_EQ(own, static_cast<double>(int_at(document, "chunks")));
  EXPECT_GT(spared, 0);
  const auto here = ask(a, "d", "exact"), there = ask(b, "d", "exact"),
             anew = ask(b, "d", "recompute");
  EXPECT_EQ(text_at(here, "answer"), text_at(anew, "answer"));
  EXPECT_EQ(text_at(there, "answer"), text_at(anew, "answer"));
}

TEST_F(Remote, WhoWaitsForAServiceThatIsKilledComputesItself) {
  ServiceProcess c, d;
  flags.back() = "--remote.lease_ms=1000";
  c.start(folder.path() / "c", flags);
  d.start(folder.path() / "d", flags);
  const std::string body = R"({"id":"d","text":)" + quoted(sample_text(4, 30'000)) + "}";
  ASSERT_EQ(c.call("POST", "/v1/documents", body).status, 202);
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (metric(c, "quire_remote_leases_held") < 1 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_GE(metric(c, "quire_remote_leases_held"), 1);
  c.kill();
  EXPECT_EQ(d.call("POST", "/v1/documents?wait=true", body).status, 200);
  EXPECT_EQ(text_at(d.json("GET", "/v1/documents/d"), "cache.state"), "resident");
  EXPECT_GT(metric(d, R"(quire_remote_turns_total{outcome="own"})"), 0);
}

TEST_F(Remote, AQueryTakesItFromTheSharedTierWhereItHasTime) {
  // A query waits no longer than computing would take, which on a busy machine may be too short.
  bool found = false;
  for (unsigned seed = 10; seed < 90 && !found; ++seed) {
    const std::string id = "d" + std::to_string(seed);
    post(a, id, seed);
    post(b, id, seed, "lazy");
    const auto reply = ask(b, id, "exact");
    EXPECT_EQ(text_at(reply, "answer"), text_at(ask(b, id, "recompute"), "answer"));
    // Some of its contexts may be in time and others not.
    found = int_at(reply, "cache.tiers.remote.blocks") > 0 &&
            at(reply, "cache.misses").as_array().empty();
    if (!found) continue;
    EXPECT_GT(int_at(reply, "cache.tiers.remote.bytes"), 0);
    const auto stats = b.json("GET", "/v1/admin/cache/stats");
    EXPECT_EQ(text_at(stats, "tiers.2.name"), "remote");
    EXPECT_EQ(text_at(stats, "tiers.2.state"), "ok");
    EXPECT_GT(int_at(stats, "tiers.2.hit_tokens"), 0);
    EXPECT_GT(int_at(stats, "tiers.2.read_bytes"), 0);
    const auto again = ask(b, id, "exact");
    EXPECT_EQ(int_at(again, "cache.tiers.remote.blocks"), 0) << "now it is here";
    EXPECT_EQ(text_at(again, "answer"), text_at(reply, "answer"));
  }
  EXPECT_TRUE(found);
}

TEST_F(Remote, EncryptedKvIsSharedByThoseWhoHaveTheKey) {
  ServiceProcess c, d, stranger;
  for (const std::string name : {"team", "other"}) {
    std::ofstream(folder.path() / (name + ".key")) << std::string(64, name[0] == 't' ? '1' : '2');
    std::ofstream(folder.path() / (name + ".toml"))
        << "[\"*\"]\nfile = '" << (folder.path() / (name + ".key")).string() << "'\n";
  }
  const auto with_keys = [&](const std::string& name) {
    std::vector<std::string> out = flags;
    out.push_back("--remote.keys_file=" + (folder.path() / (name + ".toml")).string());
    return out;
  };
  c.start(folder.path() / "c", with_keys("team"));
  d.start(folder.path() / "d", with_keys("team"));
  stranger.start(folder.path() / "s", with_keys("other"));
  post(c, "d", 5);
  post(d, "d", 5);
  EXPECT_EQ(computed_tokens(d), 0);
  EXPECT_EQ(text_at(ask(d, "d", "exact"), "answer"), text_at(ask(d, "d", "recompute"), "answer"));
  post(stranger, "d", 5);
  EXPECT_GT(computed_tokens(stranger), 0);
  EXPECT_EQ(metric(stranger, R"(quire_remote_contexts_total{tier="redis",outcome="bad"})"), 0);
  ServiceProcess later;
  later.start(folder.path() / "l", with_keys("team"));
  post(later, "d", 5);
  EXPECT_EQ(computed_tokens(later), 0) << "the stranger's KV has another name";
}

TEST_F(Remote, ALostServerIsADegradedCheckAndNothingElse) {
  post(a, "d", 1);
  redis->end();
  for (unsigned seed = 2; seed < 12; ++seed) post(b, "d" + std::to_string(seed), seed);
  EXPECT_EQ(text_at(ask(b, "d5", "exact"), "answer"), text_at(ask(b, "d5", "recompute"), "answer"));
  const auto health = b.json("GET", "/health");
  EXPECT_EQ(text_at(health, "status"), "ok");
  EXPECT_EQ(text_at(health, "checks.remote"), "degraded");
  EXPECT_EQ(text_at(b.json("GET", "/v1/admin/cache/stats"), "tiers.2.state"), "degraded");
}

}  // namespace
}  // namespace quire::testing
