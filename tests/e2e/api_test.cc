// The API as a client sees it: documents, jobs, queries, explanations, models, health.
#include <boost/json/serialize.hpp>
#include <fstream>
#include <set>
#include <thread>

#include "base/json_parse.h"
#include "server/service/route_table.h"
#include "server/support/affinity.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

class ApiTest : public ServiceTest {
 protected:
  static std::string post(const std::string& id, const std::string& text,
                          const std::string& more = {}) {
    int status = 0;
    const auto r = service->json(
        "POST", "/v1/documents?wait=true",
        R"({"id":)" + quoted(id) + R"(,"text":)" + quoted(text) + more + "}", {}, &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
    return text_at(r, "results.0.result");
  }
  static json::value ask(const std::string& question, const std::string& ids,
                         const std::string& more = {}, int* status = nullptr) {
    return service->json(
        "POST", "/v1/query",
        R"({"query":)" + quoted(question) + R"(,"document_ids":)" + ids + more + "}", {}, status);
  }
  static void expect_fates_add_up(const json::value& r) {
    std::int64_t sum = 0;
    for (const auto* fate :
         {"reused_tokens", "recomputed_tokens", "computed_tokens", "dropped_tokens"})
      sum += int_at(r, std::string("usage.cache_details.") + fate);
    EXPECT_EQ(sum, int_at(r, "usage.prompt_tokens")) << json::serialize(r);
    EXPECT_GT(sum, 0);
  }
};

TEST_F(ApiTest, EveryAnswerTellsTheAffinityOfItsDocuments) {
  const std::vector<std::string> both{"affine-1", "affine-2"};
  for (unsigned i = 0; i < 2; ++i) post(both[i], sample_text(40 + i, 200));
  const auto told = [&](const std::string& target, const std::string& body,
                        const std::vector<std::string>& headers = {}) {
    return service->call("POST", target, body, headers).header("x-quire-affinity").value_or("");
  };
  const std::string affinity = affinity_of("default", both);
  const std::string question = R"("query":"Who?","max_tokens":1,)";
  const std::string ids = R"("document_ids":["affine-2","affine-1"])";
  EXPECT_EQ(told("/v1/query", "{" + question + ids + "}"), affinity);
  EXPECT_EQ(told("/v1/query", "{" + question + R"("stream":true,)" + ids + "}"), affinity);
  EXPECT_EQ(told("/v1/query/plan", "{" + question + ids + "}"), affinity);
  const std::string messages = R"("messages":[{"role":"user","content":"Who?"}],"max_tokens":1,)";
  EXPECT_EQ(told("/v1/chat/completions", R"({"model":"default",)" + messages + ids + "}"),
            affinity);
  EXPECT_EQ(
      told("/v1/chat/completions", R"({"model":"default","stream":true,)" + messages + ids + "}"),
      affinity);
  // A refusal tells it, too: the documents may be on the replica that the affinity leads to.
  EXPECT_EQ(told("/v1/query", "{" + question + ids + "}", {"X-Namespace: elsewhere"}),
            affinity_of("elsewhere", both));
  EXPECT_EQ(told("/v1/query", "{" + question + R"("document_ids":[]})"), "");
  const auto chosen = service->call("POST", "/v1/query",
                                    R"({"query":"What was built by the guild?","max_tokens":1})");
  const auto reply = parse_json(chosen.body);
  ASSERT_TRUE(reply.ok()) << chosen.body;
  std::vector<std::string> names;
  for (const auto& d : at(*reply, "documents").as_array()) names.push_back(text_at(d, "id"));
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(chosen.header("x-quire-affinity"), affinity_of("default", names));
}

TEST_F(ApiTest, DocumentLifecycle) {
  EXPECT_EQ(post("life", sample_text(1, 300),
                 R"(,"title":"First","metadata":{"source":"a","year":2025})"),
            "created");
  EXPECT_EQ(post("life", sample_text(1, 300),
                 R"(,"title":"First","metadata":{"source":"a","year":2025})"),
            "unchanged");
  int status = 0;
  auto d = service->json("GET", "/v1/documents/life", {}, {}, &status);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(text_at(d, "status"), "ready");
  EXPECT_EQ(text_at(d, "title"), "First");
  EXPECT_EQ(int_at(d, "metadata.year"), 2025);
  EXPECT_EQ(text_at(d, "cache.state"), "resident");
  EXPECT_GT(int_at(d, "tokens"), 300);
  EXPECT_GT(int_at(d, "cache.bytes"), 0);
  EXPECT_EQ(int_at(d, "cache.blocks"), int_at(d, "cache.tiers.disk"));
  EXPECT_EQ(service->call("GET", "/documents/life").status, 200);

  EXPECT_EQ(service->call("GET", "/v1/documents/life/content").body, sample_text(1, 300));
  const auto chunks = service->json("GET", "/v1/documents/life/chunks");
  EXPECT_EQ(static_cast<std::int64_t>(at(chunks, "data").as_array().size()), int_at(d, "chunks"));
  const auto blocks = service->json("GET", "/v1/documents/life/blocks");
  EXPECT_EQ(static_cast<std::int64_t>(at(blocks, "data").as_array().size()),
            int_at(d, "cache.blocks"));
  EXPECT_EQ(int_at(blocks, "data.0.chars.0"), 0);

  d = service->json(
      "PATCH", "/v1/documents/life",
      R"({"title":"Second","metadata":{"year":null,"more":true},"pinned":true,"ttl_seconds":1000})",
      {}, &status);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(text_at(d, "title"), "Second");
  EXPECT_EQ(json::serialize(at(d, "metadata")), R"({"source":"a","more":true})");
  EXPECT_NE(text_at(d, "expires_at"), "null");
  d = service->json("PATCH", "/v1/documents/life",
                    R"({"ttl_seconds":null,"expires_at":"2100-01-01T00:00:00Z"})");
  EXPECT_EQ(text_at(d, "expires_at"), "2100-01-01T00:00:00.000Z");
  d = service->json("PATCH", "/v1/documents/life", R"({"ttl_seconds":null})");
  EXPECT_EQ(text_at(d, "expires_at"), "null");

  const std::string hash = text_at(d, "content_hash");
  const std::string body = R"({"text":)" + quoted(sample_text(2, 50)) + "}";
  EXPECT_EQ(service->call("PUT", "/v1/documents/life?wait=true", body, {"If-None-Match: *"}).status,
            412);
  EXPECT_EQ(service->call("PUT", "/v1/documents/life?wait=true", body, {"If-Match: \"sha256:00\""})
                .status,
            412);
  EXPECT_EQ(
      service->call("PUT", "/v1/documents/life?wait=true", body, {"If-Match: \"" + hash + "\""})
          .status,
      200);
  EXPECT_EQ(
      service->call("PUT", "/v1/documents/brand-new?wait=true", body, {"If-None-Match: *"}).status,
      201);
  EXPECT_EQ(service->call("GET", "/v1/documents/life/content").body, sample_text(2, 50));

  EXPECT_EQ(service->call("DELETE", "/v1/documents/life").status, 200);
  EXPECT_EQ(service->call("GET", "/v1/documents/life").status, 404);
  EXPECT_EQ(service->call("DELETE", "/v1/documents/life").status, 404);
}

TEST_F(ApiTest, TagsGuardChangesAndSaveReading) {
  EXPECT_EQ(post("tags", sample_text(9, 40), R"(,"title":"First","metadata":{"a":1})"), "created");
  const std::string path = "/v1/documents/tags";
  const auto tag = [&] { return service->call("GET", path).header("etag").value_or(""); };
  const auto with = [&](const std::string& method, const std::string& header,
                        const std::string& body = {}) {
    return service->call(method, path, body, {header}).status;
  };
  const std::string first = tag();
  EXPECT_EQ(first, "\"" + text_at(service->json("GET", path), "etag") + "\"");
  EXPECT_EQ(tag(), first) << "reading changes nothing";

  auto same = service->call("GET", path, {}, {"If-None-Match: \"x\", W/" + first});
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.body, "");
  EXPECT_EQ(same.header("etag"), first);
  EXPECT_EQ(with("GET", "If-None-Match: *"), 304);
  EXPECT_EQ(with("GET", "If-None-Match: \"x\""), 200);
  EXPECT_EQ(with("GET", "If-Match: \"x\""), 412);
  EXPECT_EQ(with("GET", "If-Match: " + first), 200);

