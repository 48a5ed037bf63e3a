// Services that share KV through Redis: what one has computed, another does not compute. Skipped
// where there is no redis-server (Debian's package of that name).
#include <boost/json/serialize.hpp>
#include <memory>

#include "tests/support/harness/redis_process.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

void post(const ServiceProcess& service, const std::string& id, unsigned seed,
          const std::string& kv = "eager") {
  const auto r = service.call("POST", "/v1/documents?wait=true",
                              R"({"id":")" + id + R"(","kv":")" + kv + R"(","text":)" +
                                  quoted(sample_text(seed, 1500)) + "}");
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
    flags = {"--remote.url=" + redis->url(), "--remote.write=through", "--remote.timeout_ms=20000"};
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

TEST_F(Remote, AQueryTakesItFromTheSharedTierWhereItHasTime) {
  // A query waits no longer than computing would take, which on a busy machine may be too short.
  bool found = false;
  for (unsigned seed = 10; seed < 20 && !found; ++seed) {
    const std::string id = "d" + std::to_string(seed);
    post(a, id, seed);
    post(b, id, seed, "lazy");
    const auto reply = ask(b, id, "exact");
    EXPECT_EQ(text_at(reply, "answer"), text_at(ask(b, id, "recompute"), "answer"));
    found = int_at(reply, "cache.tiers.remote.blocks") > 0;
    if (!found) continue;
    EXPECT_TRUE(at(reply, "cache.misses").as_array().empty());
    EXPECT_GT(int_at(reply, "cache.tiers.remote.bytes"), 0);
    const auto again = ask(b, id, "exact");
    EXPECT_EQ(int_at(again, "cache.tiers.remote.blocks"), 0) << "now it is here";
    EXPECT_EQ(text_at(again, "answer"), text_at(reply, "answer"));
  }
  EXPECT_TRUE(found);
}

TEST_F(Remote, ALostServerIsADegradedCheckAndNothingElse) {
  post(a, "d", 1);
  redis->end();
  for (unsigned seed = 2; seed < 12; ++seed) post(b, "d" + std::to_string(seed), seed);
  EXPECT_EQ(text_at(ask(b, "d5", "exact"), "answer"), text_at(ask(b, "d5", "recompute"), "answer"));
  const auto health = b.json("GET", "/health");
  EXPECT_EQ(text_at(health, "status"), "ok");
  EXPECT_EQ(text_at(health, "checks.remote"), "degraded");
}

}  // namespace
}  // namespace quire::testing
