// The store under faults: the n-th disk call fails, the disk is full, or the budget is too small.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

using test::MemoryDisk;
using test::MemoryTier;
using test::SegmentShape;

Result<std::unique_ptr<AdminStore>> open_memory(const std::shared_ptr<MemoryDisk>& disk,
                                                StoreOptions options = {}) {
  options.path = "memory";
  return open_store_on(std::move(options), std::make_unique<MemoryTier>(disk));
}

/// Runs a fixed history and records what was acknowledged: id -> keys.
void run_history(Store& store, std::map<std::string, std::vector<std::uint64_t>>* acknowledged,
                 int* failures) {
  const auto put = [&](const std::string& id, const std::vector<std::uint64_t>& keys) {
    const Status s = test::put_document(store, id, keys);
    if (s.ok()) (*acknowledged)[id] = keys;
    *failures += !s.ok();
  };
  const auto remove = [&](const std::string& id) {
    const Status s = store.delete_document("default", id);
    if (s.ok()) acknowledged->erase(id);
    *failures += !s.ok() && s.code() != Code::kNotFound;
  };
  put("a", {1, 2});
  put("b", {2, 3});
  remove("a");
  put("c", {1});
  put("b", {4});
  store.touch_document("default", "c");
  *failures += !store
                    .update_document("default", "c",
                                     [](auto& m) {
                                       m.title = "new";
                                       return Status();
                                     })
                    .ok();
  *failures += !store.gc().ok();
  remove("b");
  put("d", {4, 1});
}

TEST(StoreFaults, AnyFailingDiskCallIsReportedAndLosesNothingAcknowledged) {
  int total = 0;
  {
    auto disk = std::make_shared<MemoryDisk>();
    auto store = open_memory(disk);
    ASSERT_OK(store);
    std::map<std::string, std::vector<std::uint64_t>> all;
    int failures = 0;
    run_history(**store, &all, &failures);
    ASSERT_EQ(failures, 0);
    store->reset();
    total = disk->calls;
  }
  ASSERT_GT(total, 30);
  for (bool stays_broken : {false, true}) {
    for (int n = 0; n < total; ++n) {
      auto disk = std::make_shared<MemoryDisk>();
      disk->fail_at = n;
      disk->fail_on = stays_broken;
      std::map<std::string, std::vector<std::uint64_t>> acknowledged;
      int failures = 0;
      if (auto store = open_memory(disk); store.ok())
        run_history(**store, &acknowledged, &failures);
      disk->fail_at = -1;
      auto again = open_memory(disk);
      ASSERT_OK(again);
      auto list = (*again)->list_documents("default", {.limit = 100});
      ASSERT_OK(list);
      EXPECT_EQ(list->documents.size(), acknowledged.size()) << "call " << n;
      for (const auto& [id, keys] : acknowledged) {
        auto m = (*again)->get_document("default", id);
        ASSERT_TRUE(m.ok()) << "call " << n << ": " << test::text(m);
        EXPECT_EQ((*again)->get_text("default", id).value_or(""), test::text_of(id));
        for (auto key : keys) {
          // A fault may lose KV but never make it wrong.
          if (auto handle = (*again)->find_segment(test::key_of(key))) {
            EXPECT_OK(test::check_segment(**again, *handle, key));
          }
        }
      }
    }
  }
}

/// Returns the numbers of a namespace in one line.
std::string numbers_of(Store& store) {
  const auto n = store.namespace_stats("default");
  if (!n.ok()) return n.status().to_string();
  std::string line;
  for (const std::uint64_t v : {n->documents, n->tokens, n->text_bytes, n->ready, n->failed})
    line += std::to_string(v) + " ";
  return line;
}