  // Every change that a caller makes changes the tag.
  std::set<std::string> tags = {first};
  for (const auto* change : {R"({"title":"Second"})", R"({"metadata":{"a":2}})",
                             R"({"pinned":true})", R"({"ttl_seconds":1000})"}) {
    const auto r = service->call("PATCH", path, change, {"If-Match: \"x\", " + tag()});
    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_EQ(r.header("etag"), tag());
    EXPECT_TRUE(tags.insert(tag()).second) << change;
  }
  for (const std::string& wrong : {first, std::string("W/") + tag(), std::string("\"x\"")}) {
    EXPECT_EQ(with("PATCH", "If-Match: " + wrong, R"({"title":"Third"})"), 412) << wrong;
    EXPECT_EQ(with("DELETE", "If-Match: " + wrong), 412) << wrong;
    EXPECT_EQ(with("PUT", "If-Match: " + wrong, R"({"text":"other"})"), 412) << wrong;
  }
  EXPECT_EQ(with("PATCH", "If-None-Match: *", R"({"title":"Third"})"), 412);
  EXPECT_EQ(with("DELETE", "If-None-Match: " + tag()), 412);
  EXPECT_EQ(with("DELETE", "If-Match: \"open"), 400);
  EXPECT_EQ(with("PUT", "If-None-Match: \"x\"", R"({"text":"other"})"), 400);
  EXPECT_EQ(text_at(service->json("GET", path), "title"), "Second");
  EXPECT_EQ(service->call("GET", path + "/content").body, sample_text(9, 40));

  EXPECT_EQ(service
                ->call("PUT", path + "?wait=true", R"({"text":"Another text."})",
                       {"If-Match: \"x\"", "If-Match: " + tag()})
                .status,
            200);
  EXPECT_EQ(with("PATCH", "If-Match: *", R"({"title":"Third"})"), 200);
  EXPECT_EQ(with("DELETE", "If-Match: " + tag()), 200);
  EXPECT_EQ(with("DELETE", "If-Match: *"), 404);
  EXPECT_EQ(with("PATCH", "If-Match: *", R"({"title":"Third"})"), 404);
  EXPECT_EQ(with("PUT", "If-Match: *", R"({"text":"other"})"), 412);
}

