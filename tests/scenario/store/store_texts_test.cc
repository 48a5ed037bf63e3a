// Texts that are stored before their document: written once, taken by a commit, never lost and
// never left behind.
#include <gtest/gtest.h>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

class StoreTexts : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.path = "unused";
    options_.clock_ms = [this] { return now_ms_; };
    reopen();
  }
  void reopen() {
    store_.reset();
    auto opened = open_store_on(options_, std::make_unique<test::MemoryTier>(disk_));
    ASSERT_OK(opened);
    store_ = std::move(*opened);
  }
  static DocumentManifest document(const std::string& id) {
    DocumentManifest m = test::manifest_of(id, {1});
    m.chunks[0].key = {};
    m.chunks[0].byte_end = 5;
    return m;
  }
  void wait(const std::string& name, const std::string& text) {
    const NamedText one{name, text};
    ASSERT_OK(store_->put_job_and_texts("input/" + name, "input", {&one, 1}));
  }
  Result<DocumentManifest> take(const std::string& id, const std::string& name) {
    CommitOptions options;
    options.waiting_text = name;
    return store_->commit_document(document(id), std::nullopt, {}, options);
  }
  /// Returns how many records hold these bytes.
  int copies_of(const std::string& text) {
    std::lock_guard lock(disk_->mu);
    int copies = 0;
    for (const auto& [key, value] : disk_->records) copies += value.find(text) != value.npos;
    return copies;
  }

  std::shared_ptr<test::MemoryDisk> disk_ = std::make_shared<test::MemoryDisk>();
  std::int64_t now_ms_ = 1'000'000;
  StoreOptions options_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTexts, ACommitTakesTheTextWithoutWritingItAgain) {
  wait("job/0", "first text");
  EXPECT_EQ(*store_->get_waiting_text("job/0"), "first text");
  EXPECT_EQ(store_->list_waiting_texts()->size(), 1u);
  EXPECT_EQ(store_->get_text("default", "a").code(), Code::kNotFound);
  const auto stored = take("a", "job/0");
  ASSERT_OK(stored);
  EXPECT_EQ(stored->text_bytes, 10u);
  EXPECT_EQ(copies_of("first text"), 1);
  EXPECT_TRUE(store_->list_waiting_texts()->empty());
  // It is the document's now.
  ASSERT_OK(store_->delete_waiting_texts(std::vector<std::string>{"job/0"}));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(*store_->get_text("default", "a"), "first text");
    EXPECT_EQ(*store_->get_document("default", "a"), *stored);
    reopen();
  }
  // A commit that is repeated finds it there, and a commit without text keeps it.
  ASSERT_OK(take("a", "job/0"));
  ASSERT_OK(store_->commit_document(document("a"), std::nullopt));
  EXPECT_EQ(*store_->get_text("default", "a"), "first text");
  EXPECT_TRUE(store_->verify()->problems.empty());
  // Another document cannot have it, and unknown names are refused.
  EXPECT_EQ(take("b", "job/0").code(), Code::kFailedPrecondition);
  EXPECT_EQ(take("a", "job/1").code(), Code::kFailedPrecondition);
  CommitOptions both;
  both.waiting_text = "job/0";
  EXPECT_EQ(store_->commit_document(document("a"), "text", {}, both).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(*store_->get_text("default", "a"), "first text");
  ASSERT_OK(store_->delete_document("default", "a"));
  EXPECT_EQ(copies_of("first text"), 0);
}

TEST_F(StoreTexts, ADocumentWhoseTextIsGoneIsDamaged) {
  wait("job/0", "first text");
  ASSERT_OK(take("a", "job/0"));
  {
    std::lock_guard lock(disk_->mu);
    std::erase_if(disk_->records, [](const auto& record) {
      return record.second.find("first text") != std::string::npos;
    });
  }
  EXPECT_EQ(store_->get_text("default", "a").code(), Code::kCorruption);
  EXPECT_EQ(store_->get_text("default", "b").code(), Code::kNotFound);
  EXPECT_EQ(store_->verify()->bad_documents, 1u);
}

