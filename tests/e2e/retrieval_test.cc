// Retrieval finds documents that a request does not name, and embeddings are served.
#include <atomic>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <thread>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

class RetrieveTest : public ::testing::Test {
 protected:
  void SetUp() override { service_.start(folder_.path() / "store"); }
  void TearDown() override {
    if (service_.running()) {
      EXPECT_EQ(service_.stop(), 0);
    }
  }
  void post(const std::string& id, const std::string& text, const std::string& more = {},
            const std::vector<std::string>& headers = {}) {
    int status = 0;
    const auto r = service_.json(
        "POST", "/v1/documents?wait=true",
        R"({"id":)" + quoted(id) + R"(,"text":)" + quoted(text) + more + "}", headers, &status);
    ASSERT_EQ(status, 200) << json::serialize(r);
  }
  void post_corpus() {
    post("alba", "Alba: Alba is a city in the north. The mayor of Alba is Brun Karsten.",
         R"(,"metadata":{"land":"north","year":2024})");
    post("corva", "Corva: Corva is a village in the south. It is known for glass.",
         R"(,"metadata":{"land":"south","year":2025})");
    post("dern", "Dern: The river Dern flows past Alba into the sea.",
         R"(,"metadata":{"land":"north","year":2025})");
  }
  /// Returns the document ids of the passages, or "!" and the code of an error.
  std::string found(const std::string& body, const std::vector<std::string>& headers = {}) {
    int status = 0;
    const auto r = service_.json("POST", "/v1/retrieve", body, headers, &status);
    if (status != 200) return "!" + text_at(r, "error.code") + " " + text_at(r, "error.param");
    std::string out;
    for (const auto& p : at(r, "data").as_array())
      out += (out.empty() ? "" : " ") + text_at(p, "document_id");
    return out;
  }

  TempFolder folder_;
  ServiceProcess service_;
};

TEST_F(RetrieveTest, RanksPassagesOfTheNamespace) {
  EXPECT_EQ(found(R"({"query":"mayor"})"), "");
  post_corpus();
  EXPECT_EQ(found(R"({"query":"The MAYOR of Alba?","k":2})"), "alba dern");
  EXPECT_EQ(found(R"({"query":"glass","unit":"document"})"), "corva");
  EXPECT_EQ(found(R"({"query":"Alba","metadata":{"year":2025}})"), "dern");
  EXPECT_EQ(found(R"({"query":"Alba","metadata":{"year":2025,"land":"south"}})"), "");
  EXPECT_EQ(found(R"({"query":"Alba","document_ids":["corva"]})"), "");
  EXPECT_EQ(found(R"({"query":"Alba","min_score":1000})"), "");
  EXPECT_EQ(found(R"({"query":"Alba","metadata":{"year":{"lt":2025}}})"), "alba");
  EXPECT_EQ(found(R"({"query":"Alba","metadata":{"land":["south","west"]}})"), "");
  EXPECT_EQ(found(R"({"query":"Alba","metadata":{"year":{"not":[2024]},"land":"north"}})"), "dern");
  const auto listed = service_.json("GET", "/v1/documents?metadata.year%5Bgte%5D=2025&order=asc",
                                    {});
  EXPECT_EQ(text_at(listed, "data.0.id") + " " + text_at(listed, "data.1.id"), "corva dern");
  const auto r = service_.json("POST", "/v1/retrieve", R"({"query":"glass","k":1})");
  EXPECT_EQ(text_at(r, "scorer"), "bm25");
  EXPECT_EQ(text_at(r, "data.0.text"),
            "Corva: Corva is a village in the south. It is known for glass.");
  EXPECT_EQ(int_at(r, "data.0.start"), 0);
  EXPECT_EQ(int_at(r, "data.0.end"), 62);
  EXPECT_GT(at(r, "data.0.score").to_number<double>(), 0);
  EXPECT_EQ(text_at(r, "data.0.metadata.land"), "south");

  EXPECT_EQ(service_.call("DELETE", "/v1/documents/alba").status, 200);
  EXPECT_EQ(found(R"({"query":"mayor","k":9})"), "");
  EXPECT_EQ(found(R"({"query":"mayor"})", {"X-Namespace: other"}), "");
}