TEST_F(ApiTest, BatchesSucceedAndFailOneByOne) {
  int status = 0;
  const auto r = service->json(
      "POST", "/documents?wait=true",
      R"({"documents":[{"id":"good","text":"A bridge of copper."},{"chunks":["a text",""]},{)"
      R"("id":"bad id","text":"x"},{"text":"No id here."}]})",
      {}, &status);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(text_at(r, "status"), "partial") << json::serialize(r);
  EXPECT_EQ(int_at(r, "counts.completed"), 2);
  EXPECT_EQ(int_at(r, "counts.failed"), 2);
  EXPECT_EQ(text_at(r, "results.0.result"), "created");
  EXPECT_EQ(text_at(r, "results.1.error.code"), "empty_document");
  EXPECT_EQ(text_at(r, "results.1.error.param"), "documents[1].chunks[1]");
  EXPECT_EQ(text_at(r, "results.2.result"), "failed");
  EXPECT_EQ(text_at(r, "results.3.id").substr(0, 4), "doc_");
}

TEST_F(ApiTest, PutTakesAForm) {
  const std::string body =
      "--B\r\nContent-Disposition: form-data; name=\"file\"; "
      "filename=\"bridge.txt\"\r\n\r\nA bridge of copper.\r\n--B--\r\n";
  const std::string type = "multipart/form-data; boundary=B";
  auto r = service->call("PUT", "/v1/documents/form?wait=true", body, {}, type);
  EXPECT_EQ(r.status, 201) << r.body;
  EXPECT_EQ(service->call("GET", "/v1/documents/form/content").body, "A bridge of copper.");
  EXPECT_EQ(text_at(service->json("GET", "/v1/documents/form"), "title"), "bridge");
  r = service->call("PUT", "/v1/documents/form?wait=true",
                    body.substr(0, body.size() - 7) + "\r\n" + body, {}, type);
  EXPECT_EQ(r.status, 400) << r.body;
  EXPECT_NE(r.body.find("PUT takes one document"), std::string::npos) << r.body;
}

