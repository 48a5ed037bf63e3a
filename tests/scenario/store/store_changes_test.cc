// What readers find of a document while it is used, changed and replaced, and after a crash.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/format/catalog_keys.h"
#include "cachestore/pack/pack_transfer.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

using test::MemoryDisk;
using test::MemoryTier;

/// A tier in memory that tells which record it has just read, before the store gets it.
class WatchedTier final : public DiskTier {
 public:
  using OnRead = std::function<void(std::string_view key)>;
  WatchedTier(std::shared_ptr<MemoryDisk> disk, OnRead on_read)
      : tier_(std::move(disk)), on_read_(std::move(on_read)) {}

  Result<std::string> get(Family family, std::string_view key) override {
    auto found = tier_.get(family, key);
    if (family == Family::kCatalog) on_read_(key);
    return found;
  }
  Status write(std::span<const RecordWrite> writes, Sync sync) override {
    return tier_.write(writes, sync);
  }
  Status scan(Family family, std::string_view begin, std::string_view end, bool descending,
              const ScanFn& fn) override {
    return tier_.scan(family, begin, end, descending, fn);
  }
  Result<std::uint64_t> write_segment(SegmentId id, std::span<const Value> values) override {
    return tier_.write_segment(id, values);
  }
  Result<std::shared_ptr<ValueBuffer>> read(const record::ValueName& name) override {
    return tier_.read(name);
  }
  Status delete_segment(SegmentId id) override { return tier_.delete_segment(id); }
  Result<std::vector<StoredSegment>> list_segments() override { return tier_.list_segments(); }
  std::vector<SegmentId> segments_to_move(std::size_t at_most) override {
    return tier_.segments_to_move(at_most);
  }
  Result<std::uint64_t> move_segment(const SegmentInfo& info) override {
    return tier_.move_segment(info);
  }
  DiskUsage usage() override { return tier_.usage(); }
  std::uint64_t free_bytes() override { return tier_.free_bytes(); }
  Status flush_records() override { return tier_.flush_records(); }
  Status compact_records() override { return tier_.compact_records(); }

 private:
  MemoryTier tier_;
  const OnRead on_read_;
};

class StoreChanges : public ::testing::Test {
 protected:
  StoreChanges() { open(); }

  void open() {
    store_.reset();
    store_ = open_on(
        std::make_unique<WatchedTier>(disk_, [this](std::string_view key) { was_read(key); }));
  }
  std::unique_ptr<AdminStore> open_on(std::unique_ptr<DiskTier> tier) {
    StoreOptions options;
    options.clock_ms = [this] { return now_ms_; };
    auto opened = open_store_on(std::move(options), std::move(tier));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    return std::move(*opened);
  }
  /// Has `action` run once, right after the n-th read of a record of this kind.
  void after_read(char kind, int n, std::function<void()> action) {
    kind_ = kind;
    left_ = n;
    action_ = std::move(action);
  }
  void was_read(std::string_view key) {
    if (left_ == 0 || key.front() != kind_ || --left_ > 0) return;
    const auto action = std::exchange(action_, nullptr);
    action();
  }

  /// Returns the document "a", whose token ids begin with a hundred times `tokens`.
  static DocumentManifest document(const std::string& title, std::uint64_t tokens) {
    DocumentManifest m = test::manifest_of("a", {tokens});
    m.title = title;
    m.content_hash = "sha256:" + sha256(title).hex();
    return m;
  }
  Status commit(const std::string& title, std::uint64_t tokens) {
    return store_->commit_document(document(title, tokens), test::text_of(title)).status();
  }
  Status commit_with_ttl(std::uint64_t seconds) {
    DocumentManifest m = document("A", 1);
    m.ttl_seconds = seconds;
    m.ttl_anchor = TtlAnchor::kLastUsed;
    return store_->commit_document(m, test::text_of("A")).status();
  }
  /// Deletes the document and posts another one under its id, whose version is 1 again.
  void replace(const std::string& title, std::uint64_t tokens) {
    EXPECT_OK(store_->delete_document("default", "a"));
    now_ms_ += 1;
    EXPECT_OK(commit(title, tokens));
  }
  std::uint64_t hits() {
    const auto head = store_->get_document_head("default", "a");
    return head.ok() ? head->hits : 1'000'000;
  }
  DocumentManifest stored_head() {
    const std::lock_guard lock(disk_->mu);
    auto m = record::decode_head(
        disk_->records.at({Family::kCatalog, catalog_key(kHeadKind, "default", "a")}));
    QUIRE_CHECK(m.ok(), m.status().to_string());
    return std::move(*m);
  }
  std::vector<PackDocument> exported() {
    std::string pack;
    EXPECT_OK(export_documents(*store_, "default", {"a"}, {1, "m-test", "test"},
                               [&](std::string_view bytes) {
                                 pack += bytes;
                                 return true;
                               }));
    std::size_t at = 0;
    PackReader reader([&](std::span<char> out) -> Result<std::size_t> {
      const std::size_t n = std::min(out.size(), pack.size() - at);
      std::memcpy(out.data(), pack.data() + at, n);
      at += n;
      return n;
    });
    std::vector<PackDocument> documents;
    for (;;) {
      auto next = reader.next();
      EXPECT_OK(next);
      if (!next.ok() || !*next) return documents;
      if (auto* d = std::get_if<PackDocument>(&**next)) documents.push_back(std::move(*d));
    }
  }

  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  std::int64_t now_ms_ = 1'000'000;
  char kind_ = 0;
  int left_ = 0;
  std::function<void()> action_;
  std::unique_ptr<AdminStore> store_;
};

