// Admission and errors of the service work over a real socket, around a stub engine and a stub
// document service.
#include "server/app/app.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/json_parse.h"
#include "cachestore/pack/pack.h"
#include "engine/chat/text_bound.h"
#include "server/service/services.h"
#include "tests/support/harness/test_store.h"
#include "tests/support/loopback_client.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

using testing::LoopbackClient;
using testing::RawResponse;

class AppTest : public test::StubAppTest {
 protected:
  void use_keys(const std::string& more = {}) {
    const auto entry = [](const std::string& name, const std::string& scopes,
                          const std::string& namespaces) {
      return "[[keys]]\nname = \"" + name + "\"\nsha256 = \"" + sha256("secret-" + name).hex() +
             "\"\nscopes = [" + scopes + "]\nnamespaces = [" + namespaces + "]\n";
    };
    auto ring = KeyRing::parse(
        entry("reader", "\"read\"", "\"a\", \"b\"") + entry("all", "\"admin\"", "\"*\"") + more,
        "keys");
    ASSERT_TRUE(ring.ok()) << ring.status().message();
    services.set_keys(*ring);
  }
  static std::string code_of(const RawResponse& r) {
    const auto v = parse_json(r.body);
    if (!v.ok() || !v->is_object() || !v->as_object().contains("error"))
      return "no error body: " + r.body;
    EXPECT_EQ(v->as_object().at("status").as_int64(), r.status);
    EXPECT_EQ(v->as_object().at("request_id").as_string(), r.header("x-request-id").value_or(""));
    return std::string(v->as_object().at("error").as_object().at("code").as_string());
  }
};

TEST_F(AppTest, LoadingAndDrainingRefuseWorkButNotProbes) {
  services.ready = false;
  auto r = call("GET", "/v1/documents");
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(code_of(r), "loading");
  EXPECT_TRUE(r.header("retry-after"));
  EXPECT_EQ(call("GET", "/livez").status, 200);
  EXPECT_EQ(code_of(call("GET", "/readyz")), "loading");
  EXPECT_EQ(call("GET", "/healthz").status, 503);
  services.ready = true;
  services.draining = true;
  EXPECT_EQ(code_of(call("POST", "/v1/query", R"({"query":"q"})")), "draining");
  EXPECT_EQ(code_of(call("GET", "/readyz")), "draining");
  EXPECT_EQ(call("GET", "/livez").status, 200);
}

TEST_F(AppTest, APathWithoutItsPrefixOrWithTwoNamesTheOneThatIsThere) {
  const auto message = [&](const std::string& method, const std::string& path) {
    const RawResponse r = call(method, path);
    EXPECT_EQ(r.status, 404) << path;
    EXPECT_EQ(code_of(r), "route_not_found");
    return std::string(parse_json(r.body)->as_object().at("detail").as_string());
  };
  EXPECT_EQ(message("POST", "/chat/completions"),
            "there is no /chat/completions; did you mean /v1/chat/completions?");
  EXPECT_EQ(message("GET", "/v1/v1/documents/a"),
            "there is no /v1/v1/documents/a; did you mean /v1/documents/a?");
  EXPECT_EQ(message("GET", "/jobs/a%2Fb"), "there is no /jobs/a/b; did you mean /v1/jobs/a%2Fb?");
  EXPECT_EQ(message("GET", "/v1/nothing"), "there is no /v1/nothing");
  EXPECT_EQ(message("GET", "/nothing"), "there is no /nothing");
}

