// Several models in one service: which of them a request gets, in every protocol, and what the
// service tells of them. The engines are stubs.
#include "server/service/served_model.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/json.hpp>

#include "base/json_parse.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::RawResponse;

/// Counts what is read for the further model.
class CountingDocuments final : public ModelDocuments {
 public:
  Result<Resolved> resolve(std::string_view, std::span<const std::string>,
                           const ResolveOptions&) override {
    ++resolved;
    return Resolved();
  }
  Result<std::vector<BlockInfo>> blocks(std::string_view, std::string_view) override {
    return std::vector<BlockInfo>();
  }
  std::atomic<int> resolved{0};
};

class ServedModelTest : public test::StubAppTest {
 protected:
  ServedModelTest() {
    auto model = std::make_unique<FurtherModel>();
    Config config;
    config.model.name = "small";
    config.model.aliases = {"tiny:latest"};
    config.policy.strategy = "recompute";
    model->set_config(config);
    auto stub = std::make_unique<test::StubEngine>("small");
    small = stub.get();
    small->pieces = {"small answer"};
    model->engine = std::move(stub);
    auto counting = std::make_unique<CountingDocuments>();
    documents = counting.get();
    model->documents = std::move(counting);
    model->fidelity = std::make_unique<FidelityGate>(0.9);
    model->shadow = make_shadow(services, *small, *model->fidelity);
    services.further.push_back(std::move(model));
  }
  RawResponse post(const std::string& path, const std::string& model, const std::string& members) {
    return call("POST", path, R"({"model":")" + model + R"(",)" + members + "}");
  }
  static json::object object(const RawResponse& r) {
    auto v = parse_json(r.body);
    EXPECT_TRUE(v.ok() && v->is_object()) << r.body;
    return v.ok() && v->is_object() ? v->as_object() : json::object();
  }

  test::StubEngine* small = nullptr;
  CountingDocuments* documents = nullptr;
};

TEST_F(ServedModelTest, TheNameOfTheRequestChoosesInEveryProtocol) {
  const std::string turns = R"("messages":[{"role":"user","content":"Hi"}])";
  const std::pair<const char*, std::string> routes[] = {
      {"/v1/chat/completions", turns},
      {"/v1/completions", R"("prompt":"Hi")"},
      {"/v1/responses", R"("input":"Hi")"},
      {"/v1/messages", turns + R"(,"max_tokens":4)"},
      {"/api/chat", turns + R"(,"stream":false)"},
      {"/api/generate", R"("prompt":"Hi","stream":false)"},
      {"/v1/query", R"("query":"Hi")"},
  };
  for (const auto& [path, members] : routes) {
    for (const char* name : {"small", "tiny:latest", "tiny"}) {
      const auto r = post(path, name, members);
      EXPECT_EQ(r.status, 200) << path << " " << r.body;
      EXPECT_NE(r.body.find("small answer"), std::string::npos) << path << " " << r.body;
      EXPECT_EQ(object(r).at("model").as_string(), "small") << path;
    }
    for (const char* name : {"stub", "default"}) {
      const auto r = post(path, name, members);
      EXPECT_EQ(r.status, 200) << path << " " << r.body;
      EXPECT_EQ(r.body.find("small answer"), std::string::npos) << path;
      EXPECT_EQ(object(r).at("model").as_string(), "stub") << path;
    }
    const auto r = post(path, "large", members);
    EXPECT_EQ(r.status, 404) << path << " " << r.body;
    EXPECT_NE(r.body.find("this service has 'stub' and 'small'"), std::string::npos) << r.body;
  }
  EXPECT_EQ(documents->resolved, 7 * 3) << "its documents are read for it, and only for it";
}

TEST_F(ServedModelTest, AStreamComesFromTheChosenModel) {
  const auto r = post("/v1/chat/completions", "small",
                      R"("stream":true,"messages":[{"role":"user","content":"Hi"}])");
  EXPECT_EQ(r.status, 200);
  EXPECT_NE(r.body.find("small answer"), std::string::npos) << r.body;
  EXPECT_NE(r.body.find(R"("model":"small")"), std::string::npos) << r.body;
}

