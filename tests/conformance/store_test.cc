// The store's contract, over RocksDB and over a disk tier in memory.
#include "cachestore/store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <thread>

#include "cachestore/format/value_buffer.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

using test::SegmentShape;

enum class Kind { kRocksDb, kMemory };

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    options.path = folder.path();
    options.dram_bytes = 1 << 20;
    options.clock_ms = [this] { return now_ms.load(); };
    reopen();
  }
  void reopen() {
    store.reset();
    auto opened = GetParam() == Kind::kRocksDb
                      ? open_admin_store(options)
                      : open_store_on(options, std::make_unique<test::MemoryTier>(disk));
    ASSERT_OK(opened);
    store = std::move(*opened);
  }

  test::TempFolder folder;
  std::shared_ptr<test::MemoryDisk> disk = std::make_shared<test::MemoryDisk>();
  std::atomic<std::int64_t> now_ms{1'000'000};
  StoreOptions options;
  std::unique_ptr<Store> store;
};

TEST_P(StoreTest, ADocumentComesBackWholeAlsoAfterARestart) {
  auto stored = store->commit_document(test::manifest_of("a", {1, 2}), test::text_of("a"));
  ASSERT_OK(stored);
  EXPECT_EQ(stored->version, 1u);
  EXPECT_EQ(stored->num_tokens, 40u);
  EXPECT_EQ(stored->created_ms, 1'000'000);
  for (int round = 0; round < 2; ++round) {
    auto m = store->get_document("default", "a");
    ASSERT_OK(m);
    EXPECT_EQ(*m, *stored);
    EXPECT_EQ(*store->get_text("default", "a"), test::text_of("a"));
    auto head = store->get_document_head("default", "a");
    ASSERT_OK(head);
    EXPECT_TRUE(head->chunks[0].token_ids.empty());
    EXPECT_EQ(head->chunks[0].num_tokens, 20u);
    reopen();
  }
  EXPECT_EQ(store->get_document("default", "b").code(), Code::kNotFound);
  EXPECT_EQ(store->get_document("other", "a").code(), Code::kNotFound);
  EXPECT_EQ(store->get_text("default", "b").code(), Code::kNotFound);
}