TEST_F(ApiTest, FormsTakeFilesOfManyFormats) {
  const auto part = [](const std::string& name, const std::string& bytes) {
    return "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + name +
           "\"\r\n\r\n" + bytes + "\r\n";
  };
  const auto post_form = [](const std::string& body) {
    return service->call("POST", "/v1/documents?wait=true", body + "--B--\r\n", {},
                         "multipart/form-data; boundary=B");
  };
  const auto seed = [](const std::string& name) {
    std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/tests/fuzz/seeds/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const auto content = [](const std::string& id) {
    return service->call("GET", "/v1/documents/" + id + "/content").body;
  };
  // Two batches, because only Markdown is cut at headings.
  auto r = post_form(
      part("web/page.html",
           "<html><head><title>The page</title></head><body><script>no()</script>"
           "<p>Body text.</p></body></html>") +
      part("plan.md", "# Plan\n\nBuild the bridge.\n\n# Cost\n\nMuch.\n") +
      part("latin.txt", "caf\xe9 au lait, d\xe9j\xe0 vu, tr\xe8s bien, \xe0 bient\xf4t") +
      (QUIRE_PDF ? part("report.pdf", seed("reader_pdf/plain.pdf")) : ""));
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(int_at(parse(r.body), "counts.completed"), QUIRE_PDF ? 4 : 3) << r.body;
  EXPECT_EQ(text_at(parse(r.body), "results.0.id"), "web:page.html") << "in the order of the form";
  EXPECT_EQ(text_at(parse(r.body), "results.1.id"), "plan.md");
  EXPECT_EQ(text_at(parse(r.body), "results.2.id"), "latin.txt");
  EXPECT_NE(content("web:page.html").find("Body text."), std::string::npos);
  EXPECT_EQ(content("web:page.html").find("no()"), std::string::npos);
  const auto page = service->json("GET", "/v1/documents/web:page.html");
  EXPECT_EQ(text_at(page, "title"), "The page");
  EXPECT_EQ(text_at(page, "metadata.source"), "web/page.html");
  EXPECT_EQ(int_at(service->json("GET", "/v1/documents/plan.md"), "chunks"), 2);
  EXPECT_EQ(content("latin.txt"), "café au lait, déjà vu, très bien, à bientôt");
  if (QUIRE_PDF) {
    EXPECT_NE(content("report.pdf").find("garden library contract"), std::string::npos);
  }

  r = post_form(part("page.html", "<p>Another page.</p>") +
                "--B\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\nmine\r\n"
                "--B\r\nContent-Disposition: form-data; name=\"metadata\"\r\n\r\n"
                "{\"source\":\"desk\"}\r\n");
  EXPECT_EQ(r.status, 200) << r.body;
  const auto mine = service->json("GET", "/v1/documents/mine");
  EXPECT_EQ(text_at(mine, "metadata.source"), "desk");
  EXPECT_EQ(text_at(mine, "metadata.filename"), "page.html");
  r = service->call("PUT", "/v1/documents/put-page?wait=true",
                    part("page.html", "<p>A third page.</p>") + "--B--\r\n", {},
                    "multipart/form-data; boundary=B");
  EXPECT_EQ(r.status, 201) << r.body;
  EXPECT_EQ(content("put-page"), "A third page.\n");

  struct Refusal {
    std::string name, bytes;
    int status;
    std::string code;
  };
  for (const Refusal& bad :
       {Refusal{"picture.png", "\x89PNG\r\n\x1a\n....", 415, "unsupported_media_type"},
        Refusal{"empty.txt", " \n", 422, "empty_document"},
        Refusal{"broken.pdf", "%PDF-1.7\nnothing of a PDF", QUIRE_PDF ? 400 : 415,
                QUIRE_PDF ? "invalid_value" : "unsupported_media_type"},
        Refusal{"locked.pdf", seed("reader_pdf/locked.pdf"), QUIRE_PDF ? 400 : 415,
                QUIRE_PDF ? "invalid_value" : "unsupported_media_type"}}) {
    r = post_form(part("good.txt", "A good text.") + part(bad.name, bad.bytes));
    EXPECT_EQ(r.status, bad.status) << r.body;
    EXPECT_EQ(text_at(parse(r.body), "error.code"), bad.code) << r.body;
    EXPECT_NE(text_at(parse(r.body), "detail").find(bad.name), std::string::npos) << r.body;
  }
  EXPECT_EQ(service->call("GET", "/v1/documents/good.txt").status, 404)
      << "a file that cannot be read refuses the whole call";
}

TEST_F(ApiTest, EveryOptionOfAStrategyIsDocumented) {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/docs/strategies.md");
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const auto info = service->json("GET", "/v1/info");
  const auto strategies = at(info, "strategy_details").as_array();
  EXPECT_FALSE(strategies.empty());
  for (const auto& strategy : strategies) {
    for (const auto& [name, _] : at(strategy, "options").as_object()) {
      EXPECT_NE(text.find("`" + std::string(name)), std::string::npos)
          << text_at(strategy, "name") << " takes " << name;
    }
  }
}

TEST_F(ApiTest, OtherBodiesThanJson) {
  auto r = service->call("POST", "/v1/documents?wait=true&id=plain&title=Plain", "Just text.", {},
                         "text/plain");
  EXPECT_EQ(r.status, 200) << r.body;
  r = service->call("POST", "/v1/documents?wait=true&id=bom", "\xEF\xBB\xBFJust text.", {},
                    "text/plain");
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(service->call("GET", "/v1/documents/bom/content").body, "Just text.");
  r = service->call("POST", "/v1/documents?wait=true&id=marked", "# One\n\nText.\n\n# Two\n\nMore.",
                    {}, "text/markdown");
  EXPECT_EQ(r.status, 200) << r.body;
  r = service->call(
      "POST", "/v1/documents?wait=true",
      "{\"id\":\"l1\",\"text\":\"line one\"}\n{\"id\":\"l2\",\"text\":\"line two\"}\n", {},
      "application/x-ndjson");
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(int_at(parse(r.body), "counts.completed"), 2);
  r = service->call("POST", "/v1/documents?wait=true",
                    "--XX\r\nContent-Disposition: form-data; name=\"file\"; "
                    "filename=\"up.txt\"\r\n\r\nUploaded words.\r\n--XX\r\n"
                    "Content-Disposition: form-data; name=\"id\"\r\n\r\nuploaded\r\n--XX--\r\n",
                    {}, "multipart/form-data; boundary=XX");
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(service->call("GET", "/v1/documents/uploaded/content").body, "Uploaded words.");
  EXPECT_EQ(service->call("POST", "/v1/documents", "<x/>", {}, "application/xml").status, 415);
}

TEST_F(ApiTest, TakesAStreamLongerThanOneCall) {
  std::string body;
  for (int i = 0; i < 600; ++i)
    body += R"({"id":"long-)" + std::to_string(i) + R"(","text":"Number )" + std::to_string(i) +
            ".\"}\n";
  const auto r = service->call("POST", "/v1/documents?wait=true", body, {}, "application/x-ndjson");
  ASSERT_EQ(r.status, 200) << r.body;
  const auto v = parse(r.body);
  EXPECT_EQ(text_at(v, "status"), "succeeded");
  EXPECT_EQ(int_at(v, "counts.completed"), 600);
  EXPECT_EQ(at(v, "job_ids").as_array().size(), 3u) << "256 documents a job";
  EXPECT_EQ(text_at(v, "job_ids.0"), text_at(v, "job_id"));
  ASSERT_EQ(at(v, "results").as_array().size(), 600u);
  EXPECT_EQ(text_at(v, "results.599.id"), "long-599");
  EXPECT_EQ(int_at(v, "results.599.index"), 599);
  EXPECT_EQ(service->call("GET", "/v1/documents/long-599/content").body, "Number 599.");
  // With an idempotency key the whole body is collected first; the rest is the same.
  const std::vector<std::string> key = {"Idempotency-Key: stream-1"};
  const auto again = service->call("POST", "/v1/documents?wait=true", body, key,
                                   "application/x-ndjson");
  EXPECT_EQ(again.status, 200) << again.body;
  EXPECT_EQ(text_at(parse(again.body), "results.599.result"), "unchanged");
  EXPECT_EQ(
      service->call("POST", "/v1/documents?wait=true", body, key, "application/x-ndjson").body,
      again.body);
}

TEST_F(ApiTest, ListsPageAndFilter) {
  for (int i = 0; i < 5; ++i)
    post("list-" + std::to_string(i), "Page " + std::to_string(i) + ".",
         R"(,"metadata":{"set":"pages"})");
  std::set<std::string> seen;
  std::string after;
  for (int pages = 0; pages < 10; ++pages) {
    const auto page = service->json("GET", "/v1/documents?limit=2&order=asc&metadata.set=pages" +
                                               (after.empty() ? "" : "&after=" + after));
    for (const auto& d : at(page, "data").as_array())
      EXPECT_TRUE(seen.insert(text_at(d, "id")).second);
    if (!at(page, "has_more").as_bool()) break;
    after = text_at(page, "last_id");
  }
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_GE(int_at(service->json("GET", "/v1/documents?include=counts"), "counts.ready"), 5);
  const auto dry = service->json("POST", "/v1/documents/delete",
                                 R"({"filter":{"metadata.set":"pages"},"dry_run":true})");
  EXPECT_EQ(int_at(dry, "count"), 5) << json::serialize(dry);
  const auto gone = service->json("POST", "/v1/documents/delete",
                                  R"({"ids":["list-0","list-1","nobody"]})");
  EXPECT_EQ(int_at(gone, "count"), 2);
  EXPECT_EQ(text_at(gone, "not_found.0"), "nobody");
}

