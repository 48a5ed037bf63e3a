// OpenAI's files and vector stores are views of the documents of a running service.
#include <boost/json/serialize.hpp>
#include <chrono>
#include <thread>
#include <utility>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

class FilesTest : public ServiceTest {
 protected:
  static json::value send(const std::string& method, const std::string& path,
                          const std::string& body = {}, int expected = 200,
                          const std::string& ns = "default") {
    int status = 0;
    auto v = service->json(method, "/v1/" + path, body, {"X-Namespace: " + ns}, &status);
    EXPECT_EQ(status, expected) << method << " " << path << ": " << json::serialize(v);
    return v;
  }
  static std::string upload(const std::string& name, const std::string& text) {
    const auto r = service->call(
        "POST", "/v1/files",
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n"
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" +
            name + "\"\r\n\r\n" + text + "\r\n--b--\r\n",
        {}, "multipart/form-data; boundary=b");
    EXPECT_EQ(r.status, 200) << r.body;
    return text_at(parse(r.body), "id");
  }
  static std::string new_store(const std::string& body) {
    return text_at(send("POST", "vector_stores", body), "id");
  }
};

TEST_F(FilesTest, AFileIsADocument) {
  const std::string id = upload("varo.txt", "The Varo company is led by Mira Tolen.");
  const auto document = send("GET", "documents/" + id);
  EXPECT_EQ(text_at(document, "metadata.filename"), "varo.txt");
  EXPECT_EQ(text_at(document, "metadata.purpose"), "assistants");
  EXPECT_EQ(text_at(send("GET", "files/" + id), "status"), "processed");
  EXPECT_EQ(service->call("GET", "/v1/files/" + id + "/content").body,
            "The Varo company is led by Mira Tolen.");
  (void)send("POST", "documents?wait=true", R"({"id":"plain","text":"A plain document."})");
  EXPECT_EQ(text_at(send("GET", "files/plain"), "filename"), "plain");
  EXPECT_EQ(text_at(send("GET", "files?purpose=assistants&limit=1"), "data.0.id"), id);
  EXPECT_EQ(text_at(send("GET", "files?purpose=foo", {}, 400), "error.param"), "purpose");
  EXPECT_EQ(text_at(send("DELETE", "files/" + id), "object"), "file");
  EXPECT_EQ(text_at(send("GET", "documents/" + id, {}, 404), "error.code"), "document_not_found");
}

TEST_F(FilesTest, AFileWithoutTextIsRefused) {
  const auto r = service->call(
      "POST", "/v1/files",
      "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n"
      "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\n \r\n"
      "--b--\r\n",
      {}, "multipart/form-data; boundary=b");
  EXPECT_EQ(r.status, 422) << r.body;
  EXPECT_EQ(text_at(parse(r.body), "error.code"), "empty_document");
  EXPECT_EQ(service->call("POST", "/v1/files", "{}").status, 415);
}

TEST_F(FilesTest, AVectorStoreSearchesItsOwnDocumentsOnly) {
  const std::string in = upload("a.txt", "The lighthouse of Halden was built in 1802.");
  const std::string out = upload("b.txt", "The lighthouse of Varo was built in 1911.");
  const std::string store = new_store(R"({"name":"towers","file_ids":[")" + in + R"("]})");
  const auto all = send("POST", "vector_stores/" + store + "/search",
                        R"({"query":"When was the lighthouse built?"})");
  ASSERT_EQ(at(all, "data").as_array().size(), 1u);
  EXPECT_EQ(text_at(all, "data.0.file_id"), in);
  EXPECT_EQ(text_at(all, "data.0.filename"), "a.txt");
  EXPECT_NE(text_at(all, "data.0.content.0.text").find("1802"), std::string::npos);

  const auto attached = send("POST", "vector_stores/" + store + "/files",
                             R"({"file_id":")" + out + R"(","attributes":{"place":"Varo"}})");
  EXPECT_EQ(text_at(attached, "status"), "completed");
  EXPECT_EQ(int_at(send("GET", "vector_stores/" + store), "file_counts.total"), 2);
  const auto some = send("POST", "vector_stores/" + store + "/search",
                         R"({"query":["lighthouse","built"],"max_num_results":5,
                             "filters":{"type":"eq","key":"place","value":"Varo"}})");
  ASSERT_EQ(at(some, "data").as_array().size(), 1u);
  EXPECT_EQ(text_at(some, "data.0.attributes.place"), "Varo");

  (void)send("DELETE", "vector_stores/" + store + "/files/" + in);
  EXPECT_EQ(text_at(send("GET", "vector_stores/" + store + "/files"), "first_id"), out);
  (void)send("GET", "vector_stores/" + store + "/files/" + in, {}, 404);
  (void)send("DELETE", "vector_stores/" + store);
  EXPECT_EQ(text_at(send("GET", "vector_stores/" + store, {}, 404), "error.code"),
            "vector_store_not_found");
  EXPECT_TRUE(at(send("GET", "documents/" + out), "metadata.vector_stores").is_null());
  EXPECT_EQ(text_at(send("GET", "documents/" + out), "metadata.place"), "Varo");
}