/// What the log has of a write that failed is there once the record is opened again.
TEST(StoreFaults, AFailedWriteThatIsInTheRecordAfterAllIsCounted) {
  for (const bool told : {true, false}) {
    SCOPED_TRACE(told ? "maintenance finds out" : "the next writer finds out");
    auto disk = std::make_shared<MemoryDisk>();
    auto store = open_memory(disk);
    ASSERT_OK(store);
    for (const char* id : {"a", "b", "c"})
      ASSERT_OK(test::put_document(**store, id, {static_cast<std::uint64_t>(id[0])}));
    const std::string before = numbers_of(**store);

    disk->full = Status::io("injected failure");
    disk->full_from = disk->writes.load();
    const auto commit = [&](const std::string& id) {
      return (*store)->commit_document(test::manifest_of(id, {'a'}), test::text_of(id)).status();
    };
    EXPECT_FALSE(commit("new").ok());
    EXPECT_FALSE(commit("another").ok());
    EXPECT_FALSE((*store)->delete_document("default", "b").ok());
    const auto fail = [](DocumentManifest& m) {
      m.status = DocumentStatus::kFailed;
      return Status();
    };
    EXPECT_FALSE((*store)->update_document("default", "c", fail).ok());
    EXPECT_EQ(numbers_of(**store), before);
    disk->full_from = -1;

    // A change that is made from what may be replaced would mix two versions.
    disk->undecided = true;
    EXPECT_EQ(commit("new").code(), Code::kIo);
    EXPECT_EQ((*store)->delete_document("default", "b").code(), Code::kIo);
    EXPECT_EQ((*store)->update_document("default", "c", fail).code(), Code::kIo);
    ASSERT_OK((*store)->expire(0));
    EXPECT_EQ(numbers_of(**store), before);
    disk->make_failed();
    disk->undecided = false;
    std::string after;
    {
      auto fresh = open_memory(std::make_shared<MemoryDisk>());
      ASSERT_OK(fresh);
      for (const char* id : {"a", "new", "another", "c"})
        ASSERT_OK((*fresh)->commit_document(test::manifest_of(id, {'a'}), test::text_of(id)));
      ASSERT_OK((*fresh)->update_document("default", "c", fail));
      after = numbers_of(**fresh);
    }
    if (told) {
      ASSERT_OK((*store)->expire(0));
      EXPECT_EQ(numbers_of(**store), after);
      ASSERT_OK((*store)->gc());
      EXPECT_FALSE((*store)->find_segment(test::key_of('b'))) << "nothing names it any more";
    }
    // Nothing is taken off that was never added, and a segment stays while it is named.
    ASSERT_OK(commit("new"));
    ASSERT_OK((*store)->delete_document("default", "another"));
    ASSERT_OK((*store)->delete_document("default", "a"));
    ASSERT_OK((*store)->gc());
    EXPECT_TRUE((*store)->find_segment(test::key_of('a')));
    ASSERT_OK((*store)->delete_document("default", "new"));
    ASSERT_OK((*store)->delete_document("default", "c"));
    EXPECT_EQ((*store)->delete_document("default", "b").code(), Code::kNotFound);
    EXPECT_EQ((*store)->stats().documents, 0u);
    EXPECT_TRUE((*store)->namespaces().empty());
    ASSERT_OK((*store)->gc());
    EXPECT_EQ((*store)->stats().segment_bytes, 0u);
  }
}

TEST(StoreFaults, AChangeInDoubtTellsWhetherTheDiskIsFull) {
  for (const Code code : {Code::kResourceExhausted, Code::kIo}) {
    SCOPED_TRACE(code_name(code));
    auto disk = std::make_shared<MemoryDisk>();
    auto store = open_memory(disk);
    ASSERT_OK(store);
    for (const char* id : {"a", "b", "c"}) ASSERT_OK(test::put_document(**store, id, {1}));
    const auto commit = [&] {
      return (*store)->commit_document(test::manifest_of("a", {1}), test::text_of("a")).status();
    };
    const auto remove = [&] { return (*store)->delete_document("default", "b"); };
    const auto update = [&] {
      const auto edit = [](DocumentManifest& m) {
        m.title = "new";
        return Status();
      };
      return (*store)->update_document("default", "c", edit).status();
    };
    if (code == Code::kIo) disk->full = Status::io("injected failure");
    disk->full_from = disk->writes.load();
    for (const Status& s : {commit(), remove(), update()}) EXPECT_EQ(s.code(), code);
    disk->undecided = true;
    for (const Status& s : {commit(), remove(), update()}) {
      EXPECT_EQ(s.code(), code) << s.to_string();
      EXPECT_EQ(s.message().find("disk is full") != std::string::npos,
                code == Code::kResourceExhausted)
          << s.message();
    }
    disk->full_from = -1;
    disk->undecided = false;
    for (const Status& s : {commit(), remove(), update()}) EXPECT_OK(s);
  }
}

TEST(StoreFaults, AFailedReadIsNoCorruption) {
  auto disk = std::make_shared<MemoryDisk>();
  StoreOptions options;
  options.dram_bytes = 0;
  auto store = open_memory(disk, options);
  ASSERT_OK(store);
  ASSERT_OK(test::put_document(**store, "a", {1}));
  auto handle = (*store)->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  disk->fail_at = disk->calls.load();
  EXPECT_EQ((*store)->read_value(*handle, 0, 0).code(), Code::kIo);
  EXPECT_OK((*store)->read_value(*handle, 0, 0));
  EXPECT_EQ((*store)->stats().io_errors, 1u);
  EXPECT_EQ((*store)->stats().segments_quarantined, 0u);
  handle.reset();
}

