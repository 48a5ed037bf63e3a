// The admin endpoints of a running service, and `quire admin`.
#include <boost/json/serialize.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cachestore/format/key.h"
#include "server/service/route_table.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

class AdminTest : public ServiceTest {
 protected:
  static void post(const std::string& id, unsigned seed, const std::string& ns = "default",
                   int words = 150) {
    const auto r = service->call(
        "POST", "/v1/documents?wait=true",
        R"({"id":")" + id + R"(","text":)" + quoted(sample_text(seed, words)) + "}",
        {"X-Namespace: " + ns});
    ASSERT_EQ(r.status, 200) << r.body;
  }
  static json::value admin(const std::string& method, const std::string& path,
                           const std::string& body = {}, int expected = 200,
                           const std::vector<std::string>& headers = {}) {
    int status = 0;
    auto v = service->json(method, "/v1/admin/" + path, body, headers, &status);
    EXPECT_EQ(status, expected) << json::serialize(v);
    return v;
  }
  /// Evicts until nothing is kept in use. KV stays while something holds it, as the memory tier
  /// does while it copies it.
  static json::value evict(const std::string& body, const std::vector<std::string>& headers = {}) {
    for (int i = 0;; ++i) {
      auto report = admin("POST", "cache/evict", body, 200, headers);
      if (i == 600 || int_at(report, "kept_in_use") == 0) return report;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  static json::value ask(const std::string& id, const std::string& ns = "default") {
    int status = 0;
    auto v = service->json("POST", "/v1/query",
                           R"({"query":"What was built?","document_ids":[")" + id +
                               R"("],"max_tokens":4,"cache":{"strategy":"reuse"}})",
                           {"X-Namespace: " + ns}, &status);
    EXPECT_EQ(status, 200) << json::serialize(v);
    return v;
  }
  static std::string cache_state(const std::string& id, const std::string& ns = "default") {
    return text_at(service->json("GET", "/v1/documents/" + id, {}, {"X-Namespace: " + ns}),
                   "cache.state");
  }
  static std::string server_flag() { return "http://127.0.0.1:" + std::to_string(service->port()); }
};

TEST_F(AdminTest, StatsCountWhatQueriesFound) {
  post("stats", 11);
  const auto before = admin("GET", "cache/stats");
  (void)ask("stats");
  const auto after = admin("GET", "cache/stats?by=namespace");
  EXPECT_EQ(text_at(after, "tiers.0.name"), "dram");
  EXPECT_EQ(text_at(after, "tiers.1.name"), "disk");
  EXPECT_GT(int_at(after, "tiers.0.lookup_tokens"), int_at(before, "tiers.0.lookup_tokens"));
  EXPECT_GT(int_at(after, "tiers.0.hit_tokens"), int_at(before, "tiers.0.hit_tokens"));
  EXPECT_GT(int_at(after, "saved.prefill_tokens"), int_at(before, "saved.prefill_tokens"));
  EXPECT_EQ(text_at(after, "namespaces.0.name"), "default");
  EXPECT_GT(int_at(after, "namespaces.0.evictable.bytes"), 0);
  EXPECT_EQ(text_at(admin("GET", "cache/stats?by=colour", {}, 400), "error.param"), "by");
}

TEST_F(AdminTest, EvictTakesKvAndTheAnswerStays) {
  post("gone", 12);
  const auto before = ask("gone");
  EXPECT_GT(int_at(before, "cache.tiers.dram.blocks"), 0);
  const auto would = admin("POST", "cache/evict",
                           R"({"tier":"dram","document_ids":["gone"],"dry_run":true})");
  EXPECT_GT(int_at(would, "blocks"), 0);
  const auto did = evict(R"({"tier":"dram","document_ids":["gone"]})");
  EXPECT_EQ(int_at(did, "blocks"), int_at(would, "blocks"));
  EXPECT_GT(int_at(ask("gone"), "cache.tiers.disk.blocks"), 0) << "read back from disk";
  (void)evict(R"({"tier":"disk","document_ids":["gone"]})");
  EXPECT_EQ(cache_state("gone"), "evicted");
  const auto after = ask("gone");
  EXPECT_EQ(text_at(after, "answer"), text_at(before, "answer"));
  EXPECT_EQ(text_at(after, "cache.misses.0.reason"), "evicted");
  EXPECT_EQ(
      text_at(admin("POST", "cache/evict", R"({"document_ids":["nobody"]})", 404), "error.code"),
      "document_not_found");
  EXPECT_EQ(text_at(admin("POST", "cache/evict", R"({"tier":"disk","document_ids":[]})", 400),
                    "error.param"),
            "document_ids");
  EXPECT_EQ(text_at(admin("POST", "cache/evict", R"({"tier":"gpu"})", 400), "error.param"), "tier");
  EXPECT_EQ(text_at(admin("POST", "cache/evict", R"({"older_than_secods":1})", 400), "error.code"),
            "unknown_field");
}