TEST_F(FilesTest, VectorStoresBelongToTheirNamespaceAndComeInPages) {
  std::vector<std::string> ids;
  for (const char* name : {"one", "two", "three"})
    ids.push_back(new_store(std::string(R"({"name":")") + name + R"("})"));
  (void)send("GET", "vector_stores/" + ids[0], {}, 404, "other");
  EXPECT_TRUE(at(send("GET", "vector_stores", {}, 200, "other"), "data").as_array().empty());
  const auto page = send("GET", "vector_stores?limit=2");
  EXPECT_EQ(text_at(page, "data.0.id"), ids[2]);
  EXPECT_EQ(text_at(page, "last_id"), ids[1]);
  EXPECT_TRUE(at(page, "has_more").as_bool());
  EXPECT_EQ(text_at(send("GET", "vector_stores?limit=2&after=" + ids[1]), "data.0.id"), ids[0]);
  (void)send("POST", "vector_stores", R"({"file_ids":["missing"]})", 404);
  const auto changed = send("POST", "vector_stores/" + ids[0],
                            R"({"name":"uno","metadata":{"a":"b"}})");
  EXPECT_EQ(text_at(changed, "name"), "uno");
  EXPECT_EQ(text_at(send("GET", "vector_stores/" + ids[0]), "metadata.a"), "b");
  for (const std::string& id : ids) (void)send("DELETE", "vector_stores/" + id);
}

TEST_F(FilesTest, CountsOfVectorStoresFollowEveryChange) {
  const std::string store = new_store(R"({"name":"counted"})");
  const auto counted = [&] {
    const auto list = send("GET", "vector_stores?limit=1");
    EXPECT_EQ(text_at(list, "data.0.id"), store);
    return std::pair(int_at(list, "data.0.file_counts.completed"),
                     int_at(list, "data.0.usage_bytes"));
  };
  EXPECT_EQ(counted().first, 0);
  const std::string a = upload("a.txt", "A lighthouse."), b = upload("b.txt", "A hill.");
  for (const std::string& id : {a, b})
    (void)send("POST", "vector_stores/" + store + "/files", R"({"file_id":")" + id + "\"}");
  const auto both = counted();
  EXPECT_EQ(both.first, 2);
  EXPECT_EQ(both.second, 20);
  EXPECT_EQ(counted(), both) << "nothing has changed";
  (void)send("DELETE", "vector_stores/" + store + "/files/" + a);
  EXPECT_EQ(counted().first, 1);
  (void)send("PATCH", "documents/" + a, R"({"metadata":{"vector_stores":[")" + store + "\"]}}");
  EXPECT_EQ(counted().first, 2) << "as its metadata say";
  (void)send("DELETE", "files/" + b);
  EXPECT_EQ(counted().second, 13);
  (void)send("DELETE", "vector_stores/" + store);
}