TEST_F(StoreChanges, ACrashDoesNotEndADocumentThatIsInUse) {
  ASSERT_OK(commit_with_ttl(100));
  now_ms_ += 3'000;
  store_->touch_document("default", "a");
  EXPECT_EQ(store_->expire(now_ms_).value_or(9), 0u);
  EXPECT_EQ(stored_head().hits, 0u) << "it moves the end by too little";
  now_ms_ += 57'000;
  store_->touch_document("default", "a");
  EXPECT_EQ(store_->expire(now_ms_).value_or(9), 0u);
  EXPECT_EQ(stored_head().last_used_ms, now_ms_);
  EXPECT_EQ(stored_head().hits, 2u);
  EXPECT_EQ(hits(), 2u);
  const auto after = std::make_shared<MemoryDisk>();
  {
    const std::lock_guard lock(disk_->mu);
    after->records = disk_->records;
  }
  now_ms_ += 60'000;
  const auto store = open_on(std::make_unique<MemoryTier>(after));
  EXPECT_EQ(store->expire(now_ms_).value_or(9), 0u);
  EXPECT_OK(store->get_text("default", "a"));
}

TEST_F(StoreChanges, UsesOfADocumentThatNeverEndsCostUpkeepNothing) {
  ASSERT_OK(commit("A", 1));
  store_->touch_document("default", "a");
  const std::uint64_t looked_at = disk_->looked_at.load();
  ASSERT_OK(store_->expire(now_ms_));
  EXPECT_EQ(disk_->looked_at.load(), looked_at);
  EXPECT_EQ(stored_head().hits, 0u);
}

TEST_F(StoreChanges, ADocumentInUseIsThereWhileItIsChangedAndUsesCountOnce) {
  ASSERT_OK(commit_with_ttl(10));
  now_ms_ += 9'000;
  store_->touch_document("default", "a");
  now_ms_ += 9'000;
  const auto changed = store_->update_document("default", "a", [&](DocumentManifest& m) {
    EXPECT_OK(store_->get_document("default", "a"));
    EXPECT_EQ(hits(), 1u);
    EXPECT_EQ(store_->list_documents("default", {})->documents.size(), 1u);
    store_->touch_document("default", "a");
    m.title = "B";
    return Status();
  });
  ASSERT_OK(changed);
  EXPECT_EQ(changed->hits, 1u);
  EXPECT_EQ(hits(), 2u) << "a use that came meanwhile stays";
  const auto refused = store_->update_document(
      "default", "a", [](DocumentManifest&) { return Status::invalid("title", "not this one"); });
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(hits(), 2u);
  disk_->fail_on = true;
  disk_->fail_at = disk_->calls + 1;  // the head can be read, and not be written
  EXPECT_FALSE(store_->flush().ok());
  disk_->fail_at = -1;
  EXPECT_EQ(hits(), 2u);
  ASSERT_OK(store_->flush());
  EXPECT_EQ(stored_head().hits, 2u);
  EXPECT_EQ(hits(), 2u);
  open();
  EXPECT_EQ(hits(), 2u);
}

