// Several models in one service: documents are posted once, each model reads them as they are now,
// and keeps KV of its own. The embedded model with other weights is another model here.
#include <boost/json/serialize.hpp>
#include <fstream>
#include <thread>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

const std::string kDemo = std::string(QUIRE_SOURCE_DIR) + "/models/demo";

class Models : public ::testing::Test {
 protected:
  void start() {
    std::ofstream(folder.path() / "other.toml")
        << "[model]\npath = \"" << kDemo << "\"\nweights = \"f32\"\naliases = [\"second\"]\n";
    service = std::make_unique<ServiceProcess>();
    service->start(folder.path() / "store",
                   {"--model.path=" + kDemo, "--model.name=own", "--model.weights=int8",
                    "--model.further=other=" + (folder.path() / "other.toml").string()});
  }
  void stop() {
    EXPECT_EQ(service->stop(), 0);
    service.reset();
  }
  void kill() {
    service->kill();
    service.reset();
  }
  void post(const std::string& id, const std::string& leader) const {
    const auto r = service->call("POST", "/v1/documents?wait=true",
                                 R"({"id":")" + id + R"(","text":"The Varo company is led by )" +
                                     leader + R"(. It was founded in 1931."})");
    ASSERT_EQ(r.status, 200) << r.body;
  }
  json::value ask(const std::string& model, const std::string& documents,
                  int expected = 200) const {
    int status = 0;
    const auto r = service->json(
        "POST", "/v1/query",
        R"({"query":"Who leads the Varo company?","max_tokens":8,"model":")" + model +
            R"(","cache":{"strategy":"reuse"})" + documents + "}",
        {}, &status);
    EXPECT_EQ(status, expected) << model << ": " << json::serialize(r);
    return r;
  }
  /// Asks about the document `a` until its KV is found, as the first query writes it behind the
  /// answer. Returns whether it was.
  bool becomes_cached(const std::string& model) const {
    for (int i = 0; i < 100; ++i) {
      if (at(ask(model, kA), "cache.misses").as_array().empty()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
  std::string answer(const std::string& model, const std::string& documents = kA) const {
    return text_at(ask(model, documents), "answer");
  }

  static inline const std::string kA = R"(,"document_ids":["a"])";
  TempFolder folder;
  std::unique_ptr<ServiceProcess> service;
};

TEST_F(Models, EachAnswersFromTheSameDocumentsWithKvOfItsOwn) {
  start();
  post("a", "Mira Tolen");
  const auto own = ask("own", kA), first = ask("other", kA);
  EXPECT_TRUE(at(own, "cache.misses").as_array().empty()) << "ingest computed it";
  EXPECT_EQ(text_at(first, "cache.misses.0.reason"), "not_cached") << json::serialize(first);
  EXPECT_EQ(text_at(first, "model"), "other");
  for (const auto& r : {own, first})
    EXPECT_NE(text_at(r, "answer").find("Mira Tolen"), std::string::npos) << json::serialize(r);
  EXPECT_TRUE(becomes_cached("other"));
  EXPECT_TRUE(becomes_cached("second")) << "an alias";
  EXPECT_EQ(text_at(ask("large", kA, 404), "error.code"), "model_not_found");

  const auto models = service->json("GET", "/v1/models");
  ASSERT_EQ(at(models, "data").as_array().size(), 3u);
  EXPECT_NE(text_at(models, "data.0.meta.fingerprint"), text_at(models, "data.1.meta.fingerprint"));
  const auto quoted = ask("other", kA + R"(,"explain":"blocks")");
  EXPECT_EQ(text_at(quoted, "citations.0.document_id"), "a") << json::serialize(quoted);
  const auto blocks = service->json("GET", text_at(quoted, "explain_url") + "?include=text");
  EXPECT_NE(json::serialize(blocks).find("Mira Tolen"), std::string::npos)
      << "blocks have the characters of this model's tokens: " << json::serialize(blocks);

  // A restart and a kill keep the KV of both.
  stop();
  start();
  EXPECT_TRUE(at(ask("other", kA), "cache.misses").as_array().empty());
  kill();
  start();
  EXPECT_TRUE(at(ask("other", kA), "cache.misses").as_array().empty());
  EXPECT_TRUE(at(ask("own", kA), "cache.misses").as_array().empty());
  stop();
}

TEST_F(Models, AChangedOrDeletedDocumentIsSoForAllAtOnce) {
  start();
  post("a", "Mira Tolen");
  EXPECT_TRUE(becomes_cached("other"));
  const auto segments = [&] {
    return int_at(service->json("GET", "/v1/admin/cache/stats"), "segments");
  };
  EXPECT_EQ(segments(), 2) << "one of each model";
  for (const char* leader : {"Anna Kell", "Joren Pask"}) {
    post("a", leader);
    for (const char* model : {"other", "own"})
      EXPECT_NE(answer(model).find(leader), std::string::npos) << model << " " << answer(model);
  }
  EXPECT_TRUE(becomes_cached("other"));
  kill();
  start();
  for (const char* model : {"other", "own"})
    EXPECT_NE(answer(model).find("Joren Pask"), std::string::npos) << model;
  // It is found without being named, as well.
  for (const char* model : {"other", "own"})
    EXPECT_NE(answer(model, "").find("Joren Pask"), std::string::npos) << model;

  EXPECT_EQ(service->call("DELETE", "/v1/documents/a").status, 200);
  EXPECT_EQ(segments(), 0) << "no KV of a deleted document stays, of no model";
  for (const char* model : {"other", "own"}) {
    EXPECT_EQ(text_at(ask(model, kA, 404), "error.code"), "document_not_found");
    EXPECT_EQ(answer(model, "").find("Joren"), std::string::npos);
  }
  kill();
  start();
  for (const char* model : {"other", "own"})
    EXPECT_EQ(text_at(ask(model, kA, 404), "error.code"), "document_not_found");
  // The same id with another text begins at the first version again.
  post("a", "Edda Lorne");
  for (const char* model : {"other", "own"})
    EXPECT_NE(answer(model).find("Edda Lorne"), std::string::npos) << model << answer(model);
  stop();
}

TEST_F(Models, NamespacesHoldForAll) {
  start();
  post("a", "Mira Tolen");
  int status = 0;
  (void)service->json("POST", "/v1/query",
                      R"({"query":"Who?","model":"other","document_ids":["a"]})",
                      {"X-Namespace: elsewhere"}, &status);
  EXPECT_EQ(status, 404);
  stop();
}

TEST_F(Models, RequestsOfTwoModelsRunBesideEachOther) {
  start();
  post("a", "Mira Tolen");
  const std::string own = answer("own"), other = answer("other");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i)
        EXPECT_EQ(answer(t % 2 == 0 ? "own" : "other"), t % 2 == 0 ? own : other);
    });
  for (auto& t : threads) t.join();
  stop();
}

