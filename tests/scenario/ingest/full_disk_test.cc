// On a full disk, documents are refused or fail with one clear error. Stored documents stay, and
// the service recovers by itself.
#include "cachestore/store_impl.h"
#include "tests/support/harness/ingest_fixture.h"
#include "tests/support/harness/memory_tier.h"

namespace quire::test {
namespace {

using ::testing::HasSubstr;

class FullDiskTest : public IngestTest {
 protected:
  FullDiskTest() {
    open_over_disk();
    kept_ = prose(300, 1);
    EXPECT_EQ(put(one(doc("kept", kept_))).status, JobStatus::kSucceeded);
  }
  ~FullDiskTest() override { shut(); }

  void open_over_disk() {
    StoreOptions so;
    so.path = "memory";
    so.dram_bytes = 0;  // makes every read come from the disk
    so.clock_ms = [this] { return clock_ms_.load(); };
    auto opened = open_store_on(std::move(so), std::make_unique<MemoryTier>(disk_));
    ASSERT_OK(opened);
    store_ = std::move(*opened);
    faulty_ = std::make_unique<FaultyStore>(store_);
    engine_ = std::make_unique<FakeEngine>(*faulty_, "m-00000001");
    make_service();
  }

  /// Expects the earlier document to be unchanged, with its KV.
  void expect_kept() {
    EXPECT_EQ(service_->documents().content("default", "kept").value_or(""), kept_);
    const auto d = service_->documents().get("default", "kept");
    ASSERT_OK(d);
    EXPECT_EQ(d->status, DocumentStatus::kReady);
    EXPECT_EQ(d->cache.state, "resident");
    expect_readable("kept");
  }
  /// Expects every value that the document names to exist and to be what was written.
  void expect_readable(const std::string& id) {
    const auto m = store_->get_document("default", id);
    ASSERT_OK(m);
    for (const DocumentChunk& c : m->chunks) {
      const auto segment = store_->find_segment(c.key);
      ASSERT_TRUE(segment) << id;
      for (std::uint32_t b = 0; b < (*segment)->layout.num_blocks; ++b)
        EXPECT_OK(store_->read_value(*segment, b, 0)) << id << " block " << b;
    }
  }

  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  std::string kept_;
};

TEST_F(FullDiskTest, APostIsRefusedAndNothingOfItStays) {
  disk_->free = 1000;
  const auto job = service_->submit("default", one(doc("new", "new text")), {});
  EXPECT_EQ(job.code(), Code::kResourceExhausted);
  EXPECT_THAT(job.status().message(), HasSubstr("disk is full"));
  EXPECT_EQ(service_->documents().get("default", "new").code(), Code::kNotFound);
  EXPECT_EQ(service_->stats().documents_waiting, 0);
  expect_kept();
  disk_->free = 1ull << 40;
  EXPECT_EQ(put(one(doc("new", "new text"))).status, JobStatus::kSucceeded);
  expect_readable("new");
}

TEST_F(FullDiskTest, ADiskThatFillsUpAtAnyWriteFailsTheDocumentAndLosesNothing) {
  const std::string text = prose(300, 2);
  const int before = disk_->writes;
  EXPECT_EQ(put(one(doc("whole", text))).status, JobStatus::kSucceeded);
  const int writes = disk_->writes - before;
  ASSERT_GE(writes, 4) << "input, job, segment, document";
  bool refused = false, failed = false;
  for (int n = 0; n <= writes; ++n) {
    SCOPED_TRACE(n);
    const std::string id = "n" + std::to_string(n),
                      own = id + " " + prose(300, static_cast<std::uint64_t>(n) + 3);
    disk_->full_from = disk_->writes + n;
    const auto job = service_->submit("default", one(doc(id, own)), {});
    if (!job.ok()) {
      refused = true;
      EXPECT_EQ(job.code(), Code::kResourceExhausted);
      EXPECT_THAT(job.status().message(), HasSubstr("disk is full"));
    } else {
      const JobSnapshot end = wait(job);
      ASSERT_TRUE(end.finished());
      ASSERT_EQ(end.results.size(), 1u);
      if (end.results[0].error) {
        failed = true;
        EXPECT_EQ(end.results[0].error->code, "cache_full");
        EXPECT_THAT(end.results[0].error->message, HasSubstr("disk is full"));
      } else {
        expect_readable(id);
      }
    }
    expect_kept();
    disk_->full_from = -1;
    EXPECT_EQ(put(one(doc(id, own))).status, JobStatus::kSucceeded) << "posting it again heals it";
    expect_readable(id);
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(failed);
}

TEST_F(FullDiskTest, AStopOnAFullDiskAndARestartBehindItLoseNothing) {
  const std::string text = prose(300, 2);
  engine_->close();
  const auto job = service_->submit("default", one(doc("late", text)), {});
  ASSERT_OK(job);  // the document is promised
  engine_->wait_for_one();
  disk_->full_from = disk_->writes.load();
  shut();
  disk_->full_from = -1;
  open_over_disk();
  expect_kept();
  EXPECT_EQ(wait(service_->jobs().job("default", job->id)).status, JobStatus::kSucceeded);
  EXPECT_EQ(service_->documents().content("default", "late").value_or(""), text);
  expect_readable("late");
}

}  // namespace
}  // namespace quire::test