TEST_F(AppTest, KeysScopesAndNamespaces) {
  use_keys();
  auto r = call("GET", "/v1/documents");
  EXPECT_EQ(r.status, 401);
  EXPECT_EQ(code_of(r), "missing_api_key");
  EXPECT_EQ(r.header("www-authenticate"), "Bearer");
  EXPECT_EQ(code_of(call("GET", "/v1/documents", {}, {"Authorization: Bearer wrong"})),
            "invalid_api_key");
  EXPECT_EQ(call("GET", "/v1/documents", {}, {"Authorization: Bearer secret-reader"}).status, 200);
  EXPECT_EQ(call("GET", "/v1/documents", {}, {"x-api-key: secret-reader", "X-Namespace: b"}).status,
            200);
  r = call("GET", "/v1/documents", {}, {"api-key: secret-reader", "X-Namespace: c"});
  EXPECT_EQ(r.status, 403);
  EXPECT_EQ(code_of(r), "namespace_denied");
  r = call("POST", "/v1/query", R"({"query":"q"})", {"api-key: secret-reader"});
  EXPECT_EQ(r.status, 403);
  EXPECT_EQ(code_of(r), "insufficient_scope");
  EXPECT_EQ(call("GET", "/livez").status, 200);
  EXPECT_EQ(call("GET", "/metrics").status, 401);
  EXPECT_EQ(
      call("GET", "/v1/documents", {}, {"api-key: secret-all", "X-Namespace: whatever"}).status,
      200);
  EXPECT_EQ(call("GET", "/v1/documents", {}, {"api-key: secret-all", "X-Namespace: not/ok"}).status,
            400);
}

/// A proxy may have checked one of them, and the service would take the other.
TEST_F(AppTest, WhatSaysWhoCallsMayNotBeRepeated) {
  use_keys();
  const std::string reader = "api-key: secret-reader";
  const std::vector<std::string> repeated[] = {
      {"Authorization: Bearer secret-reader", "authorization: Bearer secret-all"},
      {"Authorization: Bearer secret-reader", "Authorization: Bearer secret-reader"},
      {reader, "Api-Key: secret-all"},
      {"x-api-key: secret-reader", "x-api-key: "},
      {reader, "X-Namespace: b", "x-namespace: c"},
  };
  for (const auto& headers : repeated) {
    const auto r = call("GET", "/v1/documents", {}, headers);
    EXPECT_EQ(r.status, 400) << headers.back();
    EXPECT_EQ(code_of(r), "invalid_value");
    EXPECT_NE(r.body.find("more than once"), std::string::npos) << r.body;
  }
  EXPECT_EQ(call("GET", "/livez", {}, {reader, reader, "X-Namespace: b", "X-Namespace: c"}).status,
            200)
      << "probes do not care";
}

TEST_F(AppTest, OnlyNamespacesOfAKeyAreLabels) {
  use_keys();
  services.metrics->set_per_namespace(true);
  EXPECT_EQ(call("GET", "/livez", {}, {"X-Namespace: made-up"}).status, 200);
  EXPECT_EQ(call("GET", "/v1/documents", {}, {"X-Namespace: made-up"}).status, 401);
  EXPECT_EQ(
      call("GET", "/v1/documents", {}, {"api-key: secret-reader", "X-Namespace: made-up"}).status,
      403);
  EXPECT_EQ(call("GET", "/v1/documents", {}, {"api-key: secret-reader", "X-Namespace: b"}).status,
            200);
  (void)server->stop(std::chrono::seconds(10));  // all requests are counted then
  const std::string text = services.metrics->text({});
  EXPECT_NE(text.find("namespace=\"b\""), std::string::npos) << text;
  EXPECT_EQ(text.find("made-up"), std::string::npos) << text;
}

TEST_F(AppTest, RequestAndTokenLimits) {
  use_keys("requests_per_minute = 3\ntokens_per_minute = 5\n");
  const std::vector<std::string> key = {"api-key: secret-all"};
  auto r = call("POST", "/v1/query", R"({"query":"q"})", key);
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.header("x-ratelimit-limit-requests"), "3");
  EXPECT_EQ(r.header("x-ratelimit-remaining-requests"), "2");
  r = call("GET", "/v1/documents", {}, key);  // the first request used eleven tokens of five
  EXPECT_EQ(r.status, 429);
  EXPECT_EQ(code_of(r), "quota_exceeded");
  EXPECT_TRUE(r.header("retry-after-ms"));
}

TEST_F(AppTest, TooManyRequestsAre429) {
  use_keys("requests_per_minute = 2\n");
  const std::vector<std::string> key = {"api-key: secret-all"};
  EXPECT_EQ(call("GET", "/v1/documents", {}, key).status, 200);
  EXPECT_EQ(call("GET", "/v1/documents", {}, key).status, 200);
  const auto r = call("GET", "/v1/documents", {}, key);
  EXPECT_EQ(r.status, 429);
  EXPECT_EQ(code_of(r), "rate_limited");
  EXPECT_TRUE(r.header("retry-after"));
}

