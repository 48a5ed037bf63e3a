// OpenAI's files and vector stores are views of the documents of a running service.
#include <boost/json/serialize.hpp>

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