/// Asks for a batch until it has ended, and returns it.
json::value ended_batch(const ServiceProcess& service, const std::string& path) {
  json::value batch;
  for (int i = 0; i < 6000; ++i) {
    batch = service.json("GET", path);
    if (text_at(batch, "status") != "in_progress") return batch;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "the batch does not end: " << json::serialize(batch);
  return batch;
}

std::string words(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += "The lighthouse " + std::to_string(i) + " is old. ";
  return out;
}

TEST_F(FilesTest, ABatchAttachesItsFilesBehindTheCall) {
  const std::string store = new_store(R"({"name":"batched"})");
  const std::string base = "vector_stores/" + store + "/file_batches";
  std::vector<std::string> ids;
  for (const char* name : {"a.txt", "b.txt", "c.txt"})
    ids.push_back(upload(name, std::string("The lighthouse of ") + name));
  const std::string list = "\"" + ids[0] + "\",\"" + ids[1] + "\",\"" + ids[2] + "\"";
  const auto made = send("POST", base,
                         R"({"file_ids":[)" + list + R"(],"attributes":{"year":1802}})");
  EXPECT_EQ(text_at(made, "object"), "vector_store.files_batch");
  EXPECT_EQ(text_at(made, "vector_store_id"), store);
  const std::string path = base + "/" + text_at(made, "id");
  const auto ended = ended_batch(*service, "/v1/" + path);
  EXPECT_EQ(text_at(ended, "status"), "completed");
  EXPECT_EQ(int_at(ended, "file_counts.completed"), 3);
  EXPECT_EQ(int_at(ended, "file_counts.total"), 3);
  EXPECT_EQ(int_at(send("GET", "vector_stores/" + store), "file_counts.completed"), 3);
  EXPECT_EQ(int_at(send("GET", "documents/" + ids[1]), "metadata.year"), 1802);

  const auto up = send("GET", path + "/files?order=asc&limit=2");
  EXPECT_EQ(text_at(up, "first_id"), ids[0]);
  EXPECT_EQ(text_at(up, "last_id"), ids[1]);
  EXPECT_TRUE(at(up, "has_more").as_bool());
  EXPECT_EQ(int_at(up, "data.0.attributes.year"), 1802);
  EXPECT_EQ(text_at(send("GET", path + "/files?order=asc&after=" + ids[1]), "first_id"), ids[2]);
  const auto before = send("GET", path + "/files?order=asc&limit=1&before=" + ids[2]);
  EXPECT_EQ(text_at(before, "first_id"), ids[1]);
  EXPECT_TRUE(at(before, "has_more").as_bool());
  EXPECT_EQ(text_at(send("GET", path + "/files"), "first_id"), ids[2]);
  EXPECT_TRUE(at(send("GET", path + "/files?filter=failed"), "data").as_array().empty());
  EXPECT_EQ(text_at(send("GET", path + "/files?filter=done", {}, 400), "error.param"), "filter");
  EXPECT_EQ(text_at(send("GET", path + "/files?before=none", {}, 400), "error.param"), "before");
  EXPECT_EQ(text_at(send("POST", path + "/cancel"), "status"), "completed");

  // What is deleted later stays as the batch found it.
  (void)send("DELETE", "files/" + ids[0]);
  const auto gone = send("GET", path + "/files?order=asc&limit=1");
  EXPECT_EQ(text_at(gone, "data.0.status"), "completed");
  EXPECT_EQ(int_at(gone, "data.0.usage_bytes"), 0);

  EXPECT_EQ(text_at(send("POST", base, R"({"file_ids":["none"]})", 404), "error.param"),
            "file_ids");
  EXPECT_EQ(text_at(send("GET", base + "/none", {}, 404), "error.code"), "file_batch_not_found");
  EXPECT_EQ(text_at(send("GET", base + "/none/files", {}, 404), "error.code"),
            "file_batch_not_found");
  EXPECT_EQ(text_at(send("POST", base + "/none/cancel", {}, 404), "error.param"), "batch_id");
  (void)send("GET", path, {}, 404, "other");
  (void)send("DELETE", "vector_stores/" + store);
  EXPECT_EQ(text_at(send("GET", path, {}, 404), "error.code"), "vector_store_not_found");
}

TEST_F(FilesTest, ABatchSaysWhichFileFailed) {
  const std::string store = new_store(R"({"name":"failing"})");
  const std::string good = upload("good.txt", "A lighthouse.");
  // A chunk that fits no window fails in its job, and the document stays as failed.
  std::string chunk = words(4000);
  (void)send("POST", "documents?wait=true", R"({"id":"bad","chunks":[")" + chunk + "\"]}", 400);
  ASSERT_EQ(text_at(send("GET", "documents/bad"), "status"), "failed");
  const auto made = send(
      "POST", "vector_stores/" + store + "/file_batches",
      R"({"files":[{"file_id":"bad"},{"file_id":")" + good + R"(","attributes":{"good":true}}]})");
  const std::string path = "vector_stores/" + store + "/file_batches/" + text_at(made, "id");
  const auto ended = ended_batch(*service, "/v1/" + path);
  EXPECT_EQ(text_at(ended, "status"), "completed");
  EXPECT_EQ(int_at(ended, "file_counts.failed"), 1);
  const auto failed = send("GET", path + "/files?filter=failed");
  EXPECT_EQ(text_at(failed, "first_id"), "bad");
  EXPECT_EQ(text_at(failed, "data.0.last_error.code"), "invalid_file");
  EXPECT_NE(text_at(failed, "data.0.last_error.message").find("tokens"), std::string::npos);
  EXPECT_TRUE(at(send("GET", "documents/" + good), "metadata.good").as_bool());
  EXPECT_EQ(text_at(send("GET", "vector_stores/" + store + "/files"), "first_id"), good);
}