TEST_P(StoreTest, CommittingAgainMakesANewVersionAndKeepsTheTextIfNoneIsGiven) {
  ASSERT_OK(store->commit_document(test::manifest_of("a", {1}),
                                   "old text, 90 bytes long or so: " + std::string(60, '.')));
  now_ms += 500;
  auto second = store->commit_document(test::manifest_of("a", {1, 2}), std::nullopt);
  ASSERT_OK(second);
  EXPECT_EQ(second->version, 2u);
  EXPECT_EQ(second->created_ms, 1'000'000);
  EXPECT_EQ(second->updated_ms, 1'000'500);
  EXPECT_EQ(store->get_text("default", "a")->substr(0, 8), "old text");
  EXPECT_EQ(store->commit_document(test::manifest_of("new", {1}), std::nullopt).code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(
      store->commit_document(test::manifest_of("a", {1}), std::nullopt, {}, {.expected_version = 1})
          .code(),
      Code::kFailedPrecondition);
  EXPECT_EQ(
      store->commit_document(test::manifest_of("a", {1}), std::nullopt, {}, {.expected_version = 0})
          .code(),
      Code::kFailedPrecondition);
  EXPECT_OK(store->commit_document(test::manifest_of("a", {1}), std::nullopt, {},
                                   {.expected_version = 2}));
  EXPECT_OK(store->commit_document(test::manifest_of("new", {1}), test::text_of("new"), {},
                                   {.expected_version = 0}));
}

TEST_P(StoreTest, BadManifestsAreRefusedAndChangeNothing) {
  DocumentManifest m = test::manifest_of("a", {1});
  m.id.clear();
  EXPECT_EQ(store->commit_document(m, "x").status().field(), "id");
  m = test::manifest_of("a", {1});
  EXPECT_EQ(store->commit_document(m, "short").status().field(), "chunks[0]");
  EXPECT_TRUE(store->namespaces().empty());
}

TEST_P(StoreTest, UpdatesChangeSettingsOnly) {
  ASSERT_OK(store->commit_document(test::manifest_of("a", {1}), test::text_of("a")));
  now_ms += 5;
  auto edited = store->update_document("default", "a", [](DocumentManifest& m) {
    m.title = "New";
    m.pinned = true;
    m.chunks.clear();
    m.id = "hijack";
    return Status();
  });
  ASSERT_OK(edited);
  EXPECT_EQ(edited->id, "a");
  EXPECT_EQ(edited->title, "New");
  EXPECT_EQ(edited->version, 2u);
  auto back = store->get_document("default", "a");
  ASSERT_OK(back);
  EXPECT_EQ(back->chunks.size(), 1u);
  EXPECT_EQ(back->chunks[0].token_ids.size(), 20u);
  EXPECT_TRUE(back->pinned);
  EXPECT_EQ(store->update_document("default", "a", [](auto&) { return Status::invalid("x", "no"); })
                .status()
                .field(),
            "x");
  EXPECT_EQ(store->update_document("default", "zz", [](auto&) { return Status(); }).code(),
            Code::kNotFound);
  EXPECT_EQ(
      store
          ->update_document("default", "a", [](auto&) { return Status(); }, {.expected_version = 1})
          .code(),
      Code::kFailedPrecondition);
  EXPECT_EQ(store->get_document_head("default", "a")->version, 2u);
}

TEST_P(StoreTest, ListsPageInBothOrdersAndFilter) {
  for (int i = 0; i < 25; ++i) {
    const std::string id = std::string("d") + static_cast<char>('a' + i);
    DocumentManifest m = test::manifest_of(id, {1});
    m.title = i % 2 ? "odd" : "even";
    ASSERT_OK(store->commit_document(m, test::text_of(id)));
  }
  DocumentManifest other = test::manifest_of("d", {1});
  other.ns = "defaulu";
  ASSERT_OK(store->commit_document(other, test::text_of("d")));
  for (bool descending : {false, true}) {
    std::string after, seen;
    for (int page = 0; page < 4; ++page) {
      auto list = store->list_documents("default",
                                        {.after = after, .limit = 10, .descending = descending});
      ASSERT_OK(list);
      for (const auto& m : list->documents) seen += m.id.back();
      EXPECT_EQ(list->has_more, page < 2);
      if (!list->has_more) break;
      after = list->documents.back().id;
    }
    std::string want = "abcdefghijklmnopqrstuvwxy";
    if (descending) std::reverse(want.begin(), want.end());
    EXPECT_EQ(seen, want);
  }
  auto odd = store->list_documents(
      "default", {.limit = 12, .filter = [](const auto& m) { return m.title == "odd"; }});
  ASSERT_OK(odd);
  EXPECT_EQ(odd->documents.size(), 12u);
  EXPECT_FALSE(odd->has_more) << "no other one passes the filter";
  EXPECT_EQ(store->list_documents("nobody", {})->documents.size(), 0u);
  const auto spaces = store->namespaces();
  ASSERT_EQ(spaces.size(), 2u);
  EXPECT_EQ(spaces[0].name, "default");
  EXPECT_EQ(spaces[0].documents, 25u);
  EXPECT_EQ(spaces[0].tokens, 500u);
}

TEST_P(StoreTest, UsesAreCountedAndSurviveARestart) {
  ASSERT_OK(store->commit_document(test::manifest_of("a", {1}), test::text_of("a")));
  now_ms = 2'000'000;
  for (int i = 0; i < 3; ++i) store->touch_document("default", "a");
  store->touch_document("default", "unknown");
  EXPECT_EQ(store->get_document_head("default", "a")->hits, 3u);
  EXPECT_EQ(store->list_documents("default", {})->documents[0].last_used_ms, 2'000'000);
  ASSERT_OK(store->flush());
  store->touch_document("default", "a");
  reopen();
  EXPECT_EQ(store->get_document("default", "a")->hits, 4u);
  auto again = store->commit_document(test::manifest_of("a", {1}), std::nullopt);
  ASSERT_OK(again);
  EXPECT_EQ(again->hits, 4u);
}

TEST_P(StoreTest, ExpiredDocumentsAreGoneAtOnceAndFreedByExpire) {
  DocumentManifest m = test::manifest_of("a", {1});
  m.ttl_seconds = 10;
  ASSERT_OK(test::put_segment(*store, 1));
  ASSERT_OK(store->commit_document(m, test::text_of("a")));
  m.id = "b";
  m.ttl_anchor = TtlAnchor::kLastUsed;
  ASSERT_OK(store->commit_document(m, test::text_of("b")));
  now_ms += 9'000;
  store->touch_document("default", "b");
  EXPECT_EQ(*store->expire(now_ms), 0u);
  now_ms += 1'000;
  EXPECT_EQ(store->get_document("default", "a").code(), Code::kNotFound);
  EXPECT_EQ(store->get_text("default", "a").code(), Code::kNotFound);
  EXPECT_EQ(store->list_documents("default", {})->documents.size(), 1u);
  EXPECT_EQ(*store->expire(now_ms), 1u);
  EXPECT_OK(store->get_document("default", "b"));
  now_ms += 9'000;
  EXPECT_EQ(*store->expire(now_ms), 1u);
  EXPECT_TRUE(store->namespaces().empty());
  EXPECT_EQ(store->stats().documents_expired, 2u);
}

TEST_P(StoreTest, ASegmentIsFoundReadAndKeptByItsDocument) {
  const SegmentShape shape{{5, 3, 2}, 3000};
  auto handle = test::put_segment(*store, 1, shape);
  ASSERT_OK(handle);
  EXPECT_EQ((*handle)->layout, shape.layout);
  EXPECT_GT((*handle)->disk_bytes, 5u * 3 * 3000);
  ASSERT_OK(store->commit_document(test::manifest_of("a", {1}), test::text_of("a"),
                                   std::span(&*handle, 1)));
  EXPECT_OK(test::check_segment(*store, *handle, 1, shape));
  Tier tier = Tier::kNone;
  ASSERT_OK(store->read_value(*handle, 0, 0, &tier));
  EXPECT_EQ(tier, Tier::kDram) << "written through";
  *handle = {};
  reopen();
  auto found = store->find_segment(test::key_of(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(store->tier_of(*found, 4, 2), Tier::kDisk);
  ASSERT_OK(store->read_value(*found, 4, 2, &tier));
  EXPECT_EQ(tier, Tier::kDisk);
  EXPECT_EQ(store->tier_of(*found, 4, 2), Tier::kDram);
  EXPECT_OK(test::check_segment(*store, *found, 1, shape));
  EXPECT_FALSE(store->find_segment(test::key_of(2)));
  EXPECT_EQ(store->read_value(*found, 5, 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(store->read_value(*found, 0, 3).code(), Code::kInvalidArgument);
  EXPECT_EQ(store->read_sketch(*found, 2).code(), Code::kInvalidArgument);
  EXPECT_EQ(store->read_value({}, 0, 0).code(), Code::kInvalidArgument);
  const auto stats = store->stats();
  EXPECT_EQ(stats.segments, 1u);
  EXPECT_EQ(stats.segment_misses, 1u);
  found.reset();
}

TEST_P(StoreTest, ValuesOfAllSizesComeBackAligned) {
  options.dram_bytes = 0;
  reopen();
  std::uint64_t key = 0;
  for (std::size_t bytes :
       {1u, 31u, 4000u, 4064u, 4065u, 4100u, 16300u, 16352u, 65537u, 2097100u}) {
    const SegmentShape shape{{2, 3, 1}, bytes};  // value lengths vary a little around `bytes`
    ASSERT_OK(test::put_document(*store, "d" + std::to_string(key), {key}, shape));
    auto handle = store->find_segment(test::key_of(key));
    ASSERT_TRUE(handle);
    EXPECT_OK(test::check_segment(*store, *handle, key, shape));
    handle.reset();
    ++key;
  }
  reopen();
  EXPECT_TRUE(store->verify()->complete);
  EXPECT_EQ(store->verify()->bad_segments, 0u);
}

TEST_P(StoreTest, AWriterChecksWhatItIsGiven) {
  const SegmentLayout layout{2, 1, 1};
  EXPECT_EQ(store->begin_segment(test::key_of(1), {0, 1, 0}, 10, "t", "f").code(),
            Code::kInvalidArgument);
  EXPECT_EQ(store->begin_segment(test::key_of(1), {1u << 24, 4096, 0}, 10, "t", "f").code(),
            Code::kInvalidArgument);
  EXPECT_EQ(store->begin_segment({}, layout, 10, "t", "f").code(), Code::kInvalidArgument);
  auto w = store->begin_segment(test::key_of(1), layout, 200, "t", "f");
  ASSERT_OK(w);
  const auto bytes = test::random_bytes(100, 1);
  EXPECT_EQ((*w)->put_value(2, 0, bytes).code(), Code::kInvalidArgument);
  EXPECT_EQ((*w)->put_value(0, 1, bytes).code(), Code::kInvalidArgument);
  EXPECT_EQ((*w)->put_value(0, 0, {}).code(), Code::kInvalidArgument);
  EXPECT_OK((*w)->put_value(1, 0, bytes));
  EXPECT_EQ((*w)->put_value(1, 0, bytes).code(), Code::kInvalidArgument);
  EXPECT_OK((*w)->put_sketch(0, std::span(bytes).first(50)));
  EXPECT_EQ((*w)->put_value(0, 0, bytes).code(), Code::kResourceExhausted)
      << "more than expected_bytes";
  EXPECT_EQ((*w)->finish().code(), Code::kFailedPrecondition) << "a value is missing";
  EXPECT_OK((*w)->put_value(0, 0, std::span(bytes).first(50)));
  EXPECT_OK((*w)->finish());
  EXPECT_EQ((*w)->finish().code(), Code::kFailedPrecondition);
}

TEST_P(StoreTest, ATakenValueIsTheDramTiersCopy) {
  auto w = store->begin_segment(test::key_of(1), {2, 1, 0}, 200, "t", "f");
  ASSERT_OK(w);
  const auto bytes = test::random_bytes(100, 1);
  const auto value = [&] {
    auto buffer = std::make_shared<ValueBuffer>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), buffer->payload().begin());
    return buffer;
  };
  const auto kept = value();
  EXPECT_EQ((*w)->take_value(2, 0, value()).code(), Code::kInvalidArgument);
  EXPECT_EQ((*w)->take_value(0, 0, nullptr).code(), Code::kInvalidArgument);
  EXPECT_OK((*w)->take_value(0, 0, kept));
  EXPECT_EQ((*w)->take_value(0, 0, value()).code(), Code::kInvalidArgument) << "put already";
  EXPECT_EQ((*w)->take_value(1, 0, std::make_shared<ValueBuffer>(101)).code(),
            Code::kResourceExhausted);
  EXPECT_OK((*w)->put_value(1, 0, bytes));
  auto segment = (*w)->finish();
  ASSERT_OK(segment);
  for (std::uint32_t block : {0u, 1u}) {
    auto read = store->read_value(*segment, block, 0);
    ASSERT_OK(read);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), read->bytes().begin(), read->bytes().end()));
    if (block == 0 && store->options().dram_bytes > 0) {
      EXPECT_EQ(read->data(), kept->payload().data());
    }
  }
}

