// Every thread that carries out a part of a request with an Idempotency-Key ties its changes to it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json_parse.h"
#include "cachestore/catalog/request_fence.h"
#include "cachestore/store_admin.h"
#include "server/vector_stores/file_batches.h"
#include "tests/support/harness/memory_records.h"
#include "tests/support/model_files.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

/// Counts changes by whether they are tied to a request. A job works on a document that is looked
/// at for the first time, and the queue is full for who asks first.
class Documents : public test::StubIngest {
 public:
  Documents() { tells_ends = true; }
  std::atomic<int> tied{0}, others{0}, gets{0};
  mutable std::atomic<int> looks{0};

  Result<JobSnapshot> submit(std::string_view ns, std::vector<DocumentInput> documents,
                             const BatchOptions& how) override {
    count();
    return StubIngest::submit(ns, std::move(documents), how);
  }
  Result<DocumentInfo> patch(std::string_view ns, std::string_view id,
                             const DocumentPatch& how) override {
    count();
    return StubIngest::patch(ns, id, how);
  }
  using DocumentCatalog::remove;
  Status remove(std::string_view ns, std::string_view id, const DocumentCondition& how) override {
    count();
    return StubIngest::remove(ns, id, how);
  }
  Result<DocumentInfo> get(std::string_view, std::string_view id) override {
    DocumentInfo d;
    d.id = id;
    d.status = DocumentStatus::kReady;
    d.metadata_json = "{}";
    if (gets++ == 0) {
      d.progress = 0.5;
      d.job_id = "job_1";
    }
    return d;
  }
  IngestStats stats() const override {
    IngestStats now;
    now.accepting = true;
    if (looks++ == 0)
      now.documents_waiting = static_cast<std::int64_t>(options().max_queued_documents);
    return now;
  }

 private:
  void count() { ++(RequestFence::current() != nullptr ? tied : others); }
};

class FencedChanges : public test::StubAppTest {
 protected:
  FencedChanges() {
    StoreOptions options;
    options.path = (folder_.path() / "store").string();
    options.dram_bytes = 1 << 20;
    auto store = open_admin_store(options);
    QUIRE_CHECK(store.ok(), store.status().to_string());
    store_ = std::move(*store);
    services.store = store_.get();
    services.ingest = &documents;
    services.file_batches = std::make_shared<FileBatches>(services);
    services.idempotency->share(&replies_);
  }
  ~FencedChanges() override {
    (void)server->stop(std::chrono::milliseconds(0));
    services.file_batches->stop();
    services.timers->stop();
    services.workers->stop();
    services.file_batches.reset();
    services.idempotency->share(nullptr);
  }

  testing::TempFolder folder_;
  std::unique_ptr<AdminStore> store_;
  test::MemoryReplies::Table table_;
  test::MemoryReplies replies_{table_, "a", [] { return Status(); }};
  Documents documents;
  const std::vector<std::string> key_{"Idempotency-Key: k"};
};

TEST_F(FencedChanges, OnTheThreadOfTheHandler) {
  EXPECT_EQ(call("DELETE", "/v1/documents/a", {}, key_).status, 200);
  EXPECT_EQ(documents.tied, 1);
  EXPECT_EQ(call("DELETE", "/v1/documents/a").status, 200);
  EXPECT_EQ(documents.others, 1) << "nobody else knows of a request without a key";
}

TEST_F(FencedChanges, WhereAFileIsAttachedOnceItsJobHasEnded) {
  const auto made = parse_json(call("POST", "/v1/vector_stores", R"({"name":"a"})").body);
  ASSERT_TRUE(made.ok());
  const std::string id(made->at("id").as_string());
  const auto r = call("POST", "/v1/vector_stores/" + id + "/files", R"({"file_id":"d"})", key_);
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_GE(documents.gets, 2);
  EXPECT_EQ(documents.tied, 1);
  EXPECT_EQ(documents.others, 0);
}

TEST_F(FencedChanges, WhereDocumentsWaitForRoomInTheQueue) {
  const auto r = call("POST", "/v1/documents", R"({"id":"d","text":"text"})", key_,
                      "application/x-ndjson");
  EXPECT_LT(r.status, 300) << r.body;
  EXPECT_GE(documents.looks, 2) << "the first time it had to wait";
  EXPECT_EQ(documents.tied, 1);
  EXPECT_EQ(documents.others, 0);
}

}  // namespace
}  // namespace quire