TEST_F(FilesTest, StaticChunkingCutsADocumentAgainAndKeepsTheRest) {
  const std::string store = new_store(R"({"name":"cut"})");
  (void)send("POST", "documents?wait=true",
             R"({"id":"long","title":"Lighthouses","text":")" + words(200) +
                 R"(","metadata":{"team":"a"},"ttl_seconds":86400,"pinned":true,
                 "marks":[{"start":0,"page":1},{"start":900,"page":2}]})");
  const auto before = send("GET", "documents/long");
  const std::string cut = R"("chunking_strategy":{"type":"static","static":
      {"max_chunk_size_tokens":200,"chunk_overlap_tokens":100}}})";
  const auto attached = send("POST", "vector_stores/" + store + "/files",
                             R"({"file_id":"long","attributes":{"year":1},)" + cut);
  EXPECT_EQ(text_at(attached, "chunking_strategy.type"), "static");
  EXPECT_EQ(int_at(attached, "chunking_strategy.static.max_chunk_size_tokens"), 200);
  EXPECT_EQ(int_at(attached, "chunking_strategy.static.chunk_overlap_tokens"), 100);
  const auto after = send("GET", "documents/long");
  for (const char* kept : {"title", "pinned", "expires_at", "created_at", "bytes"})
    EXPECT_EQ(at(before, kept), at(after, kept)) << kept;
  EXPECT_EQ(text_at(after, "metadata.team"), "a");
  EXPECT_EQ(int_at(after, "metadata.year"), 1);
  EXPECT_GT(int_at(after, "chunks"), int_at(before, "chunks"));
  const auto chunks = send("GET", "documents/long/chunks");
  std::int64_t covered = 0;
  for (const json::value& c : at(chunks, "data").as_array()) {
    EXPECT_LE(int_at(c, "tokens"), 200);
    if (covered > 0) {
      EXPECT_LT(int_at(c, "chars.0"), covered);
    }
    covered = int_at(c, "chars.1");
  }
  EXPECT_EQ(int_at(send("GET", "documents/long/chunks"), "data.0.page"), 1);
  // It is cut so already.
  const auto last_job = [] { return text_at(send("GET", "jobs?limit=1"), "first_id"); };
  const std::string job = last_job();
  (void)send("POST", "vector_stores/" + store + "/files", R"({"file_id":"long",)" + cut);
  EXPECT_EQ(last_job(), job);

  // In a batch, and where a vector store is made.
  const auto small = R"("chunking_strategy":{"type":"static","static":
      {"max_chunk_size_tokens":100,"chunk_overlap_tokens":0}}})";
  const auto made = send("POST", "vector_stores/" + store + "/file_batches",
                         std::string(R"({"file_ids":["long"],)") + small);
  const std::string path = "vector_stores/" + store + "/file_batches/" + text_at(made, "id");
  EXPECT_EQ(int_at(ended_batch(*service, "/v1/" + path), "file_counts.completed"), 1);
  const auto listed = send("GET", path + "/files");
  EXPECT_EQ(int_at(listed, "data.0.chunking_strategy.static.max_chunk_size_tokens"), 100);
  (void)send("POST", "vector_stores", R"({"file_ids":["long"],)" + cut);
  EXPECT_EQ(int_at(send("GET", "vector_stores/" + store + "/files/long"),
                   "chunking_strategy.static.chunk_overlap_tokens"),
            100);
  EXPECT_EQ(at(send("GET", "documents/long"), "expires_at"), at(before, "expires_at"));

  (void)send("POST", "documents?wait=true",
             R"({"id":"salted","text":"A lighthouse.","cache_salt":"very secret"})");
  const auto refused = send("POST", "vector_stores/" + store + "/files",
                            R"({"file_id":"salted",)" + cut, 400);
  EXPECT_NE(text_at(refused, "error.message").find("cache_salt"), std::string::npos);
}