TEST_F(ApiTest, JobsTellTheirProgress) {
  const auto r = service->call(
      "POST", "/v1/documents",
      R"({"documents":[{"id":"job-a","text":)" + quoted(sample_text(31, 600)) + "}]}");
  EXPECT_EQ(r.status, 202) << r.body;
  const auto location = r.header("location");
  ASSERT_TRUE(location);
  LoopbackClient events(service->port());
  ASSERT_TRUE(events.send("GET " + *location +
                          "/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
  const std::string text = events.read_until("event: done");
  EXPECT_NE(text.find("text/event-stream"), std::string::npos);
  EXPECT_NE(text.find("event: done"), std::string::npos) << text;
  const auto job = service->json("GET", *location);
  EXPECT_EQ(text_at(job, "status"), "succeeded");
  EXPECT_EQ(text_at(job, "results.0.result"), "created");
  EXPECT_EQ(service->json("GET", "/v1/jobs?limit=1").as_object().at("data").as_array().size(), 1u);
  EXPECT_EQ(service->call("POST", *location + "/cancel").status, 200);
}

TEST_F(ApiTest, QueryReportsTheFateOfEveryToken) {
  post("q1", sample_text(11, 400));
  post("q2", sample_text(12, 400));
  int status = 0;
  const auto recompute = ask("What was built?", R"(["q1","q2"])",
                             R"(,"max_tokens":8,"cache":{"strategy":"recompute"})", &status);
  ASSERT_EQ(status, 200) << json::serialize(recompute);
  expect_fates_add_up(recompute);
  EXPECT_EQ(int_at(recompute, "usage.cache_details.reused_tokens"), 0);
  const auto reuse = ask("What was built?", R"(["q1","q2"])",
                         R"(,"max_tokens":8,"cache":{"strategy":"reuse"},"explain":"blocks")",
                         &status);
  ASSERT_EQ(status, 200) << json::serialize(reuse);
  expect_fates_add_up(reuse);
  EXPECT_GT(int_at(reuse, "usage.cache_details.reused_tokens"), 700);
  EXPECT_EQ(text_at(reuse, "cache.strategy"), "reuse");
  EXPECT_GT(int_at(reuse, "cache.tiers.dram.blocks") + int_at(reuse, "cache.tiers.disk.blocks"), 0);
  EXPECT_EQ(text_at(reuse, "documents.0.id"), "q1");
  EXPECT_GT(at(reuse, "explain.blocks").as_array().size(), 10u);
  const auto exact = ask("What was built?", R"(["q1","q2"])",
                         R"(,"max_tokens":8,"cache":{"strategy":"exact"})", &status);
  EXPECT_EQ(text_at(exact, "answer"), text_at(recompute, "answer"));
  expect_fates_add_up(exact);
}

TEST_F(ApiTest, CompressionIsListedAskedForAndReported) {
  post("c1", sample_text(13, 400));
  const auto info = service->json("GET", "/v1/info");
  EXPECT_NE(json::serialize(at(info, "compressor_details")).find("capacity"), std::string::npos);
  int status = 0;
  const auto dense = ask("What was built?", R"(["c1"])",
                         R"(,"max_tokens":6,"cache":{"strategy":"reuse"})", &status);
  ASSERT_EQ(status, 200) << json::serialize(dense);
  for (const std::string name :
       {"streamingllm", "h2o", "snapkv", "pyramidkv", "adakv", "speckv", "ada_speckv"}) {
    const std::string options =
        R"(,"max_tokens":6,"cache":{"strategy":"reuse","compress":")" + name +
        R"(","options":{"capacity":64,"window":16,"drop_mode":"drop"}},"explain":"blocks")";
    const auto r = ask("What was built?", R"(["c1"])", options, &status);
    ASSERT_EQ(status, 200) << json::serialize(r);
    expect_fates_add_up(r);
    EXPECT_EQ(text_at(r, "cache.compress"), name);
    EXPECT_EQ(text_at(r, "cache.compression.by"), name);
    EXPECT_EQ(text_at(r, "cache.compression.mode"), "drop");
    EXPECT_LT(int_at(r, "cache.compression.hot_rows"), int_at(r, "cache.compression.rows"));
    EXPECT_TRUE(at(r, "explain.blocks").as_array().at(0).as_object().contains("hot_share"));
  }
  const auto bad = ask(
      "q", R"(["c1"])",
      R"(,"cache":{"strategy":"reuse","compress":"snapkv","options":{"capacity":16}})", &status);
  EXPECT_EQ(status, 400) << json::serialize(bad);
  EXPECT_NE(json::serialize(bad).find("cache.options.capacity"), std::string::npos);
}