TEST(StoreFaults, ABadValueIsReportedOnceThenItsContextIsAMiss) {
  auto disk = std::make_shared<MemoryDisk>();
  StoreOptions options;
  options.dram_bytes = 0;
  auto store = open_memory(disk, options);
  ASSERT_OK(store);
  ASSERT_OK(test::put_document(**store, "a", {1}));
  {
    std::lock_guard lock(disk->mu);
    disk->segments.begin()->second.at({0, 1, 0})[500] ^= std::byte{4};
  }
  auto handle = (*store)->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  EXPECT_OK((*store)->read_value(*handle, 0, 0));
  EXPECT_EQ((*store)->read_value(*handle, 1, 0).code(), Code::kCorruption);
  EXPECT_FALSE((*store)->find_segment(test::key_of(1)));
  EXPECT_OK((*store)->read_value(*handle, 0, 0)) << "a reader may finish on the good values";
  handle.reset();
  ASSERT_OK((*store)->gc());
  EXPECT_EQ((*store)->stats().segment_bytes, 0u);
  EXPECT_EQ((*store)->stats().segments_quarantined, 1u);
  EXPECT_OK((*store)->get_document("default", "a")) << "the document stays";
  ASSERT_OK(test::put_segment(**store, 1));
}

TEST(StoreFaults, VerifyFindsBadValuesAndBadRecords) {
  auto disk = std::make_shared<MemoryDisk>();
  auto store = open_memory(disk);
  ASSERT_OK(store);
  for (std::uint64_t i = 0; i < 4; ++i)
    ASSERT_OK(test::put_document(**store, "d" + std::to_string(i), {i}));
  {
    std::lock_guard lock(disk->mu);
    disk->segments.rbegin()->second.begin()->second[40] ^= std::byte{1};
    auto& text = disk->records.at({Family::kCatalog, catalog_key(kTextKind, "default", "d1")});
    text[20] = static_cast<char>(text[20] ^ 1);
  }
  auto report = (*store)->verify();
  ASSERT_OK(report);
  EXPECT_EQ(report->bad_segments, 1u);
  EXPECT_GE(report->bad_documents, 1u);
  EXPECT_GE(report->problems.size(), 2u);
  EXPECT_EQ((*store)->get_text("default", "d1").code(), Code::kCorruption);
  EXPECT_OK((*store)->commit_document(test::manifest_of("d1", {1}), test::text_of("d1")))
      << "posting it again heals it";
  EXPECT_OK((*store)->get_text("default", "d1"));
  EXPECT_EQ((*store)->verify()->bad_segments, 0u);
}

TEST(StoreFaults, ADamagedDocumentRecordCanBeReplacedOrDeleted) {
  auto disk = std::make_shared<MemoryDisk>();
  auto store = open_memory(disk);
  ASSERT_OK(store);
  for (const char* id : {"a", "b"}) ASSERT_OK(test::put_document(**store, id, {1}));
  store->reset();
  for (const char* id : {"a", "b"})
    disk->records.at({Family::kCatalog, catalog_key(kHeadKind, "default", id)})[30] ^= 1;
  store = open_memory(disk);
  ASSERT_OK(store);
  EXPECT_EQ((*store)->get_document("default", "a").code(), Code::kCorruption);
  EXPECT_TRUE((*store)->list_documents("default", {})->documents.empty());
  EXPECT_OK(test::put_document(**store, "a", {1}));
  EXPECT_OK((*store)->get_document("default", "a"));
  EXPECT_OK((*store)->delete_document("default", "b"));
  EXPECT_EQ((*store)->get_document("default", "b").code(), Code::kNotFound);
}

TEST(StoreFaults, AFullDiskRefusesWritesAndKeepsReadsAndDeletes) {
  auto disk = std::make_shared<MemoryDisk>();
  auto store = open_memory(disk);
  ASSERT_OK(store);
  ASSERT_OK(test::put_document(**store, "a", {1}));
  disk->free = 1000;
  const Status s = test::put_document(**store, "b", {2});
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_NE(s.message().find("disk is full"), std::string::npos) << s.message();
  EXPECT_EQ((*store)->put_job("j", "x").code(), Code::kResourceExhausted);
  auto handle = (*store)->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  EXPECT_OK(test::check_segment(**store, *handle, 1));
  handle.reset();
  EXPECT_OK((*store)->get_document("default", "a"));
  EXPECT_OK((*store)->delete_document("default", "a"));
  disk->free = 1ull << 40;
  EXPECT_OK(test::put_document(**store, "b", {2}));
}

// The byte budget: kMinStoreBytes holds 11 segments of 8 MiB.
const SegmentShape kBig{{8, 1, 0}, 1 << 20};