TEST_F(AppTest, EngineFailuresHaveTheirFaces) {
  const auto ask = [&] { return call("POST", "/v1/query", R"({"query":"q"})"); };
  engine.query_error = Status::exhausted("256 queries wait already");
  auto r = ask();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(code_of(r), "overloaded");
  EXPECT_EQ(r.header("retry-after"), "1");
  // What the alert QuireOverloaded of configs/prometheus/quire-rules.yml asks for.
  EXPECT_NE(services.metrics->text({}).find("quire_rejected_total{reason=\"overloaded\"} 1\n"),
            std::string::npos);
  engine.wait = std::chrono::milliseconds(7300);
  EXPECT_EQ(ask().header("retry-after"), "8");
  EXPECT_EQ(ask().header("retry-after-ms"), "7300");
  engine.wait = std::chrono::minutes(20);
  EXPECT_EQ(ask().header("retry-after"), "60");
  engine.query_error = window_exceeded_status({100, 200}, "document_ids");
  r = ask();
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(code_of(r), "context_length_exceeded");
  EXPECT_NE(r.body.find("\"limit\":100"), std::string::npos) << r.body;
  EXPECT_NE(r.body.find("\"actual\":200"), std::string::npos);
  EXPECT_EQ(r.body.find("context_length_exceeded: "), std::string::npos) << r.body;
  EXPECT_NE(r.body.find("has 200 tokens"), std::string::npos) << r.body;
  EXPECT_NE(r.body.find("model.max_model_len"), std::string::npos) << r.body;
  engine.query_error = Status();
  engine.done_status = Status::deadline("too late");
  r = ask();
  EXPECT_EQ(r.status, 504);
  EXPECT_EQ(code_of(r), "deadline_exceeded");
  EXPECT_EQ(r.header("x-should-retry"), "false");
  engine.done_status = Status::internal("the secret inside");
  r = ask();
  EXPECT_EQ(r.status, 500);
  EXPECT_EQ(code_of(r), "internal");
  EXPECT_EQ(r.body.find("secret"), std::string::npos);
}

TEST_F(AppTest, APlaceThatNoListHasIsRefused) {
  for (const auto* target :
       {"/v1/documents?after=no%20id", "/v1/files?after=-", "/v1/jobs?after=nope"}) {
    const auto r = call("GET", target);
    EXPECT_EQ(r.status, 400) << target;
    EXPECT_EQ(code_of(r), "invalid_value");
    EXPECT_NE(r.body.find("\"param\":\"after\""), std::string::npos) << r.body;
  }
  // A document that was deleted since is a place all the same.
  EXPECT_EQ(call("GET", "/v1/documents?after=nope").status, 200);
  EXPECT_EQ(call("GET", "/v1/jobs?after=job_1").status, 200);
}

TEST_F(AppTest, OnlyTiersThatARouteTakesAreNamed) {
  for (const auto* tier : {"foo", "gpu", "remote"}) {
    const std::string member = R"("tier":")" + std::string(tier) + "\"";
    for (const auto& r : {call("POST", "/v1/documents/a/warm", "{" + member + "}"),
                          call("POST", "/v1/documents", R"({"text":"x",)" + member + "}"),
                          call("POST", "/v1/admin/cache/evict", "{" + member + "}")}) {
      EXPECT_EQ(r.status, 400) << r.body;
      EXPECT_NE(r.body.find("tier is '" + std::string(tier) + "'; use one of: dram, disk\""),
                std::string::npos)
          << r.body;
    }
  }
}