TEST_P(StoreTest, TwoWritersOfOneKey) {
  const SegmentShape shape;
  auto first = store->begin_segment(test::key_of(1), shape.layout, shape.total(), "t", "f");
  ASSERT_OK(first);
  EXPECT_EQ(store->begin_segment(test::key_of(1), shape.layout, shape.total(), "t", "f").code(),
            Code::kUnavailable);
  EXPECT_FALSE(store->find_segment(test::key_of(1))) << "nothing is visible before finish()";
  first->reset();  // abandons the segment
  auto handle = test::put_segment(*store, 1);
  ASSERT_OK(handle);
  EXPECT_EQ(store->begin_segment(test::key_of(1), shape.layout, shape.total(), "t", "f").code(),
            Code::kAlreadyExists);
  EXPECT_EQ(store->stats().reserved_bytes, 0u);
}

TEST_P(StoreTest, AnUncommittedSegmentGoesWithItsLastHandleAndOverARestart) {
  ASSERT_OK(test::put_segment(*store, 1));
  EXPECT_FALSE(store->find_segment(test::key_of(1)));
  ASSERT_OK(store->gc());
  EXPECT_EQ(store->stats().segment_bytes, 0u);
  {
    auto handle = test::put_segment(*store, 2);
    ASSERT_OK(handle);
    EXPECT_EQ(*store->commit_segments(std::span(&*handle, 1)), 0u) << "no document names it";
    EXPECT_TRUE(store->find_segment(test::key_of(2)));
  }
  reopen();
  EXPECT_FALSE(store->find_segment(test::key_of(2)));
  EXPECT_EQ(store->stats().segment_bytes, 0u);
}