TEST_F(Models, WhatIsWrongWithAFurtherModelStopsTheStartByName) {
  const std::string broken = (folder.path() / "broken.toml").string();
  const auto refused = [&](const std::string& entry) {
    return run_process({QUIRE_BINARY, "serve", "--server.port=0", "--model.path=" + kDemo,
                        "--disk.path=" + (folder.path() / "store").string(), "--log.level=off",
                        "--model.further=" + entry});
  };
  std::ofstream(broken) << "[model]\npath = \"/nonexistent\"\n";
  auto r = refused("other=" + broken);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find(broken), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("/nonexistent"), std::string::npos) << r.err;
  std::ofstream(broken) << "[server]\nport = 1\n";
  r = refused("other=" + broken);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("server.port belongs to the whole service"), std::string::npos) << r.err;
  r = refused("default=" + kDemo);
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("name of two models"), std::string::npos) << r.err;
}

TEST_F(Models, TheCommandLineChoosesAndListsThem) {
  start();
  const std::string server = "http://127.0.0.1:" + std::to_string(service->port());
  auto r = run_process({QUIRE_BINARY, "admin", "models", "--server", server});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find(R"("id":"other")"), std::string::npos) << r.out;
  r = run_process({QUIRE_BINARY, "query", "Hi", "--model", "other", "--no-documents",
                   "--max-tokens", "2", "--json", "--server", server});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find(R"("model":"other")"), std::string::npos) << r.out;
  r = run_process({QUIRE_BINARY, "query", "Hi", "--model", "large", "--server", server});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("there is no model 'large'"), std::string::npos) << r.err;
  stop();
}

}  // namespace
}  // namespace quire::testing