TEST_F(StoreTexts, TheTextOfAnEarlierVersionGoesWithIt) {
  wait("job/0", "first text");
  ASSERT_OK(take("a", "job/0"));
  wait("job/1", "second text");
  EXPECT_EQ(*store_->get_text("default", "a"), "first text");
  ASSERT_OK(take("a", "job/1"));
  EXPECT_EQ(copies_of("first text"), 0);
  EXPECT_EQ(*store_->get_text("default", "a"), "second text");
  ASSERT_OK(store_->commit_document(document("a"), "third text"));
  EXPECT_EQ(copies_of("second text"), 0);
  EXPECT_EQ(*store_->get_text("default", "a"), "third text");
  wait("job/2", "fourth text");
  ASSERT_OK(take("a", "job/2"));
  EXPECT_EQ(copies_of("third text"), 0);
  EXPECT_EQ(copies_of("fourth text"), 1);
  DocumentManifest m = document("b");
  m.ttl_seconds = 1;
  wait("job/3", "short-lived");
  CommitOptions options;
  options.waiting_text = "job/3";
  ASSERT_OK(store_->commit_document(m, std::nullopt, {}, options));
  now_ms_ += 2000;
  EXPECT_EQ(*store_->expire(now_ms_), 1u);
  EXPECT_EQ(copies_of("short-lived"), 0);
}

TEST_F(StoreTexts, TextsThatWaitAreListedAndDeleted) {
  for (int i = 0; i < 5; ++i) wait("job/" + std::to_string(i), "text " + std::to_string(i));
  EXPECT_EQ(*store_->list_waiting_texts("job/1", 2), (std::vector<std::string>{"job/2", "job/3"}));
  ASSERT_OK(store_->delete_waiting_texts(std::vector<std::string>{"job/0", "job/3", "job/9"}));
  EXPECT_EQ(*store_->list_waiting_texts(), (std::vector<std::string>{"job/1", "job/2", "job/4"}));
  EXPECT_EQ(store_->get_waiting_text("job/0").code(), Code::kNotFound);
  const NamedText bad{std::string("a\0b", 3), "text"};
  EXPECT_EQ(store_->put_job_and_texts("j", "v", {&bad, 1}).code(), Code::kInvalidArgument);
}

TEST_F(StoreTexts, AFailedWriteLosesNothing) {
  wait("job/0", "first text");
  ASSERT_OK(take("a", "job/0"));
  wait("job/1", "second text");
  // The n-th call of the disk fails: the document has either its first text or its second.
  for (int n = 0; n < 12; ++n) {
    disk_->calls = 0;
    disk_->fail_at = n;
    const bool taken = take("a", "job/1").ok();
    disk_->fail_at = -1;
    EXPECT_EQ(*store_->get_text("default", "a"), taken ? "second text" : "first text") << n;
    if (taken) return;
    EXPECT_EQ(store_->list_waiting_texts()->size(), 1u);
  }
  FAIL() << "the commit never succeeded";
}

TEST_F(StoreTexts, GcDeletesTheTextOfADamagedDocument) {
  wait("job/0", "first text");
  ASSERT_OK(take("a", "job/0"));
  wait("job/1", "kept text");
  ASSERT_OK(take("b", "job/1"));
  wait("job/2", "waiting text");
  {
    std::lock_guard lock(disk_->mu);
    disk_->records.at({Family::kCatalog, catalog_key(kHeadKind, "default", "a")})[30] ^= 1;
  }
  ASSERT_OK(store_->gc());  // the damaged document may be restored by hand
  EXPECT_EQ(copies_of("first text"), 1);
  ASSERT_OK(store_->commit_document(document("a"), "new text"));
  ASSERT_OK(store_->gc());
  EXPECT_EQ(copies_of("first text"), 0);
  EXPECT_EQ(*store_->get_text("default", "b"), "kept text");
  EXPECT_EQ(*store_->get_waiting_text("job/2"), "waiting text");
}

}  // namespace
}  // namespace quire