TEST_P(StoreTest, ADocumentOfAnotherVersionIsNotDeleted) {
  const auto first = store->commit_document(test::manifest_of("a", {1}), test::text_of("a"));
  ASSERT_OK(first);
  CommitOptions expecting;
  expecting.expected_version = first->version;
  ASSERT_OK(store->update_document("default", "a", [](DocumentManifest& m) {
    m.pinned = true;
    return Status();
  }));
  EXPECT_EQ(store->delete_document("default", "a", expecting).code(), Code::kFailedPrecondition);
  ASSERT_OK(store->get_document_head("default", "a"));
  expecting.expected_version = first->version + 1;
  ASSERT_OK(store->delete_document("default", "a", expecting));
  EXPECT_EQ(store->get_document_head("default", "a").code(), Code::kNotFound);
  EXPECT_EQ(store->delete_document("default", "a", expecting).code(), Code::kNotFound);
}

TEST_P(StoreTest, IdenticalContextsShareOneSegment) {
  ASSERT_OK(test::put_document(*store, "a", {1, 2}));
  ASSERT_OK(test::put_document(*store, "b", {2, 3, 2}));
  EXPECT_EQ(store->stats().segments, 3u);
  ASSERT_OK(store->delete_document("default", "a"));
  EXPECT_FALSE(store->find_segment(test::key_of(1)));
  EXPECT_TRUE(store->find_segment(test::key_of(2)));
  reopen();
  EXPECT_TRUE(store->find_segment(test::key_of(2)));
  EXPECT_EQ(store->stats().segments, 2u);
  ASSERT_OK(store->commit_document(test::manifest_of("b", {3}), std::nullopt));
  EXPECT_FALSE(store->find_segment(test::key_of(2)));
  ASSERT_OK(store->delete_document("default", "b"));
  EXPECT_EQ(store->delete_document("default", "b").code(), Code::kNotFound);
  ASSERT_OK(store->gc());
  EXPECT_EQ(store->stats().segment_bytes, 0u);
  EXPECT_EQ(store->stats().segments_freed_delete, 2u) << "since the restart";
}