TEST_F(AdminTest, WarmingBringsKvIntoMemoryWhereThatIsAskedFor) {
  post("warm", 21);
  (void)evict(R"({"tier":"dram","document_ids":["warm"]})");
  const auto in_memory = [] {
    return int_at(service->json("GET", "/v1/documents/warm"), "cache.tiers.dram");
  };
  EXPECT_EQ(in_memory(), 0);
  int status = 0;
  (void)service->json("POST", "/v1/documents/warm/warm", R"({"tier":"dram"})", {}, &status);
  EXPECT_EQ(status, 202);
  for (int i = 0; i < 600 && in_memory() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GT(in_memory(), 0);
}

TEST_F(AdminTest, EvictingANamespaceLeavesTheOthers) {
  post("here", 13, "one");
  post("there", 14, "two");
  (void)evict(R"({"tier":"disk"})", {"X-Namespace: one"});
  EXPECT_EQ(cache_state("here", "one"), "evicted");
  EXPECT_EQ(cache_state("there", "two"), "resident");
}

TEST_F(AdminTest, PinnedDocumentsStayUntilForcedOrUnpinned) {
  post("pinned", 15);
  const auto pinned = admin("POST", "cache/pin", R"({"document_ids":["pinned"],"tier":"dram"})");
  EXPECT_GT(int_at(pinned, "pinned_bytes"), 0);
  EXPECT_EQ(int_at(pinned, "documents"), 1);
  EXPECT_GT(int_at(admin("GET", "cache/stats"), "tiers.1.pinned_bytes"), 0);
  const auto kept = evict(R"({"tier":"disk","document_ids":["pinned"]})");
  EXPECT_EQ(int_at(kept, "kept_pinned"),
            int_at(service->json("GET", "/v1/documents/pinned"), "chunks"));
  EXPECT_EQ(cache_state("pinned"), "resident");
  EXPECT_EQ(int_at(admin("POST", "cache/unpin", R"({"document_ids":["pinned"],"tier":"dram"})"),
                   "pinned_bytes"),
            0);
  (void)evict(R"({"tier":"disk","document_ids":["pinned"]})");
  EXPECT_EQ(cache_state("pinned"), "evicted");
  EXPECT_EQ(text_at(admin("POST", "cache/pin", R"({"document_ids":["pinned","nobody"]})", 404),
                    "error.param"),
            "document_ids[1]");
  EXPECT_EQ(text_at(admin("POST", "cache/pin", R"({})", 400), "error.param"), "document_ids");
}

TEST(AdminLimits, PinsHoldNoMoreThanTheirShare) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store",
                {"--cache.max_pinned_ratio=0", "--disk.max_bytes=1073741824"});
  ASSERT_EQ(service
                .call("POST", "/v1/documents?wait=true",
                      R"({"id":"d","text":)" + quoted(sample_text(1, 100)) + "}")
                .status,
            200);
  int status = 0;
  const auto r = service.json("POST", "/v1/admin/cache/pin",
                              R"({"document_ids":["d"],"tier":"dram"})", {}, &status);
  EXPECT_EQ(status, 507);
  EXPECT_EQ(text_at(r, "error.code"), "cache_full");
  const auto patched = service.json("PATCH", "/v1/documents/d", R"({"pinned":true})", {}, &status);
  EXPECT_EQ(status, 507);
  EXPECT_EQ(text_at(patched, "error.code"), "cache_full");
  EXPECT_EQ(text_at(patched, "error.param"), "pinned");
  const auto posted = service.json(
      "POST", "/v1/documents?wait=true",
      R"({"id":"e","pinned":true,"text":)" + quoted(sample_text(2, 100)) + "}", {}, &status);
  EXPECT_EQ(status, 507);
  EXPECT_EQ(text_at(posted, "error.code"), "cache_full");
  EXPECT_EQ(text_at(posted, "error.param"), "pinned");
  EXPECT_EQ(service.call("GET", "/v1/documents/e").status, 404);
  EXPECT_EQ(service.stop(), 0);
}

