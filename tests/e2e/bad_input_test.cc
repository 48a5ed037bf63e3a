// Bad input gives a clear error that names the field, and the server stays up.
#include <boost/json/serialize.hpp>
#include <fstream>
#include <functional>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

class BadInputTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    start({"--server.max_body_bytes=4194304", "--limits.document_tokens=4000"});
    EXPECT_EQ(
        service->call("POST", "/v1/documents?wait=true", R"({"id":"d","text":"A short text."})")
            .status,
        200);
  }
  void TearDown() override {
    EXPECT_EQ(service->call("GET", "/readyz").status, 200);
    EXPECT_EQ(service->call("GET", "/v1/documents/d/content").body, "A short text.");
  }
  static void expect(const RawResponse& r, int status, const std::string& code,
                     const std::string& param = "-") {
    EXPECT_EQ(r.status, status) << r.body.substr(0, 500);
    const auto v = parse(r.body);
    EXPECT_EQ(text_at(v, "error.code"), code) << r.body.substr(0, 500);
    if (param != "-") {
      EXPECT_EQ(text_at(v, "error.param"), param) << r.body.substr(0, 500);
    }
    EXPECT_EQ(int_at(v, "status"), status);
    EXPECT_FALSE(text_at(v, "detail").empty());
  }
  static RawResponse post(const std::string& body) {
    return service->call("POST", "/v1/documents?wait=true", body);
  }
  static RawResponse ask(const std::string& body) {
    return service->call("POST", "/v1/query", body);
  }
};

TEST_F(BadInputTest, WrongTypesAndUnknownFields) {
  expect(post("{"), 400, "invalid_json");
  expect(post(R"({"text":"a","text":"b"})"), 400, "invalid_json");
  expect(post(R"({"text":"a","titel":"b"})"), 400, "unknown_field", "titel");
  expect(post(R"({"documents":[{"text":"a"},{"text":7}]})"), 400, "invalid_value",
         "documents[1].text");
  expect(ask(R"({"query":"q","cache":{"strategy":"magic"}})"), 400, "invalid_value",
         "cache.strategy");
  expect(ask(R"({"query":"q","cache":{"compress":"magic"}})"), 400, "invalid_value",
         "cache.compress");
  expect(ask(R"({"query":"q","cache":{"decode":"magic"}})"), 400, "invalid_value", "cache.decode");
  expect(ask(R"({"query":"q","model":"gpt"})"), 404, "model_not_found", "model");
  expect(ask(R"({"query":"q","system":"Be nice."})"), 400, "invalid_value", "system");
  expect(service->call("GET", "/v1/documents?limt=3"), 400, "unknown_field", "limt");
  expect(service->call("GET", "/v1/documents?limit=0"), 400, "invalid_value", "limit");
  expect(service->call("GET", "/v1/documents/d/chunks?limit=1"), 400, "unknown_field", "limit");
  // A parameter that asks for less is not passed over, least of all here.
  expect(service->call("DELETE", "/v1/documents/d?dry_run=true"), 400, "unknown_field", "dry_run");
  expect(service->call("POST", "/v1/documents/delete?dry_run=true", R"({"ids":["d"]})"), 400,
         "unknown_field", "dry_run");
  expect(service->call("POST", "/v1/retrieve?k=1", R"({"query":"q"})"), 400, "unknown_field", "k");
  expect(service->call("POST", "/v1/query", "q", {}, "text/plain"), 415, "unsupported_media_type");
  expect(service->call("POST", "/v1/documents", "x", {}, "application/x-tar"), 415,
         "unsupported_media_type");
}

TEST_F(BadInputTest, EmptyDocuments) {
  expect(post(R"({"text":""})"), 422, "empty_document", "text");
  expect(post(R"({"text":" \n\t "})"), 422, "empty_document", "text");
  expect(service->call("PUT", "/v1/documents/x?wait=true", R"({"text":""})"), 422,
         "empty_document");
  expect(service->call("POST", "/v1/documents?wait=true", "", {}, "text/plain"), 422,
         "empty_document");
  expect(post(R"({"documents":[]})"), 400, "invalid_value", "documents");
}

TEST_F(BadInputTest, HugeDocuments) {
  const auto long_one = post(R"({"id":"long","text":)" + quoted(sample_text(3, 8000)) + "}");
  expect(long_one, 400, "document_too_long", "text");
  EXPECT_NE(text_at(parse(long_one.body), "title").find("document is too long"), std::string::npos)
      << long_one.body;
  expect(post(R"({"text":")" + std::string(5 << 20, 'a') + "\"}"), 413, "payload_too_large");
  LoopbackClient c(service->port());
  ASSERT_TRUE(
      c.send("POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
             "application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"));
  const std::string piece(60000, 'b');  // one line without an end
  char size[16];
  std::snprintf(size, sizeof size, "%zx\r\n", piece.size());
  for (int i = 0; i < 100; ++i)
    if (!c.send(size + piece + "\r\n")) break;
  const auto r = c.read_response();
  ASSERT_TRUE(r);
  EXPECT_EQ(r->status, 413);
}

