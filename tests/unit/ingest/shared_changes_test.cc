// Document services over one shared catalog in memory: what a change of one is worth beside posts,
// changes and requests of the others.
#include <chrono>
#include <string>

#include "cachestore/catalog/request_fence.h"
#include "cachestore/catalog/shared_catalog.h"
#include "tests/support/harness/ingest_node.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using namespace test;
using testing::soon;

struct SharedChangesTest : ::testing::Test {
  std::shared_ptr<MemoryDatabase> database = std::make_shared<MemoryDatabase>();
  Node a{database}, b{database};
};

// A document whose end has come is not there, and neither is what was posted before it.
TEST_F(SharedChangesTest, TheEndOfATtlLetsNoEarlierPostBackWhateverClocksSay) {
  b.close();
  b.options.clock_ms = [] { return IngestOptions().now_ms() + 60'000; };  // a minute ahead
  b.open();
  a.engine->close();
  const auto earlier = a.service->submit("default", one(doc("d0", "an earlier text")), {});
  ASSERT_OK(earlier);
  a.engine->wait_for_one();
  BatchOptions short_lived;
  short_lived.ttl_seconds = 30;
  const auto later = b.service->submit("default", one(doc("d0", "a later text")), short_lived);
  ASSERT_OK(later);
  ASSERT_TRUE(soon([&] { return b.version("d0") == 1; }));
  EXPECT_EQ(b.end_of(later->id).results[0].result, ItemResult::kCreated);
  ASSERT_TRUE(soon([&] { return b.tend().ok() && b.version("d0") == 0; }))
      << "by its clock the document has run out";
  a.engine->open();
  a.end_of(earlier->id);
  EXPECT_TRUE(soon([&] { return a.content("d0").empty(); }))
      << "what was acknowledged last has run out";
  EXPECT_TRUE(database->documents.empty());
  const std::string anew = b.submit(1);
  EXPECT_EQ(b.end_of(anew).results[0].result, ItemResult::kCreated) << "a later post makes it anew";
}

TEST_F(SharedChangesTest, APostFromBeforeTheEndOfATtlThatIsDoneAfterItIsKept) {
  b.close();
  b.options.clock_ms = [] { return IngestOptions().now_ms() + 60'000; };
  b.open();
  BatchOptions short_lived;
  short_lived.ttl_seconds = 30;
  const auto first = a.service->submit("default", one(doc("d0", "an earlier text")), short_lived);
  ASSERT_OK(first);
  EXPECT_EQ(a.end_of(first->id).results[0].result, ItemResult::kCreated);
  ASSERT_TRUE(soon([&] { return b.version("d0") == 1; }));
  a.engine->close();
  const auto later = a.service->submit("default", one(doc("d0", "a later text")), {});
  ASSERT_OK(later);
  a.engine->wait_for_one();
  ASSERT_TRUE(soon([&] { return b.tend().ok() && b.version("d0") == 0; }));
  a.engine->open();
  EXPECT_EQ(a.end_of(later->id).status, JobStatus::kSucceeded);
  EXPECT_EQ(a.content("d0"), "a later text");
}

TEST_F(SharedChangesTest, APostOutlivesALaterWarmUpElsewhere) {
  const std::string first = b.submit(1);
  b.end_of(first);
  ASSERT_TRUE(soon([&] { return a.version("d0") == 1; }));
  a.engine->close();
  const auto other = a.service->submit("default", one(doc("d0", "another text")), {});
  ASSERT_OK(other);
  a.engine->wait_for_one();
  b.close();
  b.fingerprint = "m-00000002";  // as while replicas get a new model one by one
  b.open();
  const auto warm = b.service->warm("default", "d0");
  ASSERT_OK(warm);
  EXPECT_EQ(b.end_of(warm->id).results[0].result, ItemResult::kWarmed);
  EXPECT_EQ(b.version("d0"), 2u);
  a.engine->open();
  EXPECT_EQ(a.end_of(other->id).status, JobStatus::kSucceeded);
  EXPECT_EQ(a.content("d0"), "another text");
  EXPECT_TRUE(soon([&] { return b.content("d0") == "another text"; }));
}

TEST_F(SharedChangesTest, WhatAnotherReplicaHasJustMadeCanBeWarmed) {
  database->unseen = true;
  a.end_of(a.submit(1));
  EXPECT_EQ(b.version("d0"), 0u);
  const auto warm = b.service->warm("default", "d0");
  ASSERT_OK(warm);
  EXPECT_EQ(b.end_of(warm->id).results[0].result, ItemResult::kWarmed);
  EXPECT_EQ(b.service->warm("default", "none").code(), Code::kNotFound);
  database->unseen = false;
}

TEST_F(SharedChangesTest, ConditionsAreCheckedAgainstWhatTheOthersHaveMade) {
  a.end_of(a.submit(3));
  ASSERT_TRUE(soon([&] { return b.version("d0") + b.version("d1") + b.version("d2") == 3; }));
  database->unseen = true;
  DocumentCondition named[3];  // each with the tag that a caller was told by the other replica
  for (int i = 0; i < 3; ++i) {
    const auto changed = a.service->documents().patch("default", "d" + std::to_string(i),
                                                      {.title = "New"});
    ASSERT_OK(changed);
    named[i].if_match = changed->tag;
  }
  EXPECT_EQ(b.version("d0"), 1u) << "the change is not here yet";
  DocumentPatch patch{.title = "Newer"};
  patch.condition = named[0];
  EXPECT_OK(b.service->documents().patch("default", "d0", patch));
  EXPECT_OK(b.service->documents().remove("default", "d1", named[1]));
  BatchOptions put;
  put.in_batch = false;
  put.if_match = named[2].if_match;
  const auto job = b.service->submit("default", one(doc("d2", "another text")), put);
  ASSERT_OK(job);
  EXPECT_EQ(b.end_of(job->id).results[0].result, ItemResult::kUpdated);
  database->unseen = false;
}

TEST_F(SharedChangesTest, ADocumentThatAnotherReplicaIsReplacingIsNotPatched) {
  b.end_of(b.submit(2));
  ASSERT_TRUE(soon([&] { return a.version("d0") == 1; }));
  a.engine->close();
  const auto other = a.service->submit("default", one(doc("d0", "another text")), {});
  ASSERT_OK(other);
  const DocumentPatch patch{.title = "Patched"};
  const auto refused = b.service->documents().patch("default", "d0", patch);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << "the post would undo it";
  EXPECT_THAT(refused.status().message(), ::testing::HasSubstr(other->id));
  EXPECT_OK(b.service->documents().patch("default", "d1", patch));
  a.engine->open();
  // Whoever was told that the post is done may go on, though its job is not told to have ended.
  ASSERT_TRUE(soon([&] { return a.content("d0") == "another text"; }));
  const auto patched = b.service->documents().patch("default", "d0", patch);
  ASSERT_OK(patched);
  a.end_of(other->id);
  EXPECT_TRUE(
      soon([&] { return a.service->documents().get("default", "d0")->title == "Patched"; }));
  EXPECT_EQ(b.content("d0"), "another text");
  database->away = true;
  EXPECT_TRUE(catalog_is_away(b.service->documents().patch("default", "d0", patch).status()));
  database->away = false;
}

TEST_F(SharedChangesTest, ABulkDeletionOfNothingWhileTheCatalogIsAwayIsRefused) {
  a.end_of(a.submit(2));
  BulkDelete request;
  request.ids = {"d0", "d1"};
  database->away = true;
  EXPECT_TRUE(catalog_is_away(a.service->documents().remove_many("default", request).status()));
  ASSERT_TRUE(soon([&] { return !a.store->catalog_stats().up; }));
  EXPECT_TRUE(catalog_is_away(a.service->documents().remove_many("default", request).status()));
  database->away = false;
  ASSERT_TRUE(soon([&] { return a.store->catalog_stats().up; }));
  EXPECT_EQ(a.service->documents().remove_many("default", request)->deleted.size(), 2u);
}

TEST_F(SharedChangesTest, AReplicaThatHungInARequestDoesNotCarryItOutOnceAnotherHas) {
  a.end_of(a.submit(2));
  ASSERT_TRUE(soon([&] { return b.version("d1") == 1; }));
  const Digest slot = sha256("slot"), body = sha256("body");
  constexpr std::chrono::hours kDay{24};
  const auto begin = [&](Node& node) {
    const auto found = node.store->shared_replies()->begin(slot, body, kDay);
    return found.ok() && found->outcome == SharedReply::Outcome::kFirst;
  };
  ASSERT_TRUE(begin(a));
  database->replies.forget_replica(a.store->shared_jobs()->replica());
  ASSERT_TRUE(begin(b));
  {
    const RequestFence fence(slot);
    ASSERT_OK(b.service->documents().patch("default", "d0", {.title = "From b"}));
  }
  ASSERT_OK(b.service->documents().patch("default", "d0", {.title = "Later"}));
  const RequestFence fence(slot);  // a goes on where it hung
  DocumentCatalog& documents = a.service->documents();
  EXPECT_TRUE(catalog_is_away(documents.patch("default", "d0", {.title = "From a"}).status()));
  EXPECT_TRUE(catalog_is_away(documents.remove("default", "d1")));
  EXPECT_TRUE(catalog_is_away(documents.remove("default", "none")));
  const auto posted = a.service->submit("default", one(doc("d1", "another text")), {});
  EXPECT_TRUE(catalog_is_away(posted.status()));
  EXPECT_EQ(b.service->documents().get("default", "d0")->title, "Later");
  EXPECT_EQ(b.content("d1"), "text 1");
}

}  // namespace
}  // namespace quire