TEST_F(ServedModelTest, DefaultsOfQueriesAreThoseOfTheModel) {
  ASSERT_EQ(post("/v1/query", "small", R"("query":"Hi")").status, 200);
  EXPECT_EQ(small->last_request.cache.strategy, "recompute");
  ASSERT_EQ(post("/v1/query", "stub", R"("query":"Hi")").status, 200);
  EXPECT_EQ(engine.last_request.cache.strategy, "auto");
}

TEST_F(ServedModelTest, PlansAndCountsAreThoseOfTheModel) {
  EXPECT_EQ(post("/v1/query/plan", "small", R"("query":"Hi")").status, 200);
  EXPECT_EQ(post("/v1/query/plan", "large", R"("query":"Hi")").status, 404);
  const std::string turns = R"("messages":[{"role":"user","content":"Hi"}])";
  EXPECT_EQ(post("/v1/messages/count_tokens", "small", turns).status, 200);
  EXPECT_EQ(post("/v1/messages/count_tokens", "large", turns).status, 404);
  EXPECT_EQ(post("/tokenize", "small", R"("prompt":"Hi")").status, 200);
  EXPECT_EQ(post("/tokenize", "large", R"("prompt":"Hi")").status, 404);
  EXPECT_EQ(post("/detokenize", "large", R"("tokens":[1])").status, 404);
}

TEST_F(ServedModelTest, EmbeddingsComeFromTheNamedModel) {
  for (const char* name : {"small", "tiny"}) {
    const auto r = post("/v1/embeddings", name, R"("input":"a")");
    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_EQ(object(r).at("model").as_string(), "small");
    EXPECT_EQ(object(post("/api/embed", name, R"("input":"a")")).at("model").as_string(), "small");
  }
  EXPECT_EQ(object(post("/v1/embeddings", "stub", R"("input":"a")")).at("model").as_string(),
            "stub");
  EXPECT_EQ(post("/v1/embeddings", "large", R"("input":"a")").status, 404);
}

TEST_F(ServedModelTest, ListsNameEveryModel) {
  std::string ids;
  const json::object list = object(call("GET", "/v1/models"));
  for (const auto& m : list.at("data").as_array()) ids += std::string(m.at("id").as_string()) + " ";
  EXPECT_EQ(ids, "stub small tiny:latest ");
  EXPECT_EQ(object(call("GET", "/v1/models/small")).at("id").as_string(), "small");
  EXPECT_EQ(object(call("GET", "/v1/models/tiny")).at("id").as_string(), "tiny");
  EXPECT_EQ(object(call("GET", "/v1/models/default")).at("id").as_string(), "stub");
  EXPECT_EQ(call("GET", "/v1/models/large").status, 404);
  for (const char* path : {"/api/tags", "/api/ps"}) {
    const auto models = object(call("GET", path)).at("models").as_array();
    ASSERT_EQ(models.size(), 2u) << path;
    EXPECT_EQ(models[1].at("name").as_string(), "small");
  }
  EXPECT_EQ(call("POST", "/api/show", R"({"model":"small"})").status, 200);
  EXPECT_EQ(call("POST", "/api/show", R"({"model":"large"})").status, 404);
}

TEST_F(ServedModelTest, HealthAndInfoTellOfEachModel) {
  const auto health = object(call("GET", "/healthz"));
  EXPECT_EQ(json::serialize(health.at("checks").at("models")), R"({"stub":"ok","small":"ok"})");
  const auto info = object(call("GET", "/v1/info"));
  EXPECT_EQ(info.at("model").at("id").as_string(), "stub");
  const auto& further = info.at("further_models").as_array();
  ASSERT_EQ(further.size(), 1u);
  EXPECT_EQ(further[0].at("model").at("id").as_string(), "small");
  EXPECT_TRUE(further[0].as_object().contains("fidelity"));
}

TEST_F(ServedModelTest, AServiceWithOneModelTellsWhatItAlwaysTold) {
  services.further.clear();
  EXPECT_FALSE(object(call("GET", "/healthz")).at("checks").as_object().contains("models"));
  EXPECT_TRUE(object(call("GET", "/v1/info")).at("further_models").as_array().empty());
  EXPECT_EQ(post("/tokenize", "anything", R"("prompt":"Hi")").status, 200);
}

}  // namespace
}  // namespace quire