TEST(FilesRestart, ABatchGoesOnAfterAKill) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  int status = 0;
  const auto store = service.json("POST", "/v1/vector_stores", R"({"name":"kept"})", {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(store);
  std::string ids;
  for (int i = 0; i < 12; ++i) {
    const std::string id = "d" + std::to_string(i);
    (void)service.json("POST", "/v1/documents",
                       R"({"id":")" + id + R"(","text":")" + id + " " + words(300) + "\"}", {},
                       &status);
    ASSERT_EQ(status, 202);
    ids += (i ? ",\"" : "\"") + id + "\"";
  }
  const std::string base = "/v1/vector_stores/" + text_at(store, "id");
  const auto made = service.json("POST", base + "/file_batches", R"({"file_ids":[)" + ids + "]}",
                                 {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(made);
  service.kill();
  service.start(folder.path() / "store");
  const auto ended = ended_batch(service, base + "/file_batches/" + text_at(made, "id"));
  EXPECT_EQ(text_at(ended, "status"), "completed");
  EXPECT_EQ(int_at(ended, "file_counts.completed"), 12);
  EXPECT_EQ(int_at(service.json("GET", base), "file_counts.completed"), 12);
  EXPECT_EQ(service.stop(), 0);
}

TEST(FilesRestart, ACancelledBatchStaysCancelled) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  int status = 0;
  const auto store = service.json("POST", "/v1/vector_stores", R"({"name":"kept"})");
  (void)service.json("POST", "/v1/documents", R"({"id":"long","text":")" + words(3000) + "\"}", {},
                     &status);
  ASSERT_EQ(status, 202);
  const std::string base = "/v1/vector_stores/" + text_at(store, "id");
  const auto made = service.json("POST", base + "/file_batches", R"({"file_ids":["long"]})");
  const std::string path = base + "/file_batches/" + text_at(made, "id");
  const auto counted = service.json("GET", base);
  EXPECT_EQ(int_at(counted, "file_counts.in_progress"), 1);
  EXPECT_EQ(text_at(counted, "status"), "in_progress");
  const auto waiting = service.json("GET", base + "/files?filter=in_progress");
  EXPECT_EQ(text_at(waiting, "data.0.id"), "long");
  EXPECT_EQ(text_at(waiting, "data.0.status"), "in_progress");
  EXPECT_FALSE(at(waiting, "has_more").as_bool());
  EXPECT_TRUE(
      at(service.json("GET", base + "/files?filter=in_progress&order=asc&after=long"), "data")
          .as_array()
          .empty());
  EXPECT_TRUE(at(service.json("GET", base + "/files?filter=completed"), "data").as_array().empty());
  const auto cancelled = service.json("POST", path + "/cancel", {}, {}, &status);
  ASSERT_EQ(status, 200);
  EXPECT_EQ(text_at(cancelled, "status"), "cancelled") << json::serialize(cancelled);
  EXPECT_EQ(int_at(cancelled, "file_counts.cancelled"), 1);
  service.kill();
  service.start(folder.path() / "store");
  EXPECT_EQ(text_at(service.json("GET", path), "status"), "cancelled");
  EXPECT_TRUE(
      at(service.json("GET", base + "/files?filter=in_progress"), "data").as_array().empty());
  EXPECT_EQ(int_at(service.json("GET", base), "file_counts.total"), 0);
  EXPECT_EQ(service.stop(), 0);
}

TEST(FilesRestart, VectorStoresOutliveAKill) {
  TempFolder folder;
  ServiceProcess service;
  service.start(folder.path() / "store");
  int status = 0;
  (void)service.json("POST", "/v1/documents?wait=true", R"({"id":"a","text":"A lighthouse."})", {},
                     &status);
  ASSERT_EQ(status, 200);
  const auto store = service.json("POST", "/v1/vector_stores",
                                  R"({"name":"kept","file_ids":["a"]})", {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(store);
  service.kill();
  service.start(folder.path() / "store");
  const auto back = service.json("GET", "/v1/vector_stores/" + text_at(store, "id"));
  EXPECT_EQ(text_at(back, "name"), "kept");
  EXPECT_EQ(int_at(back, "file_counts.completed"), 1);
  EXPECT_EQ(service.stop(), 0);
}

}  // namespace
}  // namespace quire::testing