TEST_F(RetrieveTest, PassagesChunksAndCitationsNamePageAndHeading) {
  const std::string first = "Alba: Alba is a city in the north. ",
                    second = "The mayor of Alba is Brun Karsten.";
  post("alba", first + second,
       R"(,"marks":[{"start":0,"page":4,"heading":"Towns"},{"start":)" +
           std::to_string(first.size()) + R"(,"page":5,"heading":"Towns > Alba"}])");
  post("bare", "Corva: Corva is a village in the south.");
  auto r = service_.json("POST", "/v1/retrieve", R"({"query":"mayor","k":1})");
  EXPECT_EQ(int_at(r, "data.0.page"), 4);
  EXPECT_EQ(int_at(r, "data.0.last_page"), 5);
  EXPECT_EQ(text_at(r, "data.0.heading"), "Towns");
  r = service_.json("GET", "/v1/documents/alba/chunks", {});
  EXPECT_EQ(int_at(r, "data.0.last_page"), 5);
  r = service_.json("GET", "/v1/documents/bare/chunks", {});
  EXPECT_FALSE(at(r, "data.0").as_object().contains("page")) << json::serialize(r);

  const std::string file =
      "Content-Disposition: form-data; name=\"file\"; filename=\"guide.md\"\r\n\r\n# Guide\n\n"
      "The guide begins with towns, villages, and all that people build there.\n\n"
      "## Rivers\n\nThe river Dern flows past Alba into the sea, where boats carry salt.\n";
  int status = 0;
  r = service_.json("POST", "/v1/documents?wait=true&max_tokens=32",
                    "--B\r\n" + file + "\r\n--B--\r\n",
                    {"Content-Type: multipart/form-data; boundary=B"}, &status);
  ASSERT_EQ(status, 200) << json::serialize(r);
  r = service_.json("POST", "/v1/retrieve", R"({"query":"river Dern","k":1})");
  EXPECT_EQ(text_at(r, "data.0.heading"), "Guide > Rivers") << json::serialize(r);
}

TEST_F(RetrieveTest, WrongAsksAreRefusedByName) {
  post_corpus();
  EXPECT_EQ(found(R"({})"), "!invalid_value query");
  EXPECT_EQ(found(R"({"query":""})"), "!invalid_value query");
  EXPECT_EQ(found(R"({"query":"q","k":0})"), "!invalid_value k");
  EXPECT_EQ(found(R"({"query":"q","k":101})"), "!invalid_value k");
  EXPECT_EQ(found(R"({"query":"q","unit":"page"})"), "!invalid_value unit");
  EXPECT_EQ(found(R"({"query":"q","scorer":"magic"})"), "!unsupported_parameter scorer");
  EXPECT_EQ(found(R"({"query":"q","metadata":{"a":[[1]]}})"), "!invalid_value metadata.a");
  EXPECT_EQ(found(R"({"query":"q","querry":"q"})"), "!unknown_field querry");
  EXPECT_EQ(found(R"({"query":"q","document_ids":["alba","nobody"]})"),
            "!document_not_found document_ids");
}