TEST_F(BadInputTest, ARefusedDocumentKeepsNoText) {
  const auto text_bytes = [] {
    return int_at(service->json("GET", "/v1/documents?include=counts"), "counts.text_bytes");
  };
  const auto before = text_bytes();
  expect(service->call("POST", "/v1/documents?wait=true&id=refused", sample_text(3, 8000), {},
                       "text/plain"),
         400, "document_too_long", "text");
  EXPECT_EQ(text_bytes(), before);
  const auto d = service->json("GET", "/v1/documents/refused");
  EXPECT_EQ(text_at(d, "status"), "failed") << json::serialize(d);
  EXPECT_EQ(text_at(d, "error.code"), "document_too_long");
  EXPECT_EQ(int_at(d, "bytes"), 0);
  const auto content = service->call("GET", "/v1/documents/refused/content");
  expect(content, 409, "document_not_ready", "id");
  EXPECT_NE(content.body.find("its text was not kept"), std::string::npos) << content.body;
  EXPECT_EQ(service->call("DELETE", "/v1/documents/refused").status, 200);
}

TEST_F(BadInputTest, DetailsNameWhatIsWrong) {
  const auto detail = [](const RawResponse& r) { return text_at(parse(r.body), "detail"); };
  auto r = post(R"({"text":"x","chunking":{"max_tokens":4}})");
  expect(r, 400, "invalid_value", "chunking.max_tokens");
  EXPECT_EQ(detail(r).find("chunking.max_tokens must be"), 0u) << detail(r);
  r = post(R"({"text":"x","cache_salt":"abc"})");
  expect(r, 400, "invalid_value", "cache_salt");
  EXPECT_EQ(detail(r).find("cache_salt must have"), 0u) << detail(r);
  r = post(R"({"id":"a/b","text":"x"})");
  expect(r, 400, "invalid_value", "id");
  EXPECT_EQ(detail(r).find("id must be"), 0u) << detail(r);
  r = post(R"({"title":")" + std::string(5000, 't') + R"(","text":"x"})");
  expect(r, 400, "invalid_value", "title");
  EXPECT_EQ(detail(r).find("title has 5000 bytes"), 0u) << detail(r);
}

TEST_F(BadInputTest, OneDocumentThatFailsIsTheCallsError) {
  const std::string part =
      "--B\r\nContent-Disposition: form-data; name=\"file\"; "
      "filename=\"a.txt\"\r\n\r\n";
  const std::string form = "multipart/form-data; boundary=B", lines = "application/x-ndjson";
  const auto send = [](const std::string& body, const std::string& type) {
    return service->call("POST", "/v1/documents?wait=true", body, {}, type);
  };
  const std::string field = "--B\r\nContent-Disposition: form-data; name=\"text\"\r\n\r\n";
  expect(send(field + "caf\xe9 \xff\r\n--B--\r\n", form), 400, "invalid_value", "text");
  expect(send(field + " \r\n--B--\r\n", form), 422, "empty_document", "text");
  expect(send(part + " \r\n--B--\r\n", form), 422, "empty_document", "file");
  expect(send(part + sample_text(3, 8000) + "\r\n--B--\r\n", form), 400, "document_too_long",
         "text");
  expect(send("{\"text\":\" \"}\n", lines), 422, "empty_document");
  expect(send(R"({"text":)" + quoted(sample_text(3, 8000)) + "}", lines), 400, "document_too_long");
  const auto two = send("{\"text\":\" \"}\n{\"text\":\"fine\"}\n", lines);
  EXPECT_EQ(two.status, 200) << two.body;
  EXPECT_EQ(text_at(parse(two.body), "status"), "partial");
}

TEST_F(BadInputTest, AWrongLineRefusesTheWholeStream) {
  std::string body;
  for (int i = 0; i < 700; ++i)
    body += R"({"id":"stream-)" + std::to_string(i) + R"(","text":"Line )" + std::to_string(i) +
            "\"}\n";
  const std::string type = "application/x-ndjson";
  expect(service->call("POST", "/v1/documents", body + "{\"text\":", {}, type), 400, "invalid_json",
         "documents[700]");
  const auto r = service->call("POST", "/v1/documents", body + "\n{\"txt\":\"x\"}\n", {}, type);
  expect(r, 400, "invalid_value", "documents[700].text");
  EXPECT_NE(r.body.find("line 702 of the body"), std::string::npos) << r.body;
  expect(service->call("GET", "/v1/documents/stream-0"), 404, "document_not_found");
  expect(service->call("POST", "/v1/documents", " \n\n", {}, type), 400, "invalid_value",
         "documents");
}

TEST_F(BadInputTest, InvalidUtf8) {
  expect(post("{\"text\":\"caf\xe9\"}"), 400, "invalid_json");
  const auto r = service->call("POST", "/v1/documents?wait=true", "caf\xe9 text", {}, "text/plain");
  expect(r, 400, "invalid_value", "text");
  EXPECT_NE(r.body.find("3"), std::string::npos) << "the position is named";
  expect(service->call("GET", "/v1/documents/%ff"), 400, "invalid_value");
  expect(post(R"({"text":"\ud800"})"), 400, "invalid_json");
}