/// A write that failed may be in the record once that is opened again.
TEST_F(StoreChanges, UsesOfAWriteThatWasMadeAfterAllCountOnce) {
  for (const std::size_t made : {0u, 1u, 2u}) {
    SCOPED_TRACE(std::to_string(made) + " of two failed writes are in the record");
    disk_ = std::make_shared<MemoryDisk>();
    open();
    ASSERT_OK(commit("A", 1));
    store_->touch_document("default", "a");
    ASSERT_OK(store_->flush());
    EXPECT_EQ(stored_head().hits, 1u);
    const auto fail_to_write = [&] {
      disk_->fail_on = true;
      disk_->fail_at = disk_->calls + 1;  // the head can be read, and not be written
      EXPECT_FALSE(store_->flush().ok());
      disk_->fail_at = -1;
    };
    for (int i = 0; i < 2; ++i) store_->touch_document("default", "a");
    fail_to_write();
    for (int i = 0; i < 3; ++i) store_->touch_document("default", "a");
    fail_to_write();
    {
      const std::lock_guard lock(disk_->mu);
      ASSERT_EQ(disk_->failed.size(), 2u);
      disk_->failed.resize(made);
    }
    disk_->make_failed();
    EXPECT_EQ(stored_head().hits, made == 0 ? 1u : made == 1 ? 3u : 6u);
    EXPECT_EQ(hits(), 6u);
    store_->touch_document("default", "a");
    EXPECT_EQ(hits(), 7u);
    ASSERT_OK(store_->flush());
    EXPECT_EQ(stored_head().hits, 7u);
    EXPECT_EQ(hits(), 7u);
  }
}

TEST_F(StoreChanges, AReaderThatIsOvertakenByAWriterSeesTheUse) {
  ASSERT_OK(commit_with_ttl(10));
  now_ms_ += 9'000;
  store_->touch_document("default", "a");
  now_ms_ += 9'000;
  after_read(kHeadKind, 1, [&] { EXPECT_OK(store_->flush()); });
  EXPECT_OK(store_->get_document_head("default", "a"));
  EXPECT_EQ(left_, 0);
}

TEST_F(StoreChanges, ADocumentThatIsPostedAnewIsNotMixedWithTheOneBefore) {
  ASSERT_OK(commit("A", 1));
  after_read(kHeadKind, 1, [&] { replace("B", 2); });
  const auto read = store_->get_document("default", "a");
  ASSERT_OK(read);
  EXPECT_EQ(read->version, 1u);
  EXPECT_EQ(read->title, "B");
  EXPECT_EQ(read->chunks.at(0).token_ids.at(0), 200);
}

TEST_F(StoreChanges, TheTextOfADocumentThatIsPostedAnewIsFound) {
  const std::string text = test::text_of("A");
  const NamedText waiting{"job/0", text};
  ASSERT_OK(store_->put_job_and_texts("input/a", "input", {&waiting, 1}));
  CommitOptions options;
  options.waiting_text = "job/0";
  ASSERT_OK(store_->commit_document(document("A", 1), std::nullopt, {}, options));
  after_read(kHeadKind, 1, [&] { replace("B", 2); });
  EXPECT_EQ(store_->get_text("default", "a").value_or("none"), test::text_of("B"));
}

TEST_F(StoreChanges, AnExportHasManifestAndTextOfOneVersion) {
  ASSERT_OK(commit("A", 1));
  // The export looks for the document, and reading it reads the head before and after its tokens.
  after_read(kHeadKind, 3, [&] { EXPECT_OK(commit("B", 2)); });
  auto documents = exported();
  EXPECT_EQ(left_, 0);
  ASSERT_EQ(documents.size(), 1u);
  EXPECT_EQ(documents[0].manifest.title, "B");
  EXPECT_EQ(documents[0].text, test::text_of("B"));
  after_read(kHeadKind, 3, [&] { replace("C", 3); });
  documents = exported();
  ASSERT_EQ(documents.size(), 1u);
  EXPECT_EQ(documents[0].manifest.title, "C");
  EXPECT_EQ(documents[0].text, test::text_of("C"));
}

TEST_F(StoreChanges, AnExportLeavesOutWhatChangesFasterThanItCanBeRead) {
  ASSERT_OK(commit("A", 1));
  const std::function<void()> change = [&] {
    EXPECT_OK(commit("B", 2));
    after_read(kTextKind, 1, change);
  };
  after_read(kTextKind, 1, change);
  EXPECT_TRUE(exported().empty());
}

}  // namespace
}  // namespace quire