TEST_F(AppTest, StoreFailuresHaveTheirFaces) {
  ingest.error = Status::io("disk gone");
  auto r = call("GET", "/v1/documents/a");
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(code_of(r), "storage_unavailable");
  ingest.error = Status::exhausted("all pinned").with_field("pinned");
  r = call("POST", "/v1/documents/a/warm");
  EXPECT_EQ(r.status, 507);
  EXPECT_EQ(code_of(r), "cache_full");
  ingest.error = Status::exhausted("the ingest queue holds 1000 documents");
  r = call("POST", "/v1/documents/a/warm");
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(code_of(r), "overloaded");
  EXPECT_TRUE(r.header("retry-after"));
  r = call("POST", "/v1/documents", R"({"text":"x"})");
  EXPECT_EQ(code_of(r), "overloaded");
  ingest.error = Status::not_found("no");
  EXPECT_EQ(code_of(call("GET", "/v1/documents/a")), "document_not_found");
  EXPECT_EQ(code_of(call("GET", "/v1/jobs/a")), "job_not_found");
}

/// Imports packs into an empty store in memory.
class ImportTest : public AppTest {
 protected:
  ImportTest() {
    auto store = open_store_on(
        {}, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
    QUIRE_CHECK(store.ok(), store.status().to_string());
    store_ = std::move(*store);
    services.store = store_.get();
    Config config;
    config.disk.path = std::filesystem::temp_directory_path().string();  // where a body is kept
    services.set_config(config);
  }
  ~ImportTest() override { services.store = nullptr; }
  /// Returns a pack of documents with the text of "a".
  static std::string pack_of(const std::vector<DocumentManifest>& documents) {
    std::string pack;
    PackWriter writer([&](std::string_view bytes) {
      pack += bytes;
      return true;
    });
    EXPECT_OK(writer.header({1, "m-test", "test"}));
    for (const DocumentManifest& d : documents) EXPECT_OK(writer.document(d, test::text_of("a")));
    EXPECT_OK(writer.end());
    return pack;
  }
  testing::RawResponse import(const std::string& pack) {
    return call("POST", "/v1/admin/cache/import", pack, {}, "application/octet-stream");
  }

  std::unique_ptr<AdminStore> store_;
};

TEST_F(ImportTest, ADamagedStoreIsNoFaultOfThePack) {
  DocumentManifest document = test::manifest_of("a", {1});
  for (auto& chunk : document.chunks)
    chunk.num_tokens = static_cast<std::uint32_t>(chunk.token_ids.size());
  const std::string pack = pack_of({document});
  ingest.error = Status::corruption("a block of the store");
  auto r = import(pack);
  EXPECT_EQ(r.status, 503) << r.body;
  ingest.error = Status::io("disk gone");
  EXPECT_EQ(import(pack).status, 503);
  ingest.error = {};
  r = import(pack.substr(0, pack.size() - 1));
  EXPECT_EQ(r.status, 400) << "this one is the fault of the pack";
  EXPECT_EQ(import(pack).status, 200);
}

TEST_F(ImportTest, AnImportReportsDocumentsThatTheLimitsRefuse) {
  const std::string pack = pack_of({test::manifest_of("a", {}), test::manifest_of("b", {})});
  ingest.refused_id = "a";
  const auto r = import(pack);
  ASSERT_EQ(r.status, 200) << r.body;
  const auto report = parse_json(r.body)->as_object();
  EXPECT_EQ(report.at("documents").as_int64(), 1);
  const auto& rejected = report.at("rejected").as_array();
  ASSERT_EQ(rejected.size(), 1u);
  EXPECT_EQ(rejected[0].at("id").as_string(), "a");
  EXPECT_EQ(rejected[0].at("reason").as_string(), "no room");
}

TEST_F(ImportTest, ADocumentThatAJobStillReadsIsNotMissingForPinsAndEvictions) {
  for (const char* path :
       {"/v1/admin/cache/pin", "/v1/admin/cache/unpin", "/v1/admin/cache/evict"}) {
    SCOPED_TRACE(path);
    ingest.error = {};  // it knows every document, and the store has none
    auto r = call("POST", path, R"({"document_ids":["a"]})");
    EXPECT_EQ(r.status, 409) << r.body;
    EXPECT_EQ(code_of(r), "document_not_ready");
    EXPECT_NE(r.body.find("document_ids[0]"), std::string::npos) << r.body;
    EXPECT_TRUE(r.header("retry-after"));
    ingest.error = Status::not_found("no such document");
    r = call("POST", path, R"({"document_ids":["a"]})");
    EXPECT_EQ(r.status, 404) << r.body;
    EXPECT_EQ(code_of(r), "document_not_found");
    ingest.error = Status::io("disk gone");
    EXPECT_EQ(call("POST", path, R"({"document_ids":["a"]})").status, 503);
  }
}

/// An engine for which one namespace has its own words around documents.
class WordedEngine : public test::StubEngine {
 public:
  std::string document_fingerprint(std::string_view ns) const override {
    return info().fingerprint + (ns == "worded" ? "-words" : "");
  }
};

TEST_F(AppTest, AnImportKeepsTheKvThatFitsTheWordsOfItsNamespace) {
  auto store = open_store_on(
      {}, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
  ASSERT_OK(store);
  WordedEngine worded;
  services.engine = &worded;
  services.store = store->get();
  Config config;
  config.disk.path = std::filesystem::temp_directory_path().string();  // where a body is kept
  services.set_config(config);
  const auto stale = [&](const std::string& made_for, const std::string& ns) {
    DocumentManifest document = test::manifest_of("of-" + made_for, {});
    document.fingerprint = worded.document_fingerprint(made_for);
    std::string pack;
    PackWriter writer([&](std::string_view bytes) {
      pack += bytes;
      return true;
    });
    EXPECT_OK(writer.header({1, document.fingerprint, "test"}));
    EXPECT_OK(writer.document(document, test::text_of("a")));
    EXPECT_OK(writer.end());
    const auto r = call("POST", "/v1/admin/cache/import", pack, {"X-Namespace: " + ns},
                        "application/octet-stream");
    EXPECT_EQ(r.status, 200) << r.body;
    return r.status == 200 ? parse_json(r.body)->as_object().at("stale").as_int64() : -1;
  };
  EXPECT_EQ(stale("worded", "worded"), 0);
  EXPECT_EQ(stale("plain", "plain"), 0);
  EXPECT_EQ(stale("plain", "worded"), 1);
  EXPECT_EQ(stale("worded", "plain"), 1);
  services.store = nullptr;
  services.engine = &engine;
}

TEST_F(AppTest, UnreadyDocumentsAre409) {
  NotReadyDocument d;
  d.id = "slow";
  d.job_id = "job_7";
  d.progress = 0.4;
  ingest.not_ready = {d};
  for (const auto* mode : {R"("error")", R"("wait","timeout_ms":30)"}) {
    const auto r = call(
        "POST", "/v1/query",
        std::string(R"({"query":"q","document_ids":["x","slow"],"on_not_ready":)") + mode + "}");
    EXPECT_EQ(r.status, 409) << r.body;
    EXPECT_EQ(code_of(r), "document_not_ready");
    EXPECT_NE(r.body.find("slow is at 40%"), std::string::npos);
    EXPECT_NE(r.body.find("job_7"), std::string::npos);
    EXPECT_NE(r.body.find("document_ids[1]"), std::string::npos);
    EXPECT_TRUE(r.header("retry-after"));
  }
}

TEST_F(AppTest, TheSameIdempotencyKeyInFlightIs409) {
  std::string second;
  ingest.on_submit = [&] {
    second = code_of(call("POST", "/v1/documents", R"({"text":"x"})", {"Idempotency-Key: k"}));
  };
  EXPECT_EQ(call("POST", "/v1/documents", R"({"text":"x"})", {"Idempotency-Key: k"}).status, 200);
  EXPECT_EQ(second, "idempotency_in_progress");
}

TEST_F(AppTest, AnIdempotencyKeyCoversPathQueryNamespaceAndBody) {
  int submits = 0;
  ingest.on_submit = [&] { ++submits; };
  const auto post = [&](const std::string& target, const std::string& body,
                        const std::string& ns = "default") {
    return call("POST", target, body, {"Idempotency-Key: k", "X-Namespace: " + ns});
  };
  EXPECT_EQ(post("/v1/documents", R"({"text":"x"})").status, 200);
  EXPECT_EQ(post("/v1/documents", R"({"text":"x"})").header("idempotency-replayed"), "true");
  EXPECT_EQ(submits, 1);
  EXPECT_EQ(code_of(post("/v1/documents", R"({"text":"y"})")), "idempotency_mismatch");
  EXPECT_EQ(submits, 1);
  EXPECT_FALSE(post("/v1/documents?wait=true", R"({"text":"x"})").header("idempotency-replayed"));
  EXPECT_EQ(submits, 2);
  EXPECT_FALSE(post("/documents", R"({"text":"x"})").header("idempotency-replayed"));
  EXPECT_FALSE(post("/v1/documents", R"({"text":"x"})", "other").header("idempotency-replayed"));
  EXPECT_EQ(submits, 4);
}

TEST_F(AppTest, TextsThatCannotFitAreRefusedByTheirBytes) {
  // The stub has the embedded model's tokenizer and a window of 2048 tokens.
  const std::size_t most = 2048 * longest_token_bytes(engine.tokenizer());
  const std::string long_text(most + 1, 'a');
  const auto refused = [&](const std::string& target, const std::string& body,
                           const std::string& param) {
    const auto r = call("POST", target, body);
    EXPECT_EQ(r.status, 400) << target;
    EXPECT_EQ(code_of(r), "context_length_exceeded") << r.body;
    EXPECT_NE(r.body.find("no text of more than " + std::to_string(most)), std::string::npos)
        << r.body;
    EXPECT_NE(r.body.find("\"param\":\"" + param + "\""), std::string::npos) << r.body;
  };
  refused("/v1/query", R"({"query":")" + long_text + "\"}", "query");
  refused("/v1/query/plan", R"({"query":"q","system":")" + long_text + "\"}", "system");
  refused("/v1/query",
          R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":")" + long_text +
              "\"}]}",
          "messages[1]");
  refused("/v1/query", R"({"query":"q","documents":[{"text":")" + long_text + "\"}]}",
          "documents[0]");
  refused("/v1/completions", R"({"prompt":")" + long_text + "\"}", "prompt");
  refused("/v1/chat/completions",
          R"({"messages":[{"role":"user","content":")" + long_text + "\"}]}", "messages[0]");
  refused("/v1/embeddings", R"({"input":["a",")" + long_text + "\"]}", "input[1]");
}

