/// A document service over a store in memory, and over a catalog in memory that others share.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/store_impl.h"
#include "ingest/ingest_service.h"
#include "tests/support/harness/ingest_fixture.h"
#include "tests/support/harness/memory_catalog.h"
#include "tests/support/harness/memory_tier.h"
#include "tests/support/soon.h"

namespace quire::test {

/// A document service with a store of its own. Without a database it has no shared catalog.
struct Node {
  explicit Node(std::shared_ptr<MemoryDatabase> shared,
                std::chrono::milliseconds catalog_timeout = std::chrono::seconds(5))
      : database(std::move(shared)), timeout(catalog_timeout) {
    options.maintenance_interval_ms = 0;  // tests call tend()
    open(database != nullptr);
  }
  ~Node() { close(); }
  void open(bool with_catalog = true) {
    StoreOptions so;
    so.dram_bytes = 16 << 20;
    so.catalog.poll = poll;
    so.catalog.timeout = timeout;
    so.catalog.job_lease = std::chrono::milliseconds(0);  // each tend() looks
    auto opened = open_store_on(so, std::make_unique<MemoryTier>(disk), {},
                                with_catalog ? std::make_unique<MemoryCatalog>(database) : nullptr);
    ASSERT_OK(opened);
    store = std::move(*opened);
    engine = std::make_unique<FakeEngine>(*store, fingerprint);
    if (prefills_wait) engine->close();
    auto made = create_ingest_service(options, *store, *engine);
    ASSERT_OK(made);
    service = std::move(*made);
    ASSERT_OK(service->start());
  }
  void close() {
    if (service) service->stop();
    service.reset();
    engine.reset();
    store.reset();
  }
  Status tend() { return service->run_maintenance(); }
  /// Returns the job as this node sees it, once it has ended.
  JobSnapshot end_of(const std::string& id) {
    JobSnapshot last;
    EXPECT_TRUE(testing::soon([&] {
      (void)tend();
      const auto now = service->jobs().job("default", id);
      if (now.ok()) last = *now;
      return now.ok() && now->finished();
    }));
    return last;
  }
  std::string content(const std::string& id) {
    return service->documents().content("default", id).value_or("");
  }
  std::uint64_t version(const std::string& id) {
    const auto head = store->get_document_head("default", id);
    return head.ok() ? head->version : 0;
  }
  std::string submit(int documents, const std::string& prefix = "d") {
    std::vector<DocumentInput> batch;
    for (int i = 0; i < documents; ++i)
      batch.push_back(doc(prefix + std::to_string(i), "text " + std::to_string(i)));
    const auto job = service->submit("default", std::move(batch), {});
    EXPECT_OK(job);
    return job.ok() ? job->id : "";
  }

  std::shared_ptr<MemoryDatabase> database;
  std::chrono::milliseconds poll{10}, timeout;
  bool prefills_wait = false;  // from the start on
  std::string fingerprint = "m-00000001";
  IngestOptions options;
  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
  std::unique_ptr<AdminStore> store;
  std::unique_ptr<FakeEngine> engine;
  std::unique_ptr<IngestService> service;
};

}  // namespace quire::test