TEST_F(RetrieveTest, AQueryWithoutDocumentsGetsTheBestOnes) {
  int status = 0;
  auto r = service_.json("POST", "/v1/query",
                         R"({"query":"Who is the mayor of Alba?","max_tokens":8})", {}, &status);
  EXPECT_EQ(status, 200);  // the namespace is empty, so there are no documents
  EXPECT_TRUE(at(r, "documents").as_array().empty());
  post_corpus();
  r = service_.json("POST", "/v1/query", R"({"query":"Who is the mayor of Alba?","max_tokens":8})",
                    {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(r);
  // The best one stands last, right before the question.
  EXPECT_EQ(text_at(r, "documents.2.id"), "alba");
  EXPECT_GT(at(r, "documents.2.score").to_number<double>(),
            at(r, "documents.1.score").to_number<double>());
  r = service_.json(
      "POST", "/v1/query",
      R"({"query":"Alba","max_tokens":8,"retrieve":{"k":1,"metadata":{"year":2025}}})", {},
      &status);
  ASSERT_EQ(at(r, "documents").as_array().size(), 1u) << json::serialize(r);
  EXPECT_EQ(text_at(r, "documents.0.id"), "dern");
  // The request names no documents, and none has a word of the question.
  r = service_.json("POST", "/v1/query", R"({"query":"Zzyzx?","max_tokens":8})", {}, &status);
  EXPECT_EQ(status, 200);
  EXPECT_TRUE(at(r, "documents").as_array().empty());
  r = service_.json("POST", "/v1/query", R"({"query":"Zzyzx?","max_tokens":8,"retrieve":{}})", {},
                    &status);
  EXPECT_EQ(status, 404);
  EXPECT_EQ(text_at(r, "error.code"), "document_not_found");
  EXPECT_EQ(service_
                .call("POST", "/v1/query",
                      R"({"query":"Zzyzx?","max_tokens":8,"retrieve":{},"on_missing":"skip"})")
                .status,
            200);
  r = service_.json("POST", "/v1/query", R"({"query":"Alba","max_tokens":8,"document_ids":[]})", {},
                    &status);
  EXPECT_TRUE(at(r, "documents").as_array().empty());
  // It chooses among those that are named, too.
  r = service_.json("POST", "/v1/query",
                    R"({"query":"Alba","max_tokens":8,"document_ids":["alba","dern"],)"
                    R"("retrieve":{"k":1}})",
                    {}, &status);
  EXPECT_EQ(status, 200) << json::serialize(r);
  ASSERT_EQ(at(r, "documents").as_array().size(), 1u) << json::serialize(r);
  EXPECT_EQ(text_at(r, "documents.0.id"), "alba");
  r = service_.json("POST", "/v1/query",
                    R"({"query":"Alba","document_ids":["alba","nobody"],"retrieve":{}})", {},
                    &status);
  EXPECT_EQ(status, 404);
  EXPECT_NE(text_at(r, "detail").find("nobody"), std::string::npos) << json::serialize(r);
  r = service_.json("POST", "/v1/query",
                    R"({"query":"Alba","documents":[{"text":"t"}],"retrieve":{}})", {}, &status);
  EXPECT_EQ(status, 400);
  EXPECT_EQ(text_at(r, "error.param"), "retrieve");
  r = service_.json("POST", "/v1/query/plan", R"({"query":"glass"})", {}, &status);
  EXPECT_EQ(text_at(r, "documents.0.id"), "corva");
}

TEST_F(RetrieveTest, TheBestDocumentStandsWhereTheOrderSays) {
  post_corpus();
  const auto ids = [this](const std::string& more) {
    const auto r = service_.json("POST", "/v1/query/plan",
                                 R"({"query":"Mayor of Alba?")" + more + "}");
    std::string out;
    for (const auto& d : at(r, "documents").as_array())
      out += (out.empty() ? "" : " ") + text_at(d, "id");
    return out;
  };
  EXPECT_EQ(ids(R"(,"retrieve":{"order":"best_first"})"), "alba dern");
  for (const std::string unit : {"auto", "chunk", "document"})
    EXPECT_EQ(ids(R"(,"retrieve":{"order":"best_last","unit":")" + unit + R"("})"), "dern alba");
  // The order says nothing about which documents are taken.
  EXPECT_EQ(ids(R"(,"retrieve":{"order":"best_last","k":1})"), "alba");
  EXPECT_EQ(ids(R"(,"document_ids":["corva","alba","dern"])"), "corva alba dern");
  service_.stop();
  service_.start(folder_.path() / "store", {"--retrieve.order=best_first"});
  // Until the index is read again there is nothing to find.
  for (int i = 0; i < 200 && ids("").empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(ids(""), "alba dern");
  EXPECT_EQ(ids(R"(,"retrieve":{"order":"best_last"})"), "dern alba");
  EXPECT_EQ(ids(R"(,"document_ids":["corva","alba","dern"])"), "corva alba dern");
}

TEST_F(RetrieveTest, CopiesOfATextLeaveRoomForOthers) {
  const std::string mayor = "The mayor of Alba is Brun Karsten, who was elected twice.";
  for (int i = 0; i < 6; ++i) post("copy" + std::to_string(i), mayor);
  post("other", "The mayor lives in a house by the river, far from the market and its noise.");
  for (const std::string unit : {"auto", "chunk", "document"}) {
    const auto r = service_.json("POST", "/v1/query",
                                 R"({"query":"Who is the mayor of Alba?","max_tokens":4,)"
                                 R"("retrieve":{"k":2,"unit":")" +
                                     unit + R"("}})");
    ASSERT_EQ(at(r, "documents").as_array().size(), 2u) << unit << json::serialize(r);
    EXPECT_EQ(text_at(r, "documents.1.id"), "copy0") << unit;
    EXPECT_EQ(text_at(r, "documents.0.id"), "other") << unit;
  }
}

TEST(LongDocuments, AreAskedByTheirBestChunks) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store", {"--model.max_model_len=1024"});
  std::string text;
  for (int i = 0; i < 120; ++i)
    text += "Paragraph " + std::to_string(i) + " says that the harbour of Nolmar was quiet. ";
  const std::string needle = "The lighthouse keeper of Brisk is called Oda Vell. ";
  std::string longer = text + needle + text;
  const auto post = [&](const std::string& id, const std::string& body) {
    int status = 0;
    const auto r = service.json(
        "POST", "/v1/documents?wait=true",
        json::serialize(
            json::object{{"id", id}, {"text", body}, {"chunking", {{"max_tokens", 128}}}}),
        {}, &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
  };
  post("long", longer);
  post("short", "A short note about the harbour of Brisk.");
  ASSERT_GT(int_at(service.json("GET", "/v1/documents/long"), "tokens"), 1024);
  const std::uint64_t at_needle = text.size();
  const auto holds_needle = [&](const json::value& reply) {
    std::uint64_t begin = 0, end = 0;
    const auto chunks = service.json("GET", "/v1/documents/long/chunks");
    for (const auto& d : at(reply, "documents").as_array()) {
      if (text_at(d, "id") != "long") continue;
      for (const auto& c : at(d, "chunks").as_array()) {
        const auto& chunk = at(chunks, "data").as_array().at(c.to_number<std::size_t>());
        begin = chunk.at("chars").at(0).to_number<std::uint64_t>();
        end = chunk.at("chars").at(1).to_number<std::uint64_t>();
        if (begin <= at_needle && at_needle < end) return true;
      }
    }
    return false;
  };
  for (const std::string which :
       {R"("document_ids":["long"])", R"("document_ids":["short","long"])", R"("retrieve":{})",
        R"("retrieve":{"unit":"document"})", R"("retrieve":{"unit":"chunk","k":2})"}) {
    int status = 0;
    const auto r = service.json(
        "POST", "/v1/query",
        R"({"query":"Who is the lighthouse keeper of Brisk?","max_tokens":8,)" + which + "}", {},
        &status);
    ASSERT_EQ(status, 200) << which << json::serialize(r);
    EXPECT_LE(int_at(r, "usage.prompt_tokens"), 1024) << which;
    EXPECT_TRUE(holds_needle(r)) << which << json::serialize(at(r, "documents"));
  }
  // What cannot be chosen from is refused as before.
  int status = 0;
  const auto r = service.json(
      "POST", "/v1/query",
      json::serialize(
          json::object{{"query", "Who?"}, {"max_tokens", 8}, {"documents", {{{"text", longer}}}}}),
      {}, &status);
  EXPECT_EQ(status, 400);
  EXPECT_EQ(text_at(r, "error.code"), "context_length_exceeded") << json::serialize(r);
}

