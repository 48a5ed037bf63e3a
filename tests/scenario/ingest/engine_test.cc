// The document service works over the real engine and the embedded model.
#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using namespace test;

TEST(IngestWithEngineTest, DocumentsAreCachedAndSurviveARestart) {
  std::string root = (std::filesystem::temp_directory_path() / "quire_ingest_XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  EngineOptions eo;
  eo.model_path = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
  eo.num_threads = 1;
  std::uint64_t tokens = 0;
  std::string first_block;
  for (int round = 0; round < 2; ++round) {
    StoreOptions so;
    so.path = root + "/store";
    so.dram_bytes = 64 << 20;
    auto store = open_store(std::move(so));
    ASSERT_OK(store);
    auto engine = create_engine(eo, **store);
    ASSERT_OK(engine);
    auto service = create_ingest_service({}, **store, **engine);
    ASSERT_OK(service);
    ASSERT_OK((*service)->start());
    std::vector<DocumentInput> batch;
    batch.push_back(doc("a", prose(300, 1)));
    batch.push_back(doc("b", prose(200, 2), R"({"k":1})", "Title"));
    const auto job = (*service)->submit("default", std::move(batch), {});
    ASSERT_OK(job);
    std::promise<JobSnapshot> done;
    const auto s = (*service)->jobs().subscribe("default", job->id,
                                                [&](JobEvent event, const JobSnapshot& snapshot) {
                                                  if (event == JobEvent::kDone)
                                                    done.set_value(snapshot);
                                                });
    const JobSnapshot end = done.get_future().get();
    EXPECT_EQ(end.status, JobStatus::kSucceeded);
    for (const JobItem& item : end.results) {
      EXPECT_EQ(item.result, round == 0 ? ItemResult::kCreated : ItemResult::kUnchanged)
          << (item.error ? item.error->message : "");
    }
    const auto d = (*service)->documents().get("default", "a");
    ASSERT_OK(d);
    EXPECT_EQ(d->cache.state, "resident");
    EXPECT_EQ(d->cache.disk, d->cache.blocks);
    EXPECT_EQ(d->cache.dram, round == 0 ? d->cache.blocks : 0u);
    const auto blocks = (*service)->documents().blocks("default", "a");
    ASSERT_OK(blocks);
    if (round == 0) {
      tokens = d->tokens;
      first_block = blocks->front().block_id;
      EXPECT_EQ(end.usage.cache_write_tokens, end.usage.tokens);
    } else {
      EXPECT_EQ(d->tokens, tokens);
      EXPECT_EQ(blocks->front().block_id, first_block);
      EXPECT_EQ(end.usage.cache_write_tokens, 0);
    }
    (*service)->stop();
    (*engine)->stop(std::chrono::milliseconds(0));
  }
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
}

TEST(IngestWithEngineTest, TheDraftsKvOfADocumentComesAndGoesWithIt) {
  std::string root = (std::filesystem::temp_directory_path() / "quire_ingest_XXXXXX").string();
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  EngineOptions eo;
  eo.model_path = eo.draft_path = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
  eo.draft_document_kv = true;
  eo.num_threads = 1;
  std::vector<ContextKey> companions;
  for (int round = 0; round < 2; ++round) {
    StoreOptions so;
    so.path = root + "/store";
    so.dram_bytes = 64 << 20;
    auto store = open_store(std::move(so));
    ASSERT_OK(store);
    auto engine = create_engine(eo, **store);
    ASSERT_OK(engine);
    auto service = create_ingest_service({}, **store, **engine);
    ASSERT_OK(service);
    ASSERT_OK((*service)->start());
    if (round == 0) {
      std::vector<DocumentInput> batch;
      batch.push_back(doc("a", prose(300, 1)));
      const auto job = (*service)->submit("default", std::move(batch), {});
      ASSERT_OK(job);
      std::promise<JobSnapshot> done;
      const auto s = (*service)->jobs().subscribe("default", job->id,
                                                  [&](JobEvent event, const JobSnapshot& snapshot) {
                                                    if (event == JobEvent::kDone)
                                                      done.set_value(snapshot);
                                                  });
      EXPECT_EQ(done.get_future().get().status, JobStatus::kSucceeded);
    }
    const auto manifest = (*store)->get_document("default", "a");
    ASSERT_OK(manifest);
    ASSERT_EQ(manifest->companions.size(), manifest->chunks.size());
    if (round == 1) {
      EXPECT_EQ(manifest->companions, companions);
    }
    companions = manifest->companions;
    for (const ContextKey& key : companions) {
      EXPECT_NE(key, manifest->chunks[0].key);
      EXPECT_TRUE((*store)->peek_segment(key).has_value());
    }
    const auto d = (*service)->documents().get("default", "a");
    ASSERT_OK(d);
    EXPECT_EQ(d->cache.state, "resident");
    if (round == 1) {
      ASSERT_OK((*store)->delete_document("default", "a"));
      for (const ContextKey& key : companions)
        EXPECT_FALSE((*store)->peek_segment(key).has_value());
    }
    (*service)->stop();
    (*engine)->stop(std::chrono::milliseconds(0));
  }
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
}

}  // namespace
}  // namespace quire