TEST_F(AdminTest, FlushAndVerify) {
  post("sound", 16);
  EXPECT_TRUE(at(admin("POST", "cache/flush"), "flushed").as_bool());
  const auto report = admin("POST", "cache/verify");
  EXPECT_TRUE(at(report, "complete").as_bool());
  EXPECT_GT(int_at(report, "checked"), 0);
  EXPECT_EQ(int_at(report, "bad"), 0) << json::serialize(report);
  EXPECT_EQ(int_at(report, "repaired"), 0);
}

TEST_F(AdminTest, PacksMoveDocumentsWithTheirKv) {
  post("p1", 17, "source");
  post("p2", 18, "source");
  const auto before = ask("p1", "source");
  const auto pack = service->call("POST", "/v1/admin/cache/export", R"({"document_ids":[]})",
                                  {"X-Namespace: source"});
  ASSERT_EQ(pack.status, 200) << pack.body;
  ASSERT_GT(pack.body.size(), 10000u);
  const auto import = [&](const std::string& body, const std::string& ns) {
    return service->call("POST", "/v1/admin/cache/import?mode=merge", body, {"X-Namespace: " + ns},
                         "application/vnd.quire.pack");
  };
  auto r = import(pack.body, "target");
  ASSERT_EQ(r.status, 200) << r.body;
  auto report = parse(r.body);
  EXPECT_EQ(int_at(report, "documents"), 2);
  EXPECT_GT(int_at(report, "blocks"), 0);
  EXPECT_EQ(cache_state("p1", "target"), "resident");
  const auto after = ask("p1", "target");
  EXPECT_EQ(text_at(after, "answer"), text_at(before, "answer"));
  EXPECT_TRUE(at(after, "cache.misses").as_array().empty()) << json::serialize(at(after, "cache"));
  EXPECT_EQ(int_at(after, "usage.cache_details.reused_tokens"),
            int_at(before, "usage.cache_details.reused_tokens"));
  report = parse(import(pack.body, "target").body);
  EXPECT_EQ(int_at(report, "skipped"), 2);

  std::string damaged = pack.body;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  r = import(damaged, "untouched");
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(text_at(parse(r.body), "error.param"), "body");
  EXPECT_EQ(import(pack.body.substr(0, pack.body.size() - 1), "untouched").status, 400);
  EXPECT_TRUE(at(service->json("GET", "/v1/documents", {}, {"X-Namespace: untouched"}), "data")
                  .as_array()
                  .empty())
      << "nothing of a broken pack is stored";
  EXPECT_EQ(service->call("POST", "/v1/admin/cache/import", "{}").status, 415);
  EXPECT_EQ(service
                ->call("POST", "/v1/admin/cache/import?mode=replace", pack.body, {},
                       "application/vnd.quire.pack")
                .status,
            400);
  EXPECT_EQ(
      service->call("POST", "/v1/admin/cache/export", R"({"document_ids":["nobody"]})").status,
      404);
}

TEST_F(AdminTest, AnIdempotencyKeyHoldsForOnePack) {
  post("k1", 19, "keyed");
  post("k2", 20, "keyed");
  const auto pack_of = [](const std::string& id) {
    return service
        ->call("POST", "/v1/admin/cache/export", R"({"document_ids":[")" + id + "\"]}",
               {"X-Namespace: keyed"})
        .body;
  };
  const auto import = [](const std::string& body) {
    return service->call("POST", "/v1/admin/cache/import", body,
                         {"X-Namespace: keyed-target", "Idempotency-Key: pack-1"},
                         "application/vnd.quire.pack");
  };
  const std::string first = pack_of("k1"), second = pack_of("k2");
  EXPECT_EQ(import(first).status, 200);
  EXPECT_EQ(import(first).header("idempotency-replayed"), "true");
  const auto other = import(second);
  EXPECT_EQ(text_at(parse(other.body), "error.code"), "idempotency_mismatch") << other.body;
}