TEST_F(AppTest, JsonOfTooManyPartsNamesTheBound) {
  std::string arrays = R"({"query":[)";
  for (int i = 0; i < (1 << 20) + 2000; ++i) arrays += "[],";
  auto r = call("POST", "/v1/query", arrays + "0]}");
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(code_of(r), "invalid_json");
  EXPECT_NE(r.body.find("values that are taken"), std::string::npos) << r.body;
  std::string keys = R"({"query":"q")";
  for (int i = 0; i < 2000; ++i) keys += ",\"k" + std::to_string(i) + "\":0";
  r = call("POST", "/v1/query", keys + "}");
  EXPECT_EQ(code_of(r), "invalid_json");
  EXPECT_NE(r.body.find("keys in one object"), std::string::npos) << r.body;
  Config c;
  c.disk.path = ::testing::TempDir();  // takes the body's lines
  services.set_config(c);
  r = call("POST", "/v1/documents", R"({"text":"a","metadata":{)" + keys.substr(13) + "}}", {},
           "application/x-ndjson");
  EXPECT_NE(r.body.find("keys in one object"), std::string::npos) << r.body;
  EXPECT_EQ(r.status, 400) << r.body;
}

TEST_F(AppTest, ARouteWithoutABodyTakesNoLargeOne) {
  EXPECT_LT(call("DELETE", "/v1/documents/a", std::string(64 << 10, 'x')).status, 300);
  EXPECT_EQ(code_of(call("DELETE", "/v1/documents/a", std::string((64 << 10) + 1, 'x'))),
            "payload_too_large");
}