TEST_P(StoreTest, ReadersFinishOnAReplacedOrDeletedDocument) {
  ASSERT_OK(test::put_document(*store, "a", {1}));
  auto reading = store->find_segment(test::key_of(1));
  ASSERT_TRUE(reading);
  ASSERT_OK(store->delete_document("default", "a"));
  ASSERT_OK(store->gc());
  EXPECT_OK(test::check_segment(*store, *reading, 1));
  const PinnedBytes held = *store->read_value(*reading, 0, 0);
  reading.reset();
  ASSERT_OK(store->gc());
  EXPECT_TRUE(test::same(held.bytes(), test::value_of(1, 0, 0, SegmentShape().value_bytes)))
      << "pinned bytes outlive the segment";
  EXPECT_FALSE(store->find_segment(test::key_of(1)));
  EXPECT_EQ(store->stats().segment_bytes, 0u);
}

TEST_P(StoreTest, RecomputedSegmentsOfKnownDocumentsAreKept) {
  // The document's KV is not stored.
  ASSERT_OK(store->commit_document(test::manifest_of("a", {1}), test::text_of("a")));
  {
    auto handle = test::put_segment(*store, 1);
    ASSERT_OK(handle);
    EXPECT_EQ(*store->commit_segments(std::span(&*handle, 1)), 1u);
    EXPECT_EQ(*store->commit_segments(std::span(&*handle, 1)), 1u) << "idempotent";
  }
  reopen();
  auto found = store->find_segment(test::key_of(1));
  ASSERT_TRUE(found);
  EXPECT_OK(test::check_segment(*store, *found, 1));
  found.reset();
}

TEST_P(StoreTest, CompanionsAreKeptWithTheirDocumentAndGoWithIt) {
  const auto stored = store->commit_document(test::manifest_of("a", {1}), test::text_of("a"));
  ASSERT_OK(stored);
  const std::vector<ContextKey> named = {test::key_of(2), ContextKey(), test::key_of(1),
                                         test::key_of(2)};
  DocumentManifest other = *stored;
  other.id = "b";
  EXPECT_EQ(store->add_companions(other, named).code(), Code::kNotFound);
  other = *stored;
  ++other.version;
  EXPECT_EQ(store->add_companions(other, named).code(), Code::kFailedPrecondition);
  ASSERT_OK(store->add_companions(*stored, named));
  const auto now = store->get_document("default", "a");
  ASSERT_OK(now);
  EXPECT_EQ(now->companions, std::vector<ContextKey>{test::key_of(2)})
      << "neither a zero key, nor one that a chunk has, nor one twice";
  EXPECT_EQ(now->version, stored->version) << "no condition of a client fails by it";
  EXPECT_EQ(now->updated_ms, stored->updated_ms);
  {
    auto handle = test::put_segment(*store, 2);
    ASSERT_OK(handle);
    EXPECT_EQ(*store->commit_segments(std::span(&*handle, 1)), 1u);
  }
  reopen();
  EXPECT_TRUE(store->find_segment(test::key_of(2)));
  // Naming it once more leaves one reference, which a change of the document keeps.
  ASSERT_OK(store->add_companions(*stored, named));
  ASSERT_OK(store->update_document("default", "a", [](DocumentManifest& m) {
    m.title = "other";
    return Status();
  }));
  EXPECT_TRUE(store->find_segment(test::key_of(2)));
  ASSERT_OK(store->delete_document("default", "a"));
  ASSERT_OK(store->gc());
  EXPECT_FALSE(store->find_segment(test::key_of(2)));
  EXPECT_EQ(store->stats().segment_bytes, 0u);
}