TEST(LongDocuments, AreRefusedWhereNoChunkOfThemFits) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store", {"--model.max_model_len=1024"});
  std::string chunk;  // some 920 tokens
  for (int i = 0; i < 40; ++i) chunk += "Paragraph 12 says that the harbour of Nolmar was quiet. ";
  int status = 0;
  const auto posted = service.json(
      "POST", "/v1/documents?wait=true",
      json::serialize(json::object{{"id", "coarse"}, {"chunks", {chunk, chunk + "Twice."}}}), {},
      &status);
  ASSERT_EQ(status, 200) << json::serialize(posted);
  const auto ask = [&](const std::string& max_tokens) {
    return service.json(
        "POST", "/v1/query",
        R"({"query":"Who was quiet?","document_ids":["coarse"],"max_tokens":)" + max_tokens + "}",
        {}, &status);
  };
  const auto fits = ask("8");
  EXPECT_EQ(status, 200);
  EXPECT_EQ(at(fits, "documents").as_array().size(), 1u) << json::serialize(fits);
  const auto refused = ask("200");
  EXPECT_EQ(status, 400) << "an answer without the named document: " << json::serialize(refused);
  EXPECT_EQ(text_at(refused, "error.code"), "context_length_exceeded");
}

TEST(LongDocuments, AQueryThatAsksForDocumentsIsRefusedWhereNoTextThatWasFoundFits) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  int status = 0;
  const auto posted = service.json("POST", "/v1/documents?wait=true",
                                   R"({"id":"harbour","text":"The harbour of Nolmar was quiet."})",
                                   {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(posted);
  const auto ask = [&](const std::string& rest) {
    return service.json("POST", "/v1/query",
                        R"({"query":"Was the harbour quiet?","max_tokens":4,)" + rest + "}", {},
                        &status);
  };
  const auto refused = ask(R"("retrieve":{"max_tokens":2})");
  EXPECT_EQ(status, 400) << "an answer without documents: " << json::serialize(refused);
  EXPECT_EQ(text_at(refused, "error.param"), "retrieve");
  const auto skipped = ask(R"("retrieve":{"max_tokens":2},"on_missing":"skip")");
  EXPECT_EQ(status, 200);
  EXPECT_TRUE(at(skipped, "documents").as_array().empty()) << json::serialize(skipped);
  const auto fits = ask(R"("retrieve":{"max_tokens":200})");
  EXPECT_EQ(status, 200);
  EXPECT_EQ(at(fits, "documents").as_array().size(), 1u) << json::serialize(fits);
}

TEST_F(RetrieveTest, TheCommandLineFindsAndAsksWithoutIds) {
  post_corpus();
  const std::string server = "http://127.0.0.1:" + std::to_string(service_.port());
  auto r = run_process(
      {QUIRE_BINARY, "retrieve", "--server", server, "-k", "1", "What is known for glass?"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("corva"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("alba"), std::string::npos) << r.out;
  r = run_process({QUIRE_BINARY, "retrieve", "--server", server, "--documents", "--json", "-d",
                   "dern", "Alba"});
  EXPECT_EQ(text_at(parse(r.out), "data.0.document_id"), "dern") << r.err;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "--json", "--max-tokens", "4",
                   "--order", "best_first", "What is known for glass?"});
  EXPECT_EQ(text_at(parse(r.out), "documents.0.id"), "corva") << r.err;
  r = run_process({QUIRE_BINARY, "query", "--server", server, "--json", "--max-tokens", "4",
                   "--no-documents", "What is known for glass?"});
  EXPECT_TRUE(at(parse(r.out), "documents").as_array().empty()) << r.out;
  EXPECT_EQ(
      run_process({QUIRE_BINARY, "retrieve", "--server", server, "-k", "1000", "x"}).exit_code, 1);
  // What is found is told apart by place, and shown by its beginning.
  post("guide", "Glass is blown.\n\n" + sample_text(3, 400),
       R"(,"marks":[{"start":0,"page":7,"heading":"Crafts"}])");
  const auto found = [&](std::vector<std::string> more) {
    std::vector<std::string> line = {QUIRE_BINARY, "retrieve", "--server", server};
    line.insert(line.end(), more.begin(), more.end());
    return run_process(line);
  };
  r = found({"-d", "guide", "-k", "1", "Who blows glass?"});
  EXPECT_NE(r.out.find("guide, page 7, Crafts"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("Glass is blown. "), std::string::npos) << r.out;
  EXPECT_LT(r.out.size(), 500u) << r.out;
  EXPECT_GT(found({"-d", "guide", "-k", "1", "--full", "Who blows glass?"}).out.size(), 1000u);
  r = found({"--metadata", "year>=2025", "--metadata", "land=north", "Alba"});
  EXPECT_NE(r.out.find("dern"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("alba,"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find("  alba"), std::string::npos) << r.out;
  for (const auto& r2 : {found({"Zzyzx?"}), found({"--min-score", "99", "Alba"})}) {
    EXPECT_EQ(r2.exit_code, 0);
    EXPECT_EQ(r2.out, "");
    EXPECT_NE(r2.err.find("nothing was found"), std::string::npos) << r2.err;
  }
}

TEST_F(RetrieveTest, TheIndexComesBackAfterARestart) {
  post_corpus();
  EXPECT_EQ(service_.stop(), 0);
  service_.start(folder_.path() / "store");
  ASSERT_TRUE(service_.wait_for_log("retrieval ready"));
  EXPECT_EQ(found(R"({"query":"mayor","k":1})"), "alba");
}

TEST_F(RetrieveTest, WithoutEmbeddingsTheirScorersSayHowToHaveThem) {
  EXPECT_EQ(found(R"({"query":"mayor","scorer":"embedding"})"), "!unsupported_parameter scorer");
  int status = 0;
  const auto r = service_.json("POST", "/v1/query",
                               R"({"query":"mayor","max_tokens":4,"retrieve":{"scorer":"hybrid"}})",
                               {}, &status);
  EXPECT_EQ(status, 400);
  EXPECT_EQ(text_at(r, "error.param"), "retrieve.scorer");
  EXPECT_NE(text_at(r, "detail").find("retrieve.embeddings = true"), std::string::npos);
  EXPECT_TRUE(at(service_.json("GET", "/v1/info"), "retrieval.embeddings").is_null());
}

TEST_F(RetrieveTest, EmbeddingsFindByMeaningAndStayOverARestart) {
  EXPECT_EQ(service_.stop(), 0);
  const std::vector<std::string> on = {"--retrieve.embeddings=true"};
  service_.start(folder_.path() / "store", on);
  post_corpus();
  const auto synchronize = [this] {
    json::value info;
    do info = service_.json("GET", "/v1/info");
    while (!at(info, "retrieval.ready").as_bool() ||
           int_at(info, "retrieval.embeddings.pending") > 0);
    EXPECT_EQ(int_at(info, "retrieval.embeddings.documents"), 3);
    EXPECT_EQ(int_at(info, "retrieval.embeddings.failed"), 0);
    EXPECT_EQ(int_at(info, "retrieval.embeddings.disk_bytes"), 0);
    EXPECT_TRUE(at(info, "retrieval.embeddings.exact").as_bool());
  };
  synchronize();
  // A text is nearest to itself.
  const std::string body =
      R"({"query":"Corva: Corva is a village in the south. It is known for glass.","k":3,)"
      R"("scorer":)";
  const auto before = service_.json("POST", "/v1/retrieve", body + R"("embedding"})");
  EXPECT_EQ(text_at(before, "data.0.document_id"), "corva");
  EXPECT_NEAR(at(before, "data.0.score").to_number<double>(), 1, 1e-3);
  EXPECT_EQ(at(before, "data").as_array().size(), 3u);
  EXPECT_EQ(text_at(before, "scorer"), "embedding");
  EXPECT_EQ(int_at(before, "pending_documents"), 0);
  EXPECT_EQ(
      text_at(service_.json("POST", "/v1/retrieve", body + R"("hybrid"})"), "data.0.document_id"),
      "corva");
  const auto answer = service_.json(
      "POST", "/v1/query",
      R"({"query":"What is Corva known for?","max_tokens":4,"retrieve":{"k":2,)"
      R"("scorer":"hybrid"}})");
  EXPECT_EQ(at(answer, "documents").as_array().size(), 2u) << json::serialize(answer);
  EXPECT_EQ(service_.stop(), 0);
  service_.start(folder_.path() / "store", on);
  synchronize();
  const auto after = service_.json("POST", "/v1/retrieve", body + R"("embedding"})");
  EXPECT_EQ(json::serialize(at(after, "data")), json::serialize(at(before, "data")));
  const std::string server = "http://127.0.0.1:" + std::to_string(service_.port());
  const auto r = run_process({QUIRE_BINARY, "retrieve", "--server", server, "-k", "1", "--scorer",
                              "hybrid", "What is Corva known for?"});
  EXPECT_NE(r.out.find("corva"), std::string::npos) << r.out << r.err;
}

/// The tiny models that tests/unit/engine/encoder compares with transformers.
std::string tiny_model(const std::string& name) {
  return std::string(QUIRE_SOURCE_DIR) + "/tests/unit/engine/encoder/golden/" + name;
}

TEST_F(RetrieveTest, AnEncoderMakesHybridTheDefaultAndServesEmbeddings) {
  EXPECT_EQ(service_.stop(), 0);
  service_.start(folder_.path() / "store",
                 {"--retrieve.encoder=" + tiny_model("mean_f32"), "--model.name=demo"});
  post_corpus();
  json::value info;
  do info = service_.json("GET", "/v1/info");
  while (int_at(info, "retrieval.embeddings.pending") > 0);
  EXPECT_EQ(text_at(info, "retrieval.scorer"), "hybrid");
  EXPECT_EQ(text_at(info, "retrieval.encoder.name"), "mean_f32");
  EXPECT_EQ(int_at(info, "retrieval.encoder.dimension"), 32);
  EXPECT_TRUE(at(info, "retrieval.reranker").is_null());
  EXPECT_EQ(text_at(service_.json("POST", "/v1/retrieve", R"({"query":"glass"})"), "scorer"),
            "hybrid");
  EXPECT_EQ(text_at(service_.json("POST", "/v1/retrieve", R"({"query":"glass","scorer":"bm25"})"),
                    "scorer"),
            "bm25");
  int status = 0;
  const auto r = service_.json("POST", "/v1/embeddings",
                               R"({"input":["the red fish","a"],"model":"mean_f32"})", {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(r);
  EXPECT_EQ(text_at(r, "model"), "mean_f32");
  EXPECT_EQ(at(r, "data.0.embedding").as_array().size(), 32u);
  EXPECT_EQ(int_at(r, "usage.prompt_tokens"), 5 + 3);
  const auto states = service_.json("POST", "/v1/embeddings",
                                    R"({"input":"the red fish","model":"demo"})");
  EXPECT_EQ(at(states, "data.0.embedding").as_array().size(), 256u) << json::serialize(states);
  const auto refused = [&](const std::string& body) {
    const auto e = service_.json("POST", "/v1/embeddings", body, {}, &status);
    return std::to_string(status) + " " + text_at(e, "error.code") + " " +
           text_at(e, "error.param");
  };
  EXPECT_EQ(refused(R"({"input":[1,2]})"), "400 invalid_value input");
  EXPECT_EQ(refused(R"({"input":["a","a a a a a a a a a a a a a a a a a a a a a a a a a"]})"),
            "400 context_length_exceeded input[1]");
  EXPECT_EQ(refused(R"({"input":"a","model":"other"})"), "404 model_not_found model");
}

/// Another service stands in for an OpenAI-compatible one.
TEST_F(RetrieveTest, AnotherServiceEmbedsAndWhileItIsAwayWordsRank) {
  EXPECT_EQ(service_.stop(), 0);
  ServiceProcess embeds;
  embeds.start(folder_.path() / "embeds");
  const std::string url = "--retrieve.embeddings_url=http://127.0.0.1:" +
                          std::to_string(embeds.port()) + "/v1/embeddings";
  service_.start(folder_.path() / "store", {url, "--retrieve.embeddings_model=default"});
  post_corpus();
  json::value info;
  do info = service_.json("GET", "/v1/info");
  while (int_at(info, "retrieval.embeddings.pending") > 0);
  EXPECT_EQ(int_at(info, "retrieval.embeddings.documents"), 3);
  EXPECT_EQ(text_at(info, "retrieval.scorer"), "hybrid");
  const std::string body =
      R"({"query":"Corva: Corva is a village in the south. It is known for glass.")";
  const auto found = service_.json("POST", "/v1/retrieve", body + R"(,"scorer":"embedding"})");
  EXPECT_EQ(text_at(found, "data.0.document_id"), "corva");
  EXPECT_NEAR(at(found, "data.0.score").to_number<double>(), 1, 1e-3);
  EXPECT_EQ(embeds.stop(), 0);
  const auto by_words = service_.json("POST", "/v1/retrieve", body + "}");
  EXPECT_EQ(text_at(by_words, "scorer"), "bm25");
  EXPECT_EQ(text_at(by_words, "data.0.document_id"), "corva");
  post("elm", "Elm: Elm is a hill.");
  info = service_.json("GET", "/v1/info");
  EXPECT_EQ(int_at(info, "retrieval.embeddings.failed"), 0) << "it waits";
  EXPECT_EQ(int_at(info, "retrieval.embeddings.pending"), 1);
}

TEST_F(RetrieveTest, AKeyThatIsNotThereStopsTheStart) {
  const auto r = run_process({QUIRE_BINARY, "serve", "--server.port=0",
                              "--disk.path=" + (folder_.path() / "other").string(),
                              "--retrieve.embeddings_url=http://127.0.0.1:1/v1/embeddings",
                              "--retrieve.embeddings_key_env=QUIRE_NO_SUCH_KEY"});
  EXPECT_NE(r.exit_code, 0);
  EXPECT_NE((r.out + r.err).find("QUIRE_NO_SUCH_KEY"), std::string::npos) << r.out << r.err;
}

TEST_F(RetrieveTest, RerankTakesTheBestRankerThereIsAndNamesIt) {
  const std::string texts =
      R"("documents":["green tea",{"text":"The mayor of Alba walks."},"the mayor"])";
  int status = 0;
  const auto rerank = [&](const std::string& more) {
    return service_.json("POST", "/v1/rerank",
                         R"({"query":"Who is the mayor?",)" + texts + more + "}", {}, &status);
  };
  auto r = rerank("");
  ASSERT_EQ(status, 200) << json::serialize(r);
  EXPECT_EQ(text_at(r, "scorer"), "bm25");
  EXPECT_EQ(text_at(r, "model"), "bm25");
  ASSERT_EQ(at(r, "results").as_array().size(), 3u);
  EXPECT_EQ(int_at(r, "results.0.index"), 2);
  EXPECT_EQ(int_at(r, "results.2.index"), 0);
  EXPECT_EQ(at(r, "results.2.relevance_score").to_number<double>(), 0);
  EXPECT_FALSE(at(r, "results.0").as_object().contains("document"));
  r = rerank(R"(,"top_n":1,"return_documents":true)");
  ASSERT_EQ(at(r, "results").as_array().size(), 1u);
  EXPECT_EQ(text_at(r, "results.0.document.text"), "the mayor");
  r = rerank(R"(,"model":"ms-marco")");
  EXPECT_EQ(status, 404);
  EXPECT_EQ(text_at(r, "error.code"), "model_not_found");

  EXPECT_EQ(service_.stop(), 0);
  service_.start(folder_.path() / "store", {"--retrieve.encoder=" + tiny_model("mean_f32"),
                                            "--retrieve.reranker=" + tiny_model("cross_f16")});
  r = rerank("");
  ASSERT_EQ(status, 200) << json::serialize(r);
  EXPECT_EQ(text_at(r, "scorer"), "cross_encoder");
  EXPECT_EQ(text_at(r, "model"), "cross_f16");
  EXPECT_GT(int_at(r, "usage.total_tokens"), 0);
  double before = 1;
  for (const auto& one : at(r, "results").as_array()) {
    const double score = one.at("relevance_score").to_number<double>();
    EXPECT_TRUE(score >= 0 && score <= before) << json::serialize(r);
    before = score;
  }
  r = rerank(R"(,"model":"mean_f32")");
  EXPECT_EQ(text_at(r, "scorer"), "encoder");
  EXPECT_EQ(text_at(rerank(R"(,"model":"bm25")"), "scorer"), "bm25");
}

TEST_F(RetrieveTest, ACrossEncoderRanksWhatSearchesFindAnew) {
  int status = 0;
  auto r = service_.json("POST", "/v1/retrieve", R"({"query":"glass","rerank":5})", {}, &status);
  EXPECT_EQ(status, 400);
  EXPECT_EQ(text_at(r, "error.code"), "unsupported_parameter");
  EXPECT_EQ(text_at(r, "error.param"), "rerank");
  r = service_.json("POST", "/v1/query", R"({"query":"glass","retrieve":{"rerank":5}})", {},
                    &status);
  EXPECT_EQ(status, 400);
  EXPECT_EQ(text_at(r, "error.param"), "retrieve.rerank");

  EXPECT_EQ(service_.stop(), 0);
  service_.start(folder_.path() / "store", {"--retrieve.reranker=" + tiny_model("cross_f16")});
  post_corpus();
  const std::string question = "What is Corva known for?";
  const auto search = [&](const std::string& more) {
    return service_.json("POST", "/v1/retrieve", R"({"query":")" + question + "\"" + more + "}");
  };
  const auto words = search(R"(,"k":100,"rerank":0)"), anew = search(R"(,"k":100)");
  EXPECT_FALSE(words.as_object().contains("reranker"));
  EXPECT_EQ(text_at(anew, "reranker"), "cross_f16");
  EXPECT_EQ(text_at(anew, "scorer"), "bm25");
  json::array texts;
  for (const auto& p : at(words, "data").as_array()) {
    const json::value* title = p.as_object().if_contains("title");
    const std::string before = title && title->is_string() ? std::string(title->as_string()) + "\n"
                                                           : std::string();
    texts.emplace_back(before + std::string(p.at("text").as_string()));
  }
  ASSERT_GT(texts.size(), 1u);
  ASSERT_EQ(at(anew, "data").as_array().size(), texts.size());
  const json::object body{{"query", question}, {"documents", texts}};
  const auto ranked = service_.json("POST", "/v1/rerank", json::serialize(body));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string place = std::to_string(i);
    const auto index = static_cast<std::size_t>(int_at(ranked, "results." + place + ".index"));
    EXPECT_EQ(text_at(anew, "data." + place + ".document_id"),
              text_at(words, "data." + std::to_string(index) + ".document_id"));
    EXPECT_NEAR(at(anew, "data." + place + ".score").to_number<double>(),
                at(ranked, "results." + place + ".relevance_score").to_number<double>(), 1e-6);
  }
  const auto two = search(R"(,"k":1,"rerank":2)");
  ASSERT_EQ(at(two, "data").as_array().size(), 1u);
  const auto answer = service_.json(
      "POST", "/v1/query",
      R"({"query":")" + question + R"(","max_tokens":4,"retrieve":{"k":1,"unit":"chunk"}})");
  EXPECT_EQ(text_at(answer, "documents.0.id"), text_at(anew, "data.0.document_id"));
}

/// Thousands of texts may take an encoder minutes.
TEST_F(RetrieveTest, TextsForAnEncoderHoldNoOtherRequestUp) {
  EXPECT_EQ(service_.stop(), 0);
  service_.start(folder_.path() / "store", {"--retrieve.encoder=" + tiny_model("mean_f32")});
  std::string text;
  while (text.size() < 20'000) text += "the red fish ";
  json::array texts;
  for (int i = 0; i < 60; ++i) texts.emplace_back(text);
  const std::string body = json::serialize(json::object{{"query", "fish"}, {"documents", texts}});
  std::atomic<int> answered = 0;
  std::vector<std::thread> asking;
  for (int i = 0; i < 5; ++i) {
    asking.emplace_back([&] {
      EXPECT_EQ(service_.call("POST", "/v1/rerank", body).status, 200);
      ++answered;
    });
  }
  const auto all_run = [&] {
    return service_.call("GET", "/metrics").body.find("quire_requests_running 6") !=
           std::string::npos;
  };
  while (!all_run() && answered == 0) std::this_thread::yield();
  // Behind them in a queue, the first would be answered after one of them.
  int others = 0;
  for (; answered == 0 && others < 20; ++others)
    EXPECT_EQ(service_.call("GET", "/v1/documents").status, 200);
  EXPECT_GE(others, 10) << "while all are read";
  for (std::thread& one : asking) one.join();
}

TEST_F(RetrieveTest, AFolderThatIsNoEncoderStopsTheStart) {
  const auto r = run_process({QUIRE_BINARY, "serve", "--server.port=0",
                              "--disk.path=" + (folder_.path() / "other").string(),
                              "--retrieve.reranker=" + tiny_model("mean_f32")});
  EXPECT_NE(r.exit_code, 0);
  EXPECT_NE((r.out + r.err).find("retrieve.reranker"), std::string::npos) << r.out << r.err;
}

TEST_F(RetrieveTest, EmbeddingsHaveLengthOneAndBothSpellings) {
  int status = 0;
  const auto r = service_.json(
      "POST", "/v1/embeddings",
      R"({"input":["The mayor of Alba.","The mayor of Alba.",[5,6,7]],"model":"default",)"
      R"("user":"x"})",
      {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(r);
  ASSERT_EQ(at(r, "data").as_array().size(), 3u);
  const auto& first = at(r, "data.0.embedding").as_array();
  EXPECT_EQ(first.size(), 256u);
  double squares = 0;
  for (const auto& x : first) squares += std::pow(x.to_number<double>(), 2);
  EXPECT_NEAR(squares, 1, 1e-4);
  EXPECT_EQ(json::serialize(at(r, "data.1.embedding")), json::serialize(at(r, "data.0.embedding")));
  EXPECT_NE(json::serialize(at(r, "data.2.embedding")), json::serialize(at(r, "data.0.embedding")));
  EXPECT_EQ(int_at(r, "data.2.index"), 2);
  EXPECT_GT(int_at(r, "usage.prompt_tokens"), 3);
  EXPECT_EQ(int_at(r, "usage.prompt_tokens"), int_at(r, "usage.total_tokens"));
  const auto coded = service_.json("POST", "/v1/embeddings",
                                   R"({"input":"The mayor of Alba.","encoding_format":"base64"})");
  EXPECT_EQ(text_at(coded, "data.0.embedding").size(), (256u * 4 + 2) / 3 * 4);
  const auto refused = [&](const std::string& body) {
    const auto e = service_.json("POST", "/v1/embeddings", body, {}, &status);
    return std::to_string(status) + " " + text_at(e, "error.code") + " " +
           text_at(e, "error.param");
  };
  EXPECT_EQ(refused(R"({"input":"x","dimensions":8})"), "400 unsupported_parameter dimensions");
  EXPECT_EQ(refused(R"({})"), "400 invalid_value input");
  EXPECT_EQ(refused(R"({"input":[]})"), "400 invalid_value input");
  EXPECT_EQ(refused(R"({"input":["a",""]})"), "400 invalid_value input[1]");
  EXPECT_EQ(refused(R"({"input":[1,"a"]})"), "400 invalid_value input");
  EXPECT_EQ(refused(R"({"input":[99999]})"), "400 invalid_value input");
  EXPECT_EQ(refused(R"({"input":"x","model":"other"})"), "404 model_not_found model");
  EXPECT_EQ(refused(R"({"input":)" + quoted(sample_text(1, 4000)) + "}"),
            "400 context_length_exceeded input");
}

}  // namespace
}  // namespace quire::testing