TEST_F(AppTest, OnLoopbackOnlyItsOwnNamesAreAnswered) {
  const auto ask = [&](const std::string& host) {
    LoopbackClient c(server->port());
    EXPECT_TRUE(
        c.send("GET /v1/documents HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"));
    return c.read_response().value_or(RawResponse());
  };
  EXPECT_EQ(ask("localhost:8080").status, 200);
  EXPECT_EQ(ask("127.0.0.1").status, 200);
  auto r = ask("rebound.example");
  EXPECT_EQ(r.status, 403);
  EXPECT_EQ(code_of(r), "host_not_allowed");
  EXPECT_NE(r.body.find("server.allowed_hosts"), std::string::npos) << r.body;
  Config c;
  c.server.allowed_hosts = {"rebound.example"};
  services.set_config(c);
  EXPECT_EQ(ask("rebound.example").status, 200);
  c.server.allowed_hosts = {};
  c.server.host = "0.0.0.0";
  services.set_config(c);
  EXPECT_EQ(ask("rebound.example").status, 200);
}

// A browser sends these without asking whether the service takes them from other sites.
TEST_F(AppTest, WithoutKeysAPageOfAnotherSiteChangesNothing) {
  const std::string own = "127.0.0.1:" + std::to_string(server->port()),
                    body = R"({"text":"planted"})";
  int documents = 0;
  ingest.on_documents = [&](const std::vector<DocumentInput>&) { ++documents; };
  const auto post = [&](const std::string& origin, const std::string& type) {
    LoopbackClient c(server->port());
    EXPECT_TRUE(c.send("POST /v1/documents HTTP/1.1\r\nHost: " + own + "\r\nOrigin: " + origin +
                       (type.empty() ? "" : "\r\nContent-Type: " + type) + "\r\nContent-Length: " +
                       std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body));
    return c.read_response().value_or(RawResponse());
  };
  for (const auto* type : {"", "text/plain", "Text/Plain; charset=utf-8"})
    for (const auto* origin : {"https://evil.example", "null", "http://127.0.0.1:1"}) {
      const auto r = post(origin, type);
      EXPECT_EQ(r.status, 403) << origin << " " << type;
      EXPECT_EQ(code_of(r), "origin_not_allowed");
    }
  EXPECT_EQ(documents, 0);
  EXPECT_EQ(post("http://" + own, "").status, 200) << "its own page";
  EXPECT_EQ(post("https://evil.example", "application/json").status, 200)
      << "a browser asks before it sends this";
  Config c;
  c.disk.path = ::testing::TempDir();
  c.server.cors_origins = {"https://good.example"};
  services.set_config(c);
  EXPECT_EQ(post("https://good.example", "").status, 200);
  EXPECT_EQ(post("https://evil.example", "").status, 403);
}

