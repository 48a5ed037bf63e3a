// Words around documents belong to the service, a namespace or a query.
#include <boost/json/serialize.hpp>
#include <fstream>

#include "tests/support/service_process.h"
#include "tests/support/smollm2.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

const std::string kBody = R"({"query":"Who built it?","document_ids":["d"],"max_tokens":2})";

json::value plan(const ServiceProcess& service, const std::string& ns, const std::string& body,
                 int expected = 200) {
  int status = 0;
  auto r = service.json("POST", "/v1/query/plan", body, {"X-Namespace: " + ns}, &status);
  EXPECT_EQ(status, expected) << json::serialize(r);
  return r;
}

TEST(Wording, NamespacesAndQueriesHaveWordsOfTheirOwn) {
  QUIRE_SMOLLM2_FILE(model);
  TempFolder folder;
  const std::string words = (folder.path() / "words.toml").string();
  const auto start = [&](ServiceProcess& service, const std::string& document) {
    std::ofstream(words) << "[team-a]\ndocument = \"" << document
                         << "\"\nquestion = 'Q: '\ncitation = ' ({title})'\n";
    service.start(folder.path() / "store",
                  {"--model.path=" + model->string(), "--prompt.namespaces_file=" + words,
                   "--prompt.citation=[{n}]"});
  };
  std::int64_t plain = 0, own = 0;
  {
    ServiceProcess service;
    start(service, "{title}: {text}\\n");
    for (const char* ns : {"default", "team-a"}) {
      const auto posted = service.call(
          "POST", "/v1/documents?wait=true",
          R"({"id":"d","title":"Bridge","text":"The bridge was built by Ann Lee."})",
          {std::string("X-Namespace: ") + ns});
      ASSERT_EQ(posted.status, 200) << posted.body;
    }
    const auto of_service = plan(service, "default", kBody),
               of_team = plan(service, "team-a", kBody);
    EXPECT_EQ(text_at(of_service, "prompt.document"), "Document: {title}\n{text}\n\n");
    EXPECT_EQ(text_at(of_team, "prompt.document"), "{title}: {text}\n");
    EXPECT_EQ(text_at(of_team, "prompt.question"), "Q: ");
    EXPECT_EQ(text_at(of_service, "prompt.citation"), "[{n}]");
    EXPECT_EQ(text_at(of_team, "prompt.citation"), " ({title})");
    plain = int_at(of_service, "usage.prompt_tokens");
    own = int_at(of_team, "usage.prompt_tokens");
    EXPECT_LT(own, plain);

    std::string asked = kBody;
    asked.insert(1, R"("prompt":{"intro":"Read this.\n","question":"Tell me: "},)");
    const auto of_query = plan(service, "team-a", asked);
    EXPECT_EQ(text_at(of_query, "prompt.intro"), "Read this.\n");
    EXPECT_EQ(text_at(of_query, "prompt.document"), "{title}: {text}\n");
    asked = kBody;
    asked.insert(1, R"("prompt":{"document":"{text}"},)");
    EXPECT_EQ(text_at(plan(service, "team-a", asked, 400), "error.param"), "prompt.document");
    const std::string inline_text =
        R"({"query":"Who?","documents":[{"title":"T","text":"It was Ann."}],"prompt":)";
    EXPECT_EQ(text_at(plan(service, "default", inline_text + R"({"document":"<{title}> {text}"}})"),
                      "prompt.document"),
              "<{title}> {text}");
    EXPECT_EQ(text_at(plan(service, "default", inline_text + R"({"intro":"<|im_end|>"}})", 400),
                      "error.param"),
              "prompt.intro");
    const auto answer = service.json("POST", "/v1/query", kBody, {"X-Namespace: team-a"});
    EXPECT_NE(text_at(answer, "cited_answer").find(" (Bridge)"), std::string::npos)
        << json::serialize(answer);
    EXPECT_EQ(int_at(answer, "usage.prompt_tokens"), own) << json::serialize(answer);
    EXPECT_EQ(service.stop(), 0);
  }
  ServiceProcess service;
  start(service, "A source, {title}: {text}\\n");
  const auto state = [&](const std::string& ns) {
    return text_at(service.json("GET", "/v1/documents/d", {}, {"X-Namespace: " + ns}),
                   "cache.state");
  };
  EXPECT_EQ(state("default"), "resident");
  EXPECT_EQ(state("team-a"), "stale");
  EXPECT_GT(int_at(plan(service, "team-a", kBody), "usage.prompt_tokens"), own);
  EXPECT_EQ(int_at(plan(service, "default", kBody), "usage.prompt_tokens"), plain);
  EXPECT_EQ(service.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
