// A file that cannot be attached before the service ends is not attached, and its caller is told.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/json_parse.h"
#include "cachestore/store_admin.h"
#include "server/vector_stores/file_batches.h"
#include "tests/support/model_files.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

/// A document that the job job_1 works on for ever. Whoever looks at it begins the drain.
class Uncached : public test::StubIngest {
 public:
  std::atomic<bool>* draining = nullptr;
  Result<DocumentInfo> get(std::string_view, std::string_view id) override {
    *draining = true;
    DocumentInfo d;
    d.id = id;
    d.progress = 0.5;
    d.job_id = "job_1";
    return d;
  }
};

class VectorStoresDrain : public test::StubAppTest {
 protected:
  VectorStoresDrain() {
    StoreOptions options;
    options.path = (folder_.path() / "store").string();
    options.dram_bytes = 1 << 20;
    auto store = open_admin_store(options);
    QUIRE_CHECK(store.ok(), store.status().to_string());
    store_ = std::move(*store);
    services.store = store_.get();
    documents_.draining = &services.draining;
    services.ingest = &documents_;
    services.file_batches = std::make_shared<FileBatches>(services);
  }
  ~VectorStoresDrain() override {
    (void)server->stop(std::chrono::milliseconds(0));
    services.file_batches->stop();
    services.timers->stop();
    services.workers->stop();
    services.file_batches.reset();
  }
  /// Expects the error of a document that was not attached.
  static void expect_draining(const testing::RawResponse& r, const std::string& param) {
    EXPECT_EQ(r.status, 503) << r.body;
    EXPECT_TRUE(r.header("retry-after"));
    const auto v = parse_json(r.body);
    ASSERT_TRUE(v.ok()) << r.body;
    const auto& error = v->at("error");
    EXPECT_EQ(error.at("code"), "draining");
    EXPECT_EQ(error.at("param").as_string(), param);
    const std::string message(error.at("message").as_string());
    EXPECT_NE(message.find("'slow' is not attached"), std::string::npos) << message;
    EXPECT_NE(message.find("job_1"), std::string::npos) << message;
  }

  testing::TempFolder folder_;
  std::unique_ptr<AdminStore> store_;
  Uncached documents_;
};

TEST_F(VectorStoresDrain, AStopDoesNotWaitForAFileThatIsAttached) {
  const auto made = parse_json(call("POST", "/v1/vector_stores", R"({"name":"a"})").body);
  ASSERT_TRUE(made.ok());
  const std::string id(made->at("id").as_string());
  expect_draining(call("POST", "/v1/vector_stores/" + id + "/files", R"({"file_id":"slow"})"),
                  "file_id");
}

TEST_F(VectorStoresDrain, AVectorStoreWhoseFilesAreNotAttachedByThenIsNotMade) {
  expect_draining(call("POST", "/v1/vector_stores", R"({"file_ids":["slow"]})"), "file_ids");
  services.draining = false;
  const auto left = parse_json(call("GET", "/v1/vector_stores").body);
  ASSERT_TRUE(left.ok());
  EXPECT_TRUE(left->at("data").as_array().empty());
}

}  // namespace
}  // namespace quire