TEST_F(AppTest, AClientThatLeavesCancelsItsQuery) {
  engine.hold = true;
  for (const bool stream : {false, true}) {
    LoopbackClient c(server->port());
    const std::string body = std::string(R"({"query":"q","stream":)") +
                             (stream ? "true}" : "false}");
    ASSERT_TRUE(
        c.send("POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
               "application/json\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body));
    auto sink = engine.take();
    ASSERT_TRUE(sink);
    if (stream) {
      sink->on_plan(test::StubEngine::small_plan());
      EXPECT_NE(c.read_until("event: plan").find("event: plan"), std::string::npos);
    }
    c.close();
    EXPECT_TRUE(engine.wait_cancelled());
    EXPECT_FALSE(sink->on_token(1, "x"));
    engine.finish(*sink, Status::cancelled("client"));
  }
}

TEST_F(AppTest, AQueryThatFailsInTheStreamSaysSo) {
  engine.hold = true;
  LoopbackClient c(server->port());
  const std::string body = R"({"query":"q","stream":true})";
  ASSERT_TRUE(
      c.send("POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/json\r\nContent-Length: " +
             std::to_string(body.size()) + "\r\n\r\n" + body));
  auto sink = engine.take();
  ASSERT_TRUE(sink);
  sink->on_plan(test::StubEngine::small_plan());
  EXPECT_TRUE(sink->on_token(5, "part"));
  engine.finish(*sink, Status::deadline("late"));
  const std::string text = c.read_until("deadline_exceeded");
  EXPECT_NE(text.find("event: error"), std::string::npos) << text;
}

TEST_F(AppTest, WrongPathsMethodsAndOrigins) {
  auto r = call("GET", "/v1/nothing");
  EXPECT_EQ(r.status, 404);
  EXPECT_EQ(code_of(r), "route_not_found");
  r = call("DELETE", "/v1/query");
  EXPECT_EQ(r.status, 405);
  EXPECT_EQ(code_of(r), "method_not_allowed");
  EXPECT_EQ(r.header("allow"), "POST, OPTIONS");
  r = call("OPTIONS", "/v1/documents", {},
           {"Origin: https://a.example", "Access-Control-Request-Method: POST"});
  EXPECT_EQ(r.status, 204);
  EXPECT_FALSE(r.header("access-control-allow-origin"));
  Config c;
  c.server.cors_origins = {"https://a.example"};
  services.set_config(c);
  r = call("OPTIONS", "/v1/documents", {}, {"Origin: https://a.example"});
  EXPECT_EQ(r.header("access-control-allow-origin"), "https://a.example");
  EXPECT_FALSE(call("GET", "/livez", {}, {"Origin: https://b.example"})
                   .header("access-control-allow-origin"));
}

TEST_F(AppTest, RetrievalThatIsSwitchedOffSaysSo) {
  auto r = call("POST", "/v1/retrieve", R"({"query":"q"})");
  EXPECT_EQ(r.status, 501);
  EXPECT_EQ(code_of(r), "not_supported");
  EXPECT_EQ(r.header("x-should-retry"), "false");
  EXPECT_EQ(code_of(call("POST", "/v1/query", R"({"query":"q","retrieve":{}})")), "not_supported");
  // The request does not ask for documents.
  EXPECT_EQ(call("POST", "/v1/query", R"({"query":"q"})").status, 200);
}

TEST_F(AppTest, EmbeddingsComeFromTheEngine) {
  const auto r = call("POST", "/v1/embeddings", R"({"input":["a","b"],"encoding_format":"float"})");
  ASSERT_EQ(r.status, 200) << r.body;
  const auto v = parse_json(r.body);
  ASSERT_TRUE(v.ok());
  EXPECT_EQ(v->at("data").as_array().size(), 2u);
  EXPECT_EQ(v->at("data").at(1).at("embedding").as_array().size(), 2u);
  EXPECT_EQ(v->at("model"), "stub");
}

TEST_F(AppTest, LargeBodiesAndHeadersAreRefusedWithTheErrorBody) {
  Config c;
  c.server.max_body_bytes = 2000;
  services.set_config(c);
  auto r = call("POST", "/v1/documents", R"({"text":")" + std::string(3000, 'a') + "\"}");
  EXPECT_EQ(r.status, 413);
  EXPECT_EQ(code_of(r), "payload_too_large");
  EXPECT_NE(r.body.find("at most 2000 are taken (server.max_body_bytes)"), std::string::npos)
      << r.body;
  r = call("GET", "/livez", {}, {"X-Big: " + std::string(20000, 'a')});
  EXPECT_EQ(r.status, 431);
  EXPECT_EQ(code_of(r), "headers_too_large");
}

TEST_F(AppTest, WhatHttpItselfRefusesHasTheErrorBodyToo) {
  const std::pair<std::string, std::string> cases[] = {
      {"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", "http_version_not_supported"},
      {"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: tea\r\n\r\n", "expectation_failed"}};
  for (const auto& [text, code] : cases) {
    LoopbackClient c(server->port());
    ASSERT_TRUE(c.send(text));
    const auto r = c.read_response();
    ASSERT_TRUE(r) << code;
    EXPECT_EQ(code_of(*r), code);
  }
  HttpServerOptions hurried;
  hurried.header_timeout = std::chrono::milliseconds(50);
  auto second = start_http_server(hurried, *app);
  ASSERT_TRUE(second.ok());
  LoopbackClient slow((*second)->port());
  ASSERT_TRUE(slow.send("GET /livez HT"));
  const auto r = slow.read_response();
  ASSERT_TRUE(r);
  EXPECT_EQ(code_of(*r), "request_timeout");
  (void)(*second)->stop(std::chrono::milliseconds(0));
}

}  // namespace
}  // namespace quire