TEST_P(StoreTest, ANewVersionOfADocumentLeavesItsCompanionsBehind) {
  const auto stored = store->commit_document(test::manifest_of("a", {1}), test::text_of("a"));
  ASSERT_OK(stored);
  const ContextKey companion = test::key_of(2);
  ASSERT_OK(store->add_companions(*stored, std::span(&companion, 1)));
  {
    auto handle = test::put_segment(*store, 2);
    ASSERT_OK(handle);
    EXPECT_EQ(*store->commit_segments(std::span(&*handle, 1)), 1u);
  }
  ASSERT_OK(store->commit_document(test::manifest_of("a", {3}), test::text_of("b")));
  ASSERT_OK(store->gc());
  EXPECT_FALSE(store->find_segment(test::key_of(2)));
  EXPECT_TRUE(store->get_document_head("default", "a")->companions.empty());
}

TEST_P(StoreTest, ADocumentPostedAnewTakesNoCompanionsOfTheDeletedOne) {
  DocumentManifest manifest = test::manifest_of("a", {1});
  manifest.content_hash = "sha256:old";
  const auto old = store->commit_document(manifest, test::text_of("a"));
  ASSERT_OK(old);
  ASSERT_OK(store->delete_document("default", "a"));
  manifest.content_hash = "sha256:new";
  const auto anew = store->commit_document(manifest, test::text_of("b"));
  ASSERT_OK(anew);
  ASSERT_EQ(anew->version, old->version);
  const ContextKey companion = test::key_of(2);
  EXPECT_EQ(store->add_companions(*old, std::span(&companion, 1)).code(),
            Code::kFailedPrecondition);
  EXPECT_OK(store->add_companions(*anew, std::span(&companion, 1)));
}

TEST_P(StoreTest, ADiscardedSegmentIsAMissUntilItIsWrittenAgain) {
  ASSERT_OK(test::put_document(*store, "a", {1, 2}));
  const std::uint64_t before = store->stats().segment_bytes;
  auto reading = store->find_segment(test::key_of(1));
  ASSERT_TRUE(reading);
  ASSERT_OK(store->discard_segment(*reading));
  ASSERT_OK(store->discard_segment(*reading));
  EXPECT_FALSE(store->find_segment(test::key_of(1)));
  EXPECT_OK(test::check_segment(*store, *reading, 1)) << "handles keep reading";
  auto again = test::put_segment(*store, 1);
  ASSERT_OK(again);
  auto kept = store->commit_segments(std::span(&*again, 1));
  ASSERT_OK(kept);
  EXPECT_EQ(*kept, 1u);
  again = SegmentHandle();
  reading.reset();
  ASSERT_OK(store->gc());
  EXPECT_EQ(store->stats().segment_bytes, before) << "the old files are gone";
  EXPECT_EQ(store->stats().segments_quarantined, 0u);
  reopen();
  auto found = store->find_segment(test::key_of(1));
  ASSERT_TRUE(found);
  EXPECT_OK(test::check_segment(*store, *found, 1));
  EXPECT_OK(store->get_document("default", "a"));
}