TEST_F(BadInputTest, ManyDuplicateAndUnknownIds) {
  std::string ids;
  for (int i = 0; i < 10000; ++i) ids += (i ? ",\"x" : "\"x") + std::to_string(i) + "\"";
  expect(ask(R"({"query":"q","document_ids":[)" + ids + "]}"), 400, "invalid_value",
         "document_ids");
  const auto missing = ask(R"({"query":"q","document_ids":["d","nobody","nothing"]})");
  expect(missing, 404, "document_not_found", "document_ids[1]");
  EXPECT_EQ(json::serialize(at(parse(missing.body), "document_ids")), R"(["nobody","nothing"])");
  const auto twice = ask(R"({"query":"q","document_ids":["d","d"],"max_tokens":2})");
  EXPECT_EQ(twice.status, 200) << twice.body;  // the second copy is dropped
  EXPECT_GT(int_at(parse(twice.body), "usage.prompt_tokens"), 0);
  expect(ask(R"({"query":"q","document_ids":["bad id!"]})"), 404, "document_not_found",
         "document_ids[0]");
  std::string documents;
  for (int i = 0; i < 300; ++i) documents += std::string(i ? "," : "") + R"({"text":"t"})";
  expect(post(R"({"documents":[)" + documents + "]}"), 400, "invalid_value", "documents");
  const auto odd = post(R"({"documents":[{"id":"no spaces please","text":"t"}]})");
  EXPECT_EQ(odd.status, 200) << odd.body;
  EXPECT_EQ(text_at(parse(odd.body), "results.0.error.param"), "documents[0].id");
}

TEST_F(BadInputTest, QuestionsLongerThanTheWindow) {
  const auto r = ask(R"({"query":)" + quoted(sample_text(5, 6000)) + "}");
  expect(r, 400, "context_length_exceeded");
  EXPECT_GT(int_at(parse(r.body), "actual"), int_at(parse(r.body), "limit"));
  EXPECT_GT(int_at(parse(r.body), "limit"), 0);
}

TEST_F(BadInputTest, ConflictsAndPreconditions) {
  expect(post(R"({"id":"d","text":"Other words.","if_exists":"error"})"), 409, "document_exists");
  expect(service->call("PUT", "/v1/documents/d?wait=true", R"({"text":"Other."})",
                       {"If-None-Match: *"}),
         412, "precondition_failed");
  expect(service->call("GET", "/v1/queries/qry_unknown/explain"), 404, "query_expired");
  expect(service->call("GET", "/v1/jobs/job_unknown"), 404, "job_not_found");
  expect(service->call("GET", "/v1/models/nothing"), 404, "model_not_found");
}

TEST_F(BadInputTest, TimeoutsAreShort) {
  expect(ask(R"({"query":"q","document_ids":["d"],"max_tokens":2000,"timeout_ms":1,"seed":1,)"
             R"("temperature":1})"),
         504, "deadline_exceeded");
}

TEST_F(BadInputTest, BrokenModelFoldersAreRefused) {
  const std::filesystem::path demo = std::filesystem::path(QUIRE_SOURCE_DIR) / "models/demo";
  const auto refused = [&](const std::string& name, const std::string& file,
                           const std::function<void(const std::filesystem::path&)>& spoil) {
    TempFolder f;
    for (const auto* keep : {"config.json", "generation_config.json", "model.safetensors",
                             "tokenizer.model", "tokenizer_config.json"})
      std::filesystem::copy_file(demo / keep, f.path() / keep);
    spoil(f.path() / file);
    const auto r = run_process({QUIRE_BINARY, "serve", "--server.port=0",
                                "--disk.path=" + (f.path() / "store").string(),
                                "--model.path=" + f.path().string(), "--log.level=off"});
    EXPECT_EQ(r.exit_code, 1) << name << r.err;
    EXPECT_NE(r.err.find("quire: "), std::string::npos) << name << r.err;
    return r.err;
  };
  const auto write = [](const std::string& text) {
    return [text](const std::filesystem::path& p) { std::ofstream(p, std::ios::binary) << text; };
  };
  EXPECT_NE(refused("truncated weights", "model.safetensors",
                    [](const auto& p) { std::filesystem::resize_file(p, 1000); })
                .find("safetensors"),
            std::string::npos);
  EXPECT_NE(refused("lying header", "model.safetensors",
                    write(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)))
                .find("safetensors"),
            std::string::npos);
  EXPECT_NE(refused("no config", "config.json", [](const auto& p) { std::filesystem::remove(p); })
                .find("config.json"),
            std::string::npos);
  refused("impossible shapes", "config.json",
          write(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":-4,)"
                R"("num_hidden_layers":1000000000,"num_attention_heads":3,"vocab_size":10})"));
  refused("broken tokenizer", "tokenizer.model", write("no protobuf"));
}

}  // namespace
}  // namespace quire::testing