TEST_F(ApiTest, AFirstQueryOverALazyDocumentIsNoEviction) {
  EXPECT_EQ(post("lazy-one", sample_text(77, 150), R"(,"kv":"lazy")"), "created");
  const std::string reuse = R"(,"max_tokens":2,"cache":{"strategy":"reuse"})";
  const auto first = ask("What is it?", R"(["lazy-one"])", reuse);
  EXPECT_EQ(text_at(first, "cache.misses.0.reason"), "not_cached") << json::serialize(first);
  // Its KV is written behind the answer.
  json::value later;
  for (int i = 0; i < 500; ++i) {
    later = ask("What is it?", R"(["lazy-one"])", reuse);
    if (at(later, "cache.misses").as_array().empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(at(later, "cache.misses").as_array().empty()) << json::serialize(later);
}

TEST_F(ApiTest, LazyDocumentsGetTheirKvBehindTheFirstAnswerOfAuto) {
  for (const char* id : {"late-1", "late-2", "late-3"})
    EXPECT_EQ(post(id, sample_text(id[5], 150), R"(,"kv":"lazy")"), "created");
  const auto state = [](const std::string& id) {
    return text_at(service->json("GET", "/v1/documents/" + id), "cache.state");
  };
  (void)ask("What is it?", R"(["late-3"])", R"(,"max_tokens":2,"cache":{"strategy":"recompute"})");
  const auto first = ask("What is it?", R"(["late-1","late-2"])", R"(,"max_tokens":2)");
  EXPECT_EQ(text_at(first, "cache.strategy"), "recompute") << "nothing was cached";
  for (int i = 0; i < 500 && (state("late-1") != "resident" || state("late-2") != "resident"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(state("late-1"), "resident");
  EXPECT_EQ(state("late-2"), "resident");
  EXPECT_EQ(state("late-3"), "lazy") << "who asks for recompute gets that alone";
  const auto later = ask("What else?", R"(["late-1","late-2"])",
                         R"(,"max_tokens":2,"cache":{"strategy":"reuse"})");
  EXPECT_TRUE(at(later, "cache.misses").as_array().empty()) << json::serialize(later);
}

TEST_F(ApiTest, CacheHeaderSaysWhatWasFound) {
  post("xc", sample_text(13, 100));
  const auto header = [&](const std::string& strategy) {
    return service
        ->call("POST", "/v1/query",
               R"({"query":"q","document_ids":["xc"],"max_tokens":1,"cache":{"strategy":")" +
                   strategy + "\"}}")
        .header("x-cache")
        .value_or("");
  };
  EXPECT_EQ(header("reuse"), "HIT");
  EXPECT_EQ(header("recompute"), "BYPASS");
  const auto inline_only = service->call(
      "POST", "/v1/query",
      R"({"query":"q","documents":[{"text":"Unheard words of copper."}],"max_tokens":1,"cache":{)"
      R"("strategy":"reuse","write":false}})");
  EXPECT_EQ(inline_only.header("x-cache"), "MISS") << inline_only.body;
}

TEST_F(ApiTest, StreamedAnswerEqualsTheWholeOne) {
  post("s1", sample_text(14, 200));
  const std::string body =
      R"({"query":"Which guild?","document_ids":["s1"],"max_tokens":12,"cache":{)"
      R"("strategy":"reuse"})";
  const auto whole = parse(service->call("POST", "/v1/query", body + "}").body);
  const auto r = service->call("POST", "/v1/query", body + R"(,"stream":true})");
  EXPECT_EQ(r.status, 200);
  EXPECT_NE(r.header("content-type").value_or("").find("text/event-stream"), std::string::npos);
  std::string answer;
  std::vector<std::string> names;
  json::value done;
  std::size_t from = 0;
  while ((from = r.body.find("event: ", from)) != std::string::npos) {
    const auto end = r.body.find('\n', from);
    names.push_back(r.body.substr(from + 7, end - from - 7));
    const auto data = parse(r.body.substr(end + 7, r.body.find('\n', end + 1) - end - 7));
    if (names.back() == "delta") answer += text_at(data, "text");
    if (names.back() == "done") done = data;
    from = end;
  }
  ASSERT_GE(names.size(), 2u) << r.body;
  EXPECT_EQ(names.front(), "plan");
  EXPECT_EQ(names.back(), "done");
  EXPECT_EQ(answer, text_at(whole, "answer"));
  expect_fates_add_up(done);
  EXPECT_TRUE(at(done, "answer").is_null());
}

TEST_F(ApiTest, PlanAndExplainNameEveryBlock) {
  post("e1", sample_text(15, 300));
  const auto plan = service->json(
      "POST", "/v1/query/plan",
      R"({"query":"q","document_ids":["e1"],"cache":{"strategy":"reuse"}})");
  EXPECT_EQ(text_at(plan, "object"), "query.plan") << json::serialize(plan);
  EXPECT_GT(at(plan, "blocks").as_array().size(), 4u);
  const auto r = ask("q", R"(["e1"])", R"(,"max_tokens":2,"cache":{"strategy":"reuse"})");
  const auto explain = service->json("GET", text_at(r, "explain_url") + "?include=text");
  const auto blocks = at(explain, "blocks").as_array();
  ASSERT_EQ(blocks.size(), at(plan, "blocks").as_array().size());
  const std::string content = service->call("GET", "/v1/documents/e1/content").body;
  EXPECT_EQ(text_at(blocks[0], "document_id"), "e1");
  EXPECT_EQ(text_at(blocks[0], "action"), "reused");
  const std::string text = text_at(blocks[1], "text");
  EXPECT_NE(content.find(text), std::string::npos) << text;
  EXPECT_EQ(service->json("GET", "/v1/queries/" + text_at(r, "id")).as_object().at("id"),
            at(r, "id"));
  EXPECT_FALSE(at(service->json("GET", "/v1/queries?limit=1"), "data").as_array().empty());
  EXPECT_TRUE(at(service->json("GET", "/v1/queries/" + text_at(r, "id")), "query").is_null())
      << "no texts unless explain.keep_text";
}

TEST_F(ApiTest, MissingDocumentsCanBeSkipped) {
  post("there", "Some words.");
  int status = 0;
  const auto r = ask("q", R"(["there","nobody"])", R"(,"max_tokens":1,"on_missing":"skip")",
                     &status);
  EXPECT_EQ(status, 200) << json::serialize(r);
  EXPECT_EQ(at(r, "documents").as_array().size(), 1u);
}

TEST_F(ApiTest, DocumentsPostedAndAskedAtOnceAreWaitedForOrComputed) {
  for (const std::string mode : {"wait", "compute"}) {
    const std::string id = "hurry-" + mode;
    ASSERT_EQ(service
                  ->call("POST", "/v1/documents",
                         R"({"id":")" + id + R"(","text":)" +
                             quoted(sample_text(mode == "wait" ? 41 : 42, 500)) + "}")
                  .status,
              202);
    int status = 0;
    const auto r = ask("q", "[\"" + id + "\"]", R"(,"max_tokens":1,"on_not_ready":")" + mode + "\"",
                       &status);
    EXPECT_EQ(status, 200) << json::serialize(r);
    expect_fates_add_up(r);
  }
}

TEST(SmallWindowTest, AutoCallsNoPromptSmallThatTakesMoreThanAQuarterOfTheWindow) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path(), {"--model.max_model_len=2048", "--policy.small_ctx=1024"});
  const std::int64_t quarter = int_at(service.json("GET", "/v1/models/default"), "max_model_len") /
                               4;
  ASSERT_LT(quarter, 1024) << "else the setting alone would count";
  const auto plan = [&](const std::string& id, int words) {
    int status = 0;
    const auto posted = service.json(
        "POST", "/v1/documents?wait=true",
        R"({"id":)" + quoted(id) + R"(,"text":)" + quoted(sample_text(41, words)) + "}", {},
        &status);
    EXPECT_EQ(status, 200) << json::serialize(posted);
    return service.json("POST", "/v1/query/plan",
                        R"({"query":"q","document_ids":[)" + quoted(id) + "]}");
  };
  const auto small = plan("small-prompt", 60), large = plan("large-prompt", 330);
  ASSERT_LE(int_at(small, "usage.prompt_tokens"), quarter);
  EXPECT_EQ(text_at(small, "policy.strategy"), "exact");
  EXPECT_NE(text_at(small, "policy.reason").find("policy.small_ctx"), std::string::npos)
      << text_at(small, "policy.reason");
  ASSERT_GT(int_at(large, "usage.prompt_tokens"), quarter);
  ASSERT_LT(int_at(large, "usage.prompt_tokens"), 1024);
  EXPECT_EQ(text_at(large, "policy.reason").find("policy.small_ctx"), std::string::npos)
      << text_at(large, "policy.reason");
}