TEST_P(StoreTest, FetchAsyncAnswersEachRequestOnceAndNamesTheTier) {
  const SegmentShape shape{{20, 2, 0}, 500};
  ASSERT_OK(test::put_document(*store, "a", {1}, shape));
  reopen();
  auto handle = store->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  ASSERT_OK(store->read_value(*handle, 3, 1));
  std::vector<ReadRequest> requests;
  for (std::uint32_t b = 0; b < 20; ++b) requests.push_back({*handle, b, 1});
  std::mutex mu;
  std::condition_variable done;
  std::vector<int> answers(20, 0);
  int left = 20, dram = 0, wrong = 0;
  ASSERT_OK(store->fetch_async(requests, [&](std::size_t i, Result<PinnedBytes> bytes, Tier tier) {
    const bool right = bytes.ok() &&
                       test::same(bytes->bytes(), test::value_of(1, static_cast<std::uint32_t>(i),
                                                                 1, shape.value_bytes));
    std::lock_guard lock(mu);
    ++answers[i];
    dram += tier == Tier::kDram;
    wrong += !right;
    if (--left == 0) done.notify_one();
  }));
  std::unique_lock lock(mu);
  done.wait(lock, [&] { return left == 0; });
  EXPECT_EQ(answers, std::vector<int>(20, 1));
  EXPECT_EQ(dram, 1);
  EXPECT_EQ(wrong, 0);
  lock.unlock();
  EXPECT_EQ(store->fetch_async({{*handle, 20, 0}}, [](auto, auto, auto) { FAIL(); }).code(),
            Code::kInvalidArgument);
  handle.reset();
  requests.clear();
}

TEST_P(StoreTest, FetchAsyncReadsSketchesBesideValues) {
  const SegmentShape shape{{3, 2, 2}, 500};
  ASSERT_OK(test::put_document(*store, "a", {1}, shape));
  reopen();
  auto handle = store->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  const auto fetch = [&](std::vector<ReadRequest> requests) {
    std::vector<std::pair<Result<PinnedBytes>, Tier>> answers(
        requests.size(), {Status::internal("no answer"), Tier::kNone});
    std::mutex mu;
    std::condition_variable done;
    std::size_t left = requests.size();
    EXPECT_OK(store->fetch_async(std::move(requests),
                                 [&](std::size_t i, Result<PinnedBytes> bytes, Tier tier) {
                                   std::lock_guard lock(mu);
                                   answers[i] = {std::move(bytes), tier};
                                   if (--left == 0) done.notify_one();
                                 }));
    std::unique_lock lock(mu);
    done.wait(lock, [&] { return left == 0; });
    return answers;
  };
  for (const Tier tier : {Tier::kDisk, Tier::kDram}) {
    auto answers = fetch(
        {{*handle, 1, 0, ReadKind::kSketch}, {*handle, 2, 1}, {*handle, 0, 0, ReadKind::kSketch}});
    ASSERT_OK(answers[0].first);
    EXPECT_TRUE(test::same(answers[0].first->bytes(), test::sketch_of(1, 1, shape.value_bytes)));
    EXPECT_TRUE(test::same(answers[1].first->bytes(), test::value_of(1, 2, 1, shape.value_bytes)));
    EXPECT_TRUE(test::same(answers[2].first->bytes(), test::sketch_of(1, 0, shape.value_bytes)));
    for (const auto& a : answers) EXPECT_EQ(a.second, tier);
  }
  for (const ReadRequest& bad : {ReadRequest{*handle, 2, 0, ReadKind::kSketch},
                                 ReadRequest{*handle, 0, 1, ReadKind::kSketch}}) {
    EXPECT_EQ(store->fetch_async({bad}, [](auto, auto, auto) { FAIL(); }).code(),
              Code::kInvalidArgument);
  }
  if (GetParam() == Kind::kMemory) {
    handle.reset();
    reopen();
    handle = store->find_segment(test::key_of(1));
    {
      std::lock_guard lock(disk->mu);
      disk->segments[handle->info().id]
          .at({static_cast<int>(record::Part::kSketch), 0, 0})
          .back() ^= std::byte{4};
    }
    EXPECT_EQ(fetch({{*handle, 0, 0, ReadKind::kSketch}})[0].first.code(), Code::kCorruption);
    EXPECT_EQ(store->stats().integrity_failures, 1u);
    EXPECT_FALSE(store->find_segment(test::key_of(1)).has_value());
  }
  handle.reset();
}

TEST_P(StoreTest, FetchAsyncCanBeStoppedAndItsQueueIsBounded) {
  options.io_threads = 1;
  options.max_queued_reads = 8;
  options.dram_bytes = 0;
  const SegmentShape shape{{10, 1, 0}, 500};
  ASSERT_OK(test::put_document(*store, "a", {1}, shape));
  reopen();
  auto handle = store->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  std::vector<ReadRequest> nine(9, {*handle, 0, 0});
  EXPECT_EQ(store->fetch_async(nine, [](auto, auto, auto) { FAIL(); }).code(),
            Code::kResourceExhausted);
  nine.clear();
  std::stop_source stop;
  stop.request_stop();
  std::mutex mu;
  std::condition_variable done;
  int cancelled = 0;
  std::vector<ReadRequest> eight(8, {*handle, 0, 0});
  ASSERT_OK(store->fetch_async(
      std::move(eight),
      [&](std::size_t, Result<PinnedBytes> r, Tier tier) {
        std::lock_guard lock(mu);
        EXPECT_EQ(tier, Tier::kNone);
        cancelled += r.code() == Code::kCancelled;
        done.notify_one();
      },
      stop.get_token()));
  std::unique_lock lock(mu);
  done.wait(lock, [&] { return cancelled == 8; });
  handle.reset();
}