TEST_F(AdminTest, RequestsAreListedAndCancelled) {
  EXPECT_EQ(text_at(admin("POST", "requests/qry_nothing/cancel", {}, 404), "error.code"),
            "query_expired");
  const std::string body =
      R"({"query":"q","max_tokens":1900,"temperature":2,"seed":5,"stream":true,)"
      R"("timeout_ms":600000})";
  // On a busy machine an answer may complete before it can be cancelled; then the next one is
  // tried.
  bool cancelled = false;
  for (int attempt = 0; attempt < 30 && !cancelled; ++attempt) {
    LoopbackClient c(service->port(), 120);
    ASSERT_TRUE(
        c.send("POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
               "application/json\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body));
    ASSERT_NE(c.read_until("\"id\":\"qry_").find("\"id\":\"qry_"), std::string::npos);
    const json::value list = admin("GET", "requests");
    if (at(list, "data").as_array().empty()) continue;
    EXPECT_EQ(text_at(list, "data.0.namespace"), "default");
    const std::string path = "requests/" + text_at(list, "data.0.id") + "/cancel";
    EXPECT_TRUE(at(admin("GET", "requests", {}, 200, {"X-Namespace: elsewhere"}), "data")
                    .as_array()
                    .empty());
    EXPECT_TRUE(
        admin("POST", path, {}, 404, {"X-Namespace: elsewhere"}).as_object().contains("error"));
    const auto reply = service->call("POST", "/v1/admin/" + path);
    if (reply.status == 404) continue;
    ASSERT_EQ(reply.status, 200) << reply.body;
    std::string rest, more;
    while (rest.find("event: error") == std::string::npos &&
           rest.find("event: done") == std::string::npos && !(more = c.read_some()).empty())
      rest += more;
    cancelled = rest.find("event: error") != std::string::npos;
    if (cancelled) {
      EXPECT_NE(rest.find("request_cancelled"), std::string::npos) << rest;
    }
  }
  EXPECT_TRUE(cancelled);
}

TEST_F(AdminTest, EventsTellWhatChanges) {
  LoopbackClient c(service->port(), 60);
  ASSERT_TRUE(c.send("GET /v1/admin/events HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  ASSERT_NE(c.read_until("event: stats").find("event: stats"), std::string::npos);
  post("event", 19);
  EXPECT_EQ(int_at(evict(R"({"tier":"disk","document_ids":["event"]})"), "contexts"), 1);
  std::string seen;
  // Statistics come every second, so the loop needs a bound.
  for (int i = 0; i < 200 && (seen.find("event: job") == std::string::npos ||
                              seen.find("event: evict") == std::string::npos);
       ++i) {
    const std::string more = c.read_until("\n\n");
    if (more.empty()) break;
    seen += more;
  }
  EXPECT_NE(seen.find("event: job"), std::string::npos);
  EXPECT_NE(seen.find("event: evict"), std::string::npos);
}

TEST_F(AdminTest, ConfigShowsWhatIsInForce) {
  const auto config = admin("GET", "config");
  EXPECT_EQ(int_at(config, "cache.dram_bytes"), 67108864);
  const auto again = admin("POST", "reload");
  EXPECT_TRUE(at(again, "reloaded").as_bool());
  EXPECT_TRUE(at(again, "needs_restart").as_array().empty());
}

TEST_F(AdminTest, TheCommandLineDoesItToo) {
  post("cli", 20, "cli");
  const auto run = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {QUIRE_BINARY, "admin"});
    words.insert(words.begin() + 3, {"--server", server_flag(), "--namespace", "cli"});
    return run_process(words);
  };
  auto r = run({"stats", "--by", "namespace"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(text_at(parse(r.out), "object"), "cache.stats");
  const std::string file = (folder() / "cli.quirepack").string();
  // What a killed export left.
  std::ofstream(file + ".new") << "half a pack";
  std::filesystem::permissions(file + ".new", std::filesystem::perms(0644));
  r = run({"export", file});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(std::filesystem::status(file).permissions(), std::filesystem::perms(0600))
      << "texts are in it";
  r = run({"import", file});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(int_at(parse(r.out), "skipped"), 1) << r.out;
  r = run({"evict", "cli", "--tier", "disk", "--dry-run"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_GT(int_at(parse(r.out), "blocks"), 0);
  r = run({"verify"});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  r = run({"requests"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  r = run({"cancel", "qry_none"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("query_expired"), std::string::npos) << r.err;
  r = run({"pin", "nobody"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("document_not_found"), std::string::npos) << r.err;
  r = run({"export", "/nonexistent/file"});
  EXPECT_EQ(r.exit_code, 1);
  // A pack stays as it is until the next one is whole.
  const auto bytes = std::filesystem::file_size(file);
  r = run_process({QUIRE_BINARY, "admin", "export", "--server", "http://127.0.0.1:1", file});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(std::filesystem::file_size(file), bytes);
  EXPECT_FALSE(std::filesystem::exists(file + ".new"));
}

TEST(AdminScope, OthersMayNot) {
  TempFolder folder;
  const auto path = folder.path() / "keys.toml";
  std::ofstream(path)
      << "[[keys]]\nname = \"user\"\nsha256 = \"" << sha256("user-key").hex()
      << "\"\nscopes = [\"read\", \"write\", \"query\"]\nnamespaces = [\"default\"]\n"
      << "[[keys]]\nname = \"team\"\nsha256 = \"" << sha256("team-key").hex()
      << "\"\nscopes = [\"admin\"]\nnamespaces = [\"team\"]\n"
      << "[[keys]]\nname = \"operator\"\nsha256 = \"" << sha256("operator-key").hex()
      << "\"\nscopes = [\"admin\"]\nnamespaces = [\"*\"]\n";
  ServiceProcess service;
  service.start(folder.path() / "store",
                {"--auth.keys_file=" + path.string(), "--metrics.per_namespace=true"});
  const std::vector<std::string> user = {"api-key: user-key"}, team = {"api-key: team-key"};
  ASSERT_EQ(service
                .call("POST", "/v1/documents?wait=true",
                      R"({"id":"d","text":)" + quoted(sample_text(3, 100)) + "}", user)
                .status,
            200);
  for (const auto& route : all_routes()) {
    if (!route.pattern.starts_with("/v1/admin/")) continue;
    EXPECT_EQ(service.call(std::string(route.method), std::string(route.pattern), {}, user).status,
              403)
        << route.pattern;
  }
  // A key of one namespace evicts only that namespace.
  int status = 0;
  (void)service.json("POST", "/v1/admin/cache/evict", R"({"tier":"disk","force":true})", team,
                     &status);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(text_at(service.json("GET", "/v1/documents/d", {}, user), "cache.state"), "resident");
  // It sees no other namespace, and does not reach the whole service.
  const std::vector<std::string> all = {"api-key: operator-key"};
  const std::string stats = "/v1/admin/cache/stats?by=namespace";
  EXPECT_TRUE(at(service.json("GET", stats, {}, team), "namespaces").as_array().empty());
  EXPECT_EQ(text_at(service.json("GET", stats, {}, all), "namespaces.0.name"), "default");
  EXPECT_EQ(service.call("GET", "/metrics", {}, team).body.find("namespace=\"default\""),
            std::string::npos);
  EXPECT_NE(service.call("GET", "/metrics", {}, all).body.find("namespace=\"default\""),
            std::string::npos);
  for (const auto& route : all_routes()) {
    if (!route.whole_service) continue;
    EXPECT_EQ(service.call(std::string(route.method), std::string(route.pattern), {}, team).status,
              403)
        << route.pattern;
  }
  EXPECT_EQ(service.call("POST", "/v1/admin/drain", {}, team).status, 403);
  EXPECT_EQ(service.call("GET", "/readyz").status, 200) << "nobody was drained";
  EXPECT_EQ(service.stop(), 0);
}

TEST(AdminDrain, StopsTakingWorkAndKeepsAnswering) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  int status = 0;
  const auto r = service.json("POST", "/v1/admin/drain", {}, {}, &status);
  EXPECT_EQ(status, 200);
  EXPECT_GE(int_at(r, "requests_running"), 0);
  EXPECT_EQ(service.call("GET", "/readyz").status, 503);
  EXPECT_EQ(service.call("GET", "/livez").status, 200);
  EXPECT_EQ(service.call("POST", "/v1/query", R"({"query":"q"})").status, 503);
  EXPECT_EQ(service.call("GET", "/v1/admin/config").status, 200);
  EXPECT_EQ(service.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