TEST_F(ApiTest, IdempotencyKeyReplaysTheFirstReply) {
  const std::string body = R"({"id":"idem","text":"Once only."})";
  const auto first = service->call("POST", "/v1/documents?wait=true", body,
                                   {"Idempotency-Key: k1"});
  EXPECT_EQ(first.status, 200);
  EXPECT_FALSE(first.header("idempotency-replayed"));
  const auto second = service->call("POST", "/v1/documents?wait=true", body,
                                    {"Idempotency-Key: k1"});
  EXPECT_EQ(second.header("idempotency-replayed"), "true");
  EXPECT_EQ(second.body, first.body);
  const auto other = service->call("POST", "/v1/documents?wait=true",
                                   R"({"id":"idem","text":"Other."})", {"Idempotency-Key: k1"});
  EXPECT_EQ(other.status, 422);
  EXPECT_EQ(text_at(parse(other.body), "error.code"), "idempotency_mismatch");
  for (const std::string method : {"PATCH", "PUT", "DELETE"}) {
    SCOPED_TRACE(method);
    const std::string change = method == "PATCH" ? R"({"metadata":{"a":1}})"
                               : method == "PUT" ? R"({"text":"Twice."})"
                                                 : "";
    const auto once = service->call(method, "/v1/documents/idem", change, {"Idempotency-Key: k2"});
    EXPECT_LT(once.status, 300) << once.body;
    const auto again = service->call(method, "/v1/documents/idem", change, {"Idempotency-Key: k2"});
    EXPECT_EQ(again.header("idempotency-replayed"), "true");
    EXPECT_EQ(again.status, once.status);
    EXPECT_EQ(again.body, once.body);
  }
}

TEST_F(ApiTest, ModelsInfoVersionAndTokens) {
  EXPECT_EQ(text_at(service->json("GET", "/v1/models"), "data.0.id"), "default");
  EXPECT_GT(int_at(service->json("GET", "/v1/models/default"), "max_model_len"), 0);
  const auto info = service->json("GET", "/v1/info");
  EXPECT_EQ(int_at(info, "limits.documents_per_call"), 256);
  EXPECT_EQ(text_at(info, "backend.name"), "cpu");
  EXPECT_EQ(text_at(info, "backend.device"), text_at(info, "isa"));
  EXPECT_NE(text_at(info, "backend.cuda"), "");
  EXPECT_EQ(int_at(info, "backend.gpus"), 0);
  EXPECT_EQ(text_at(service->json("GET", "/version"), "name"), "quire");
  const auto t = service->json("POST", "/tokenize",
                               R"({"prompt":"The old bridge","add_special_tokens":false})");
  ASSERT_GT(int_at(t, "count"), 0);
  const auto back = service->json("POST", "/detokenize",
                                  R"({"tokens":)" + json::serialize(at(t, "tokens")) + "}");
  EXPECT_EQ(text_at(back, "prompt"), "The old bridge");
}