TEST_P(StoreTest, WithoutADramTierReadsStillWork) {
  options.dram_bytes = 0;
  reopen();
  ASSERT_OK(test::put_document(*store, "a", {1}));
  auto handle = store->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  EXPECT_OK(test::check_segment(*store, *handle, 1));
  EXPECT_EQ(store->stats().dram.used_bytes, 0u);
  EXPECT_GT(store->stats().dram_unpooled_bytes, 0u);
  handle.reset();
}

TEST_P(StoreTest, JobsAndMetaRecords) {
  EXPECT_EQ(store->get_job("j1").code(), Code::kNotFound);
  for (const char* name : {"j2", "j1", "j3"})
    ASSERT_OK(store->put_job(name, std::string("value of ") + name));
  ASSERT_OK(store->put_meta("calibration", std::string("\0\xff", 2)));
  reopen();
  auto jobs = store->list_jobs();
  ASSERT_OK(jobs);
  ASSERT_EQ(jobs->size(), 3u);
  EXPECT_EQ((*jobs)[0].name, "j1");
  EXPECT_EQ((*jobs)[2].value, "value of j3");
  EXPECT_EQ(store->list_jobs("j1", 1)->at(0).name, "j2");
  ASSERT_OK(store->delete_job("j2"));
  EXPECT_EQ(store->list_jobs()->size(), 2u);
  EXPECT_EQ(*store->get_meta("calibration"), std::string("\0\xff", 2));
  ASSERT_OK(store->delete_meta("calibration"));
  EXPECT_EQ(store->get_meta("calibration").code(), Code::kNotFound);
  EXPECT_EQ(store->put_job("", "x").field(), "name");
}

TEST_P(StoreTest, VerifyAndGcOfAHealthyStore) {
  for (int i = 0; i < 5; ++i)
    ASSERT_OK(test::put_document(*store, "d" + std::to_string(i), {static_cast<std::uint64_t>(i)}));
  int calls = 0;
  auto report = store->verify([&](const VerifyReport&) { return ++calls > 0; });
  ASSERT_OK(report);
  EXPECT_TRUE(report->complete);
  EXPECT_EQ(report->documents, 5u);
  EXPECT_EQ(report->segments, 5u);
  EXPECT_EQ(report->values, 5u * 7);
  EXPECT_EQ(report->bad_segments + report->bad_documents, 0u);
  EXPECT_GT(calls, 5);
  EXPECT_FALSE(store->verify([](const VerifyReport&) { return false; })->complete);
  auto gc = store->gc();
  ASSERT_OK(gc);
  EXPECT_EQ(gc->segments_freed, 0u);
  EXPECT_EQ(store->stats().segments, 5u);
}

TEST_P(StoreTest, ReadOnlyReadsAndRefusesWrites) {
  ASSERT_OK(test::put_document(*store, "a", {1}));
  options.read_only = true;
  reopen();
  EXPECT_OK(store->get_document("default", "a"));
  auto handle = store->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  EXPECT_OK(test::check_segment(*store, *handle, 1));
  EXPECT_EQ(store->delete_document("default", "a").code(), Code::kFailedPrecondition);
  EXPECT_EQ(store->commit_document(test::manifest_of("b", {1}), "x").code(),
            Code::kFailedPrecondition);
  EXPECT_EQ(test::put_segment(*store, 2).code(), Code::kFailedPrecondition);
  EXPECT_EQ(store->put_job("j", "x").code(), Code::kFailedPrecondition);
  EXPECT_EQ(store->gc().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(store->verify()->complete);
  handle.reset();
}

INSTANTIATE_TEST_SUITE_P(Disks, StoreTest, ::testing::Values(Kind::kRocksDb, Kind::kMemory),
                         [](const auto& param_info) {
                           return param_info.param == Kind::kRocksDb ? "RocksDb" : "Memory";
                         });

}  // namespace
}  // namespace quire