class StoreBudget : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.max_bytes = kMinStoreBytes;
    options.disk_policy = StorePolicy::kLru;
    options.dram_bytes = 0;
    auto opened = open_memory(disk, options);
    ASSERT_OK(opened);
    store = std::move(*opened);
    for (std::uint64_t i = 0; i < 11; ++i) ASSERT_OK(put(i, i == 3));
    ASSERT_EQ(store->stats().segments, 11u);
  }
  Status put(std::uint64_t i, bool pinned = false) {
    return test::put_document(*store, "d" + std::to_string(i), {i}, kBig, pinned);
  }
  bool has(std::uint64_t i) { return store->find_segment(test::key_of(i)).has_value(); }

  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
  std::unique_ptr<Store> store;
};

TEST_F(StoreBudget, EvictsByPolicyButNeverWhatIsPinnedOrReadAndNeverADocument) {
  auto reading = store->find_segment(test::key_of(0));
  ASSERT_TRUE(has(1));  // counts as a use, so 2 is now the oldest
  for (std::uint64_t i = 11; i < 14; ++i) ASSERT_OK(put(i));
  EXPECT_TRUE(has(0)) << "is being read";
  EXPECT_TRUE(has(3)) << "its document is pinned";
  EXPECT_FALSE(has(2));
  EXPECT_FALSE(has(4));
  EXPECT_FALSE(has(5));
  EXPECT_TRUE(has(1));
  EXPECT_EQ(store->stats().segments_evicted_budget, 3u);
  EXPECT_LE(store->stats().disk.used_bytes, kMinStoreBytes);
  for (std::uint64_t i = 0; i < 14; ++i) {
    EXPECT_OK(store->get_document("default", "d" + std::to_string(i)));
    EXPECT_OK(store->get_text("default", "d" + std::to_string(i)));
  }
  EXPECT_OK(test::check_segment(*store, *reading, 0, kBig));
  reading.reset();
}

TEST_F(StoreBudget, PinsThatLeaveNoRoomAreReported) {
  std::vector<SegmentHandle> held;
  for (std::uint64_t i = 0; i < 11; ++i) held.push_back(*store->find_segment(test::key_of(i)));
  const Status s = put(20);
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_NE(s.message().find("disk.max_bytes"), std::string::npos) << s.message();
  EXPECT_EQ(store->stats().reserved_bytes, 0u);
  held.clear();
  EXPECT_OK(put(20));
}

TEST_F(StoreBudget, ReservationsCountBeforeAnythingIsWritten) {
  std::vector<std::unique_ptr<SegmentWriter>> writers;
  for (std::uint64_t i = 0; i < 10; ++i) {
    auto w = store->begin_segment(test::key_of(100 + i), kBig.layout, kBig.total(), "t", "f");
    ASSERT_OK(w);
    writers.push_back(std::move(*w));
  }
  EXPECT_EQ(store->stats().segments, 1u) << "only the pinned one is left";
  EXPECT_EQ(store->begin_segment(test::key_of(200), kBig.layout, kBig.total(), "t", "f").code(),
            Code::kResourceExhausted);
  writers.clear();
  EXPECT_EQ(store->stats().reserved_bytes, 0u);
  EXPECT_OK(put(200));
}

TEST_F(StoreBudget, TextsCountAndPushOutKv) {
  const std::string text(20 << 20, 'x');
  DocumentManifest m = test::manifest_of("big", {});
  ASSERT_OK(store->commit_document(m, text));
  EXPECT_LT(store->stats().segments, 9u);
  EXPECT_LE(store->stats().disk.used_bytes, kMinStoreBytes);
  m.id = "too-big";
  EXPECT_EQ(store->commit_document(m, std::string(60 << 20, 'x')).code(), Code::kResourceExhausted);
  EXPECT_EQ(store->get_document("default", "too-big").code(), Code::kNotFound);
}

TEST_F(StoreBudget, ASmallerBudgetAtOpenEvictsDownToIt) {
  store.reset();
  StoreOptions options;
  options.max_bytes = 0;
  options.dram_bytes = 0;
  auto opened = open_memory(disk, options);
  ASSERT_OK(opened);
  store = std::move(*opened);
  for (std::uint64_t i = 20; i < 25; ++i) ASSERT_OK(put(i));
  EXPECT_EQ(store->stats().segments, 16u);
  store.reset();
  options.max_bytes = kMinStoreBytes;
  opened = open_memory(disk, options);
  ASSERT_OK(opened);
  EXPECT_LE((*opened)->stats().disk.used_bytes, kMinStoreBytes);
  EXPECT_TRUE((*opened)->find_segment(test::key_of(3))) << "pinned";
  EXPECT_EQ((*opened)->list_documents("default", {.limit = 100})->documents.size(), 16u);
}

}  // namespace
}  // namespace quire