TEST_F(ApiTest, DescribesItself) {
  const auto document = service->json("GET", "/openapi.json");
  EXPECT_EQ(text_at(document, "openapi"), "3.1.0");
  EXPECT_EQ(service->call("GET", "/openapi.json").status, 200);
  for (const auto& route : all_routes())
    EXPECT_TRUE(at(document, "paths").as_object().contains(std::string(route.pattern)))
        << route.pattern;
}

TEST_F(ApiTest, HealthAndMetrics) {
  for (const auto* path : {"/livez", "/readyz", "/healthz", "/health"})
    EXPECT_EQ(service->call("GET", path).status, 200) << path;
  post("metric", "Words for a metric.");
  (void)ask("q", R"(["metric"])", R"(,"max_tokens":2)");
  const std::string text = service->call("GET", "/metrics").body;
  for (const auto* name :
       {"quire_requests_total", "quire_time_to_first_token_seconds_bucket",
        "quire_prompt_tokens_total{fate=\"reused\"}", "quire_tier_bytes{tier=\"disk\"}",
        "quire_documents{status=\"ready\"}", "quire_index_bytes{index=\"words\",place=\"memory\"}",
        "quire_build_info", "process_resident_memory_bytes"})
    EXPECT_NE(text.find(name), std::string::npos) << name;
  EXPECT_EQ(text.find("vllm:"), std::string::npos) << "only with metrics.vllm_names";
}

TEST_F(ApiTest, RequestIdsAreEchoedOrMade) {
  EXPECT_EQ(service->call("GET", "/livez", {}, {"X-Request-Id: my.id-1"}).header("x-request-id"),
            "my.id-1");
  const auto made = service->call("GET", "/livez", {}, {"X-Request-Id: not ok!"})
                        .header("x-request-id");
  ASSERT_TRUE(made);
  EXPECT_EQ(made->substr(0, 4), "req_");
  EXPECT_TRUE(service->call("GET", "/livez").header("server-timing"));
}

TEST_F(ApiTest, TheCallersTraceStandsInTheLog) {
  EXPECT_EQ(service
                ->call("GET", "/version", {},
                       {"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
                .status,
            200);
  EXPECT_TRUE(service->wait_for_log(
      R"("trace_id":"0af7651916cd43dd8448eb211c80319c","parent_span_id":"b7ad6b7169203331")"));
  EXPECT_EQ(service->call("GET", "/version", {}, {"traceparent: nonsense"}).status, 200)
      << "a broken one is ignored";
}

TEST_F(ApiTest, CacheSaltSplitsANamespace) {
  const std::string text = sample_text(71, 200);
  post("salted", text, R"(,"cache_salt":"salt-number-one")");
  const auto same = ask(
      "q", R"(["salted"])",
      R"(,"max_tokens":1,"cache_salt":"salt-number-one","cache":{"strategy":"reuse",)"
      R"("write":false})");
  EXPECT_GT(int_at(same, "usage.cache_details.reused_tokens"), 100) << json::serialize(same);
  const auto other = ask("q", R"(["salted"])",
                         R"(,"max_tokens":1,"cache":{"strategy":"reuse","write":false})");
  // Only what stands before the document may be known, from prompts without the salt.
  EXPECT_LT(int_at(other, "usage.cache_details.reused_tokens"), 16) << json::serialize(other);
  EXPECT_EQ(text_at(other, "cache.misses.0.reason"), "salt_mismatch");
  EXPECT_EQ(service->log().find("salt-number-one"), std::string::npos);
}

TEST_F(ApiTest, SampleCorpusIsAnswered) {
  const std::filesystem::path sample = std::filesystem::path(QUIRE_SOURCE_DIR) /
                                       "models/demo/sample";
  std::ifstream corpus(sample / "corpus.jsonl"), questions(sample / "questions.jsonl");
  if (!corpus || !questions) GTEST_SKIP() << "no sample corpus beside the embedded model";
  std::string body((std::istreambuf_iterator<char>(corpus)), std::istreambuf_iterator<char>());
  const auto r = service->call("POST", "/v1/documents?wait=true", body, {}, "application/x-ndjson");
  ASSERT_EQ(r.status, 200) << r.body;
  int right = 0, asked = 0;
  for (std::string line; std::getline(questions, line);) {
    if (line.empty()) continue;
    const auto q = parse(line);
    const auto a = service->json("POST", "/v1/query",
                                 R"({"query":)" + json::serialize(at(q, "question")) +
                                     R"(,"document_ids":)" +
                                     json::serialize(at(q, "document_ids")) +
                                     R"(,"max_tokens":24,"cache":{"strategy":"recompute"}})");
    std::string answer = text_at(a, "answer");
    answer.erase(0, answer.find_first_not_of(" \n"));
    answer.erase(answer.find_last_not_of(" \n.") + 1);
    ++asked;
    for (const auto& want : at(q, "answers").as_array()) {
      if (answer != std::string(want.as_string())) continue;
      ++right;
      break;
    }
  }
  ASSERT_GT(asked, 0);
  EXPECT_GE(right * 10, asked * 8) << right << " of " << asked;
}

}  // namespace
}  // namespace quire::testing
