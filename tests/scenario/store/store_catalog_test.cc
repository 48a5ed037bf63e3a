// Stores over one shared catalog in memory: what one changes, the others have, whatever comes in
// between.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/support/harness/memory_catalog.h"
#include "tests/support/harness/test_store.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using test::MemoryCatalog;
using test::MemoryDatabase;
using test::MemoryDisk;
using test::MemoryTier;
using testing::soon;

struct Replica {
  explicit Replica(std::shared_ptr<MemoryDatabase> database,
                   std::function<std::int64_t()> clock = {})
      : disk(std::make_shared<MemoryDisk>()) {
    options.catalog.poll = std::chrono::milliseconds(20);
    options.clock_ms = std::move(clock);
    status = open(std::move(database));
  }
  /// Opens the store over its disk again; without a database as one that stands alone.
  Status open(std::shared_ptr<MemoryDatabase> database) {
    store.reset();
    auto opened = open_store_on(
        options, std::make_unique<MemoryTier>(disk), {},
        database ? std::make_unique<MemoryCatalog>(std::move(database)) : nullptr);
    if (!opened.ok()) return opened.status();
    store = std::move(*opened);
    return {};
  }
  std::uint64_t version(const std::string& id) {
    const auto head = store->get_document_head("default", id);
    return head.ok() ? head->version : 0;
  }
  bool has(const std::string& id, std::uint64_t at_version) {
    return soon([&] { return version(id) == at_version; });
  }
  Status remove(const std::string& id) { return store->delete_document("default", id); }
  Result<DocumentManifest> rename(const std::string& id, const std::string& title,
                                  CommitOptions condition = {}) {
    return store->update_document(
        "default", id,
        [&](DocumentManifest& m) {
          m.title = title;
          return Status();
        },
        condition);
  }

  StoreOptions options;
  std::shared_ptr<MemoryDisk> disk;
  Status status;
  std::unique_ptr<AdminStore> store;
};

struct StoreCatalog : ::testing::Test {
  std::shared_ptr<MemoryDatabase> database = std::make_shared<MemoryDatabase>();
  Replica a{database}, b{database};
};

TEST_F(StoreCatalog, WhatOneReplicaPostsAnotherHasWithTextTokensAndSettings) {
  DocumentManifest m = test::manifest_of("d", {1, 2});
  m.pinned = true;
  m.ttl_seconds = 3600;
  m.marks = {{3, 1, "A heading"}};
  m.chunks[1].left_chunks = 1;
  const auto posted = a.store->commit_document(m, test::text_of("d"));
  ASSERT_OK(posted);
  ASSERT_TRUE(b.has("d", 1));
  const auto there = b.store->get_document("default", "d");
  ASSERT_OK(there);
  EXPECT_EQ(*there, *posted);
  EXPECT_EQ(b.store->get_text("default", "d").value_or(""), test::text_of("d"));
  EXPECT_FALSE(b.store->find_segment(test::key_of(1))) << "KV comes by the shared tiers, if at all";
  EXPECT_EQ(b.store->namespaces().at(0).documents, 1u);
  EXPECT_EQ(b.store->catalog_stats().applied, 1u);
  EXPECT_EQ(a.store->catalog_stats().written, 1u);
}

TEST_F(StoreCatalog, ALostChangeIsNoticedThoughAnotherHasItsNumber) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  // As where a standby takes over that lagged, and another replica is quick.
  {
    const std::lock_guard lock(database->mu);
    database->log.back().writer = "another";
  }
  EXPECT_TRUE(soon([&] { return !b.store->catalog_stats().up; }));
  const std::string reason = b.store->catalog_stats().reason;
  EXPECT_NE(reason.find("lacks changes"), reason.npos) << reason;
  EXPECT_EQ(b.version("d"), 1u) << "it answers from its copy";
  ASSERT_OK(test::put_document(*Replica(database).store, "new", {2}));
  EXPECT_FALSE(b.open(database).ok()) << "nor does a start follow it";
  EXPECT_OK(Replica(database).status) << "an empty folder does";
}

TEST_F(StoreCatalog, ATextThatWaitedTravels) {
  const NamedText text{"job/0", "a text that waits"};
  ASSERT_OK(a.store->put_job_and_texts("job", "x", {&text, 1}));
  CommitOptions options;
  options.waiting_text = "job/0";
  ASSERT_OK(a.store->commit_document(test::manifest_of("d", {1}, 17), std::nullopt, {}, options));
  ASSERT_TRUE(b.has("d", 1));
  EXPECT_EQ(b.store->get_text("default", "d").value_or(""), "a text that waits");
  // Here the text lies under its name, there under the document's; both go with the document.
  ASSERT_OK(b.remove("d"));
  ASSERT_TRUE(a.has("d", 0));
  for (Replica* r : {&a, &b}) {
    const std::lock_guard lock(r->disk->mu);
    for (const auto& [key, value] : r->disk->records)
      EXPECT_TRUE(key.first != Family::kCatalog || key.second[0] == kIndexKind) << key.second;
  }
}

TEST_F(StoreCatalog, AChangeOfTheHeadMovesNoText) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  const int read = database->bodies_read;
  ASSERT_OK(b.rename("d", "another title"));
  ASSERT_TRUE(a.has("d", 2));
  EXPECT_EQ(a.store->get_document_head("default", "d")->title, "another title");
  EXPECT_OK(a.store->get_document("default", "d"));
  EXPECT_TRUE(a.store->find_segment(test::key_of(1))) << "its KV is still that of the text";
  EXPECT_EQ(database->bodies_read, read);
}

TEST_F(StoreCatalog, TheWatcherHearsOfChangesOfOthers) {
  std::mutex mu;
  std::vector<std::string> heard;
  b.store->watch_documents([&](std::string_view, std::string_view id) {
    const std::lock_guard lock(mu);
    heard.emplace_back(id);
  });
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  EXPECT_TRUE(soon([&] {
    const std::lock_guard lock(mu);
    return !heard.empty() && heard[0] == "d";
  }));
  b.store->watch_documents({});
}

TEST_F(StoreCatalog, OfTwoWritersOfOneVersionExactlyOneWins) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  for (std::uint64_t version = 1; version < 30; ++version) {
    CommitOptions options;
    options.expected_version = version;
    Result<DocumentManifest> at_a = Status::internal("not run"), at_b = at_a;
    std::thread other([&] { at_b = b.rename("d", "by b", options); });
    at_a = a.rename("d", "by a", options);
    other.join();
    ASSERT_NE(at_a.ok(), at_b.ok()) << version;
    EXPECT_EQ((at_a.ok() ? at_b : at_a).code(), Code::kFailedPrecondition);
    ASSERT_TRUE(a.has("d", version + 1) && b.has("d", version + 1));
    EXPECT_EQ(a.store->get_document_head("default", "d")->title, at_a.ok() ? "by a" : "by b");
    EXPECT_EQ(b.store->get_document_head("default", "d")->title, at_a.ok() ? "by a" : "by b");
  }
}

TEST_F(StoreCatalog, ChangesWithoutAConditionAllHappen) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  const auto count_up = [](Replica& r) {
    for (int i = 0; i < 50; ++i)
      ASSERT_OK(r.store->update_document("default", "d", [](DocumentManifest& m) {
        m.title += "x";
        return Status();
      }));
  };
  const std::size_t before = a.store->get_document_head("default", "d")->title.size();
  std::thread other([&] { count_up(b); });
  count_up(a);
  other.join();
  ASSERT_TRUE(a.has("d", 101) && b.has("d", 101));
  EXPECT_EQ(a.store->get_document_head("default", "d")->title.size(), before + 100);
}

TEST_F(StoreCatalog, ADocumentThatHasNotArrivedYetCanBeChangedAndDeleted) {
  database->set_fault([](std::string_view operation) {
    return operation == "changes" ? catalog_away("no changes in this test") : Status();
  });
  ASSERT_OK(test::put_document(*a.store, "e", {2}));
  ASSERT_OK(b.rename("e", "changed at b"));
  EXPECT_EQ(b.version("e"), 2u);
  ASSERT_OK(test::put_document(*a.store, "f", {3}));
  EXPECT_EQ(b.version("f"), 0u);
  EXPECT_OK(b.remove("f"));
  EXPECT_EQ(b.remove("never there").code(), Code::kNotFound);
  database->set_fault({});
  EXPECT_TRUE(a.has("f", 0));
  EXPECT_TRUE(a.has("e", 2));
}

TEST_F(StoreCatalog, ADocumentThatWasDeletedAndPostedAgainIsAnotherOne) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  for (std::uint64_t round = 0; round < 20; ++round) {
    ASSERT_OK(a.remove("d"));
    ASSERT_OK(a.store->commit_document(test::manifest_of("d", {round + 10}), test::text_of("d")));
    ASSERT_TRUE(soon([&] {
      const auto d = b.store->get_document("default", "d");
      return d.ok() && d->chunks[0].key == test::key_of(round + 10);
    }));
    ASSERT_OK(b.rename("d", "known at b"));
    ASSERT_TRUE(a.has("d", 2));
  }
}

TEST_F(StoreCatalog, WhatIsDeletedHereNeverComesBack) {
  std::atomic<bool> stop{false}, came_back{false};
  std::thread other([&] {
    for (int i = 0; !stop; ++i)
      (void)b.store->commit_document(test::manifest_of("d", {1}), test::text_of("d"));
  });
  for (int i = 0; i < 200; ++i) {
    CommitOptions options;
    const auto head = a.store->get_document_head("default", "d");
    if (!head.ok()) continue;
    options.expected_version = head->version;
    if (!a.store->delete_document("default", "d", options).ok()) continue;
    const auto now = a.store->get_document_head("default", "d");
    // Another commit of b may be there already, but not the version that was deleted.
    came_back = came_back || (now.ok() && now->version == head->version &&
                              now->created_ms == head->created_ms && head->version > 1);
  }
  stop = true;
  other.join();
  EXPECT_FALSE(came_back);
  (void)a.remove("d");
  EXPECT_TRUE(a.has("d", 0) && b.has("d", 0));
}

TEST_F(StoreCatalog, WhileTheCatalogIsAwayDocumentsAreReadAndNotChanged) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  database->away = true;
  EXPECT_TRUE(soon([&] { return !b.store->catalog_stats().up; }));
  EXPECT_GT(b.store->catalog_stats().away_since_ms, 0);
  EXPECT_OK(b.store->get_document("default", "d"));
  for (const Status& s : {test::put_document(*b.store, "e", {2}), b.rename("d", "x").status(),
                          b.remove("d"), b.remove("unknown")}) {
    EXPECT_TRUE(catalog_is_away(s)) << s.to_string();
    EXPECT_EQ(s.field(), "catalog.url");
  }
  EXPECT_EQ(b.version("d"), 1u);
  EXPECT_EQ(b.version("e"), 0u);
  database->away = false;
  EXPECT_TRUE(soon([&] { return b.store->catalog_stats().up; }));
  EXPECT_EQ(b.store->catalog_stats().away_since_ms, 0);
  EXPECT_OK(test::put_document(*b.store, "e", {2}));
  EXPECT_TRUE(a.has("e", 1));
}

TEST_F(StoreCatalog, AChangeWhoseAnswerWasLostIsThereForEverybodyOrForNobody) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  database->lose_answer = true;
  EXPECT_TRUE(catalog_is_away(a.rename("d", "lost answer").status()));
  EXPECT_TRUE(a.has("d", 2) && b.has("d", 2));
  database->lose_answer = true;
  EXPECT_TRUE(catalog_is_away(a.remove("d")));
  EXPECT_TRUE(a.has("d", 0) && b.has("d", 0));
}

TEST_F(StoreCatalog, ACrashBetweenCatalogAndStoreIsMended) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  // The disk of a takes nothing any more, the catalog does.
  a.disk->full_from = a.disk->writes.load();
  EXPECT_FALSE(a.rename("d", "not here").ok());
  EXPECT_EQ(a.version("d"), 1u);
  EXPECT_TRUE(b.has("d", 2));
  a.disk->full_from = -1;
  EXPECT_TRUE(a.has("d", 2));
  EXPECT_EQ(a.store->get_document_head("default", "d")->title, "not here");
}

struct StoreCatalogOnAFullDisk : StoreCatalog {
  void SetUp() override {
    for (const char* id : {"changed", "deleted", "renamed", "left"}) {
      ASSERT_OK(test::put_document(*a.store, id, {1}));
      ASSERT_TRUE(b.has(id, 1));
    }
    b.disk->free = 1u << 20;
  }
  bool misses(std::uint64_t documents) {
    return soon([&] { return b.store->catalog_stats().not_here == documents; });
  }
};

TEST_F(StoreCatalogOnAFullDisk, WhatHasNoRoomIsNotHereAndAllElseIsFollowed) {
  ASSERT_OK(test::put_document(*a.store, "new", {2}));
  ASSERT_OK(test::put_document(*a.store, "changed", {3}));
  ASSERT_OK(a.rename("renamed", "another title"));
  ASSERT_TRUE(misses(3));
  ASSERT_OK(a.remove("deleted"));
  EXPECT_TRUE(b.has("deleted", 0));
  EXPECT_EQ(b.version("new"), 0u);
  EXPECT_EQ(b.version("changed"), 0u) << "an earlier text does not pass for the document's";
  EXPECT_EQ(b.version("renamed"), 1u) << "its text is still the document's";
  EXPECT_EQ(b.version("left"), 1u);
  EXPECT_EQ(b.store->refresh_document("default", "new").code(), Code::kResourceExhausted);
  EXPECT_TRUE(b.store->catalog_stats().up);
  // A start has what is missing from the log.
  const auto position = [&] {
    const std::lock_guard lock(b.disk->mu);
    return b.disk->records.at({Family::kMeta, std::string(kCatalogPositionRecord)});
  };
  const std::string before = position();
  ASSERT_OK(b.open(database));
  ASSERT_TRUE(misses(3));
  b.disk->free = 1ull << 40;
  EXPECT_TRUE(misses(0));
  EXPECT_EQ(b.version("new"), 1u);
  EXPECT_EQ(b.version("changed"), 2u);
  EXPECT_EQ(b.version("renamed"), 2u);
  EXPECT_OK(b.store->get_text("default", "changed"));
  EXPECT_TRUE(soon([&] { return position() != before; }));
  database->cut_log();
  ASSERT_OK(b.open(database));
  EXPECT_EQ(b.store->catalog_stats().whole_reads, 0u) << "the next start needs no log before it";
}

TEST_F(StoreCatalogOnAFullDisk, DeletesGoThroughAndPostsChangeNothing) {
  ASSERT_OK(test::put_document(*a.store, "new", {2}));
  ASSERT_OK(a.rename("renamed", "another title"));
  ASSERT_TRUE(misses(2));
  CommitOptions earlier;
  earlier.expected_version = 1;
  EXPECT_EQ(b.store->delete_document("default", "renamed", earlier).code(),
            Code::kFailedPrecondition);
  for (const char* id : {"new", "renamed", "left"}) {
    EXPECT_OK(b.remove(id)) << id;
    EXPECT_EQ(b.version(id), 0u) << id;
    EXPECT_TRUE(a.has(id, 0)) << id;
  }
  EXPECT_EQ(b.remove("unknown").code(), Code::kNotFound);
  EXPECT_TRUE(misses(0));
  EXPECT_EQ(b.store->commit_document(test::manifest_of("mine", {2}), test::text_of("mine")).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(b.rename("changed", "mine").code(), Code::kResourceExhausted);
  const std::lock_guard lock(database->mu);
  EXPECT_FALSE(database->documents.contains({"default", "mine"}));
  EXPECT_EQ(database->documents.at({"default", "changed"}).version, 1u);
}

TEST_F(StoreCatalogOnAFullDisk, OneThatNeverFitsDoesNotKeepTheOthersAway) {
  for (int i = 0; i < 40; ++i)
    ASSERT_OK(test::put_document(*a.store, "d" + std::to_string(i), {2}));
  ASSERT_OK(a.store->commit_document(test::manifest_of("big", {2}, 20u << 20),
                                     std::string(20u << 20, 'x')));
  ASSERT_TRUE(misses(41));
  b.disk->free = 20u << 20;
  EXPECT_TRUE(misses(1));
  EXPECT_EQ(b.version("big"), 0u);
  b.disk->free = 1ull << 40;
  EXPECT_TRUE(misses(0));
}

TEST_F(StoreCatalog, AStoreThatWasOffCatchesUp) {
  for (std::uint64_t i = 0; i < 30; ++i)
    ASSERT_OK(test::put_document(*a.store, "d" + std::to_string(i), {i}));
  ASSERT_TRUE(b.has("d29", 1));
  b.store.reset();
  ASSERT_OK(a.remove("d3"));
  ASSERT_OK(a.rename("d4", "renamed"));
  ASSERT_OK(test::put_document(*a.store, "new", {99}));
  const int read = database->bodies_read;
  ASSERT_OK(b.open(database));
  EXPECT_EQ(b.version("d3"), 0u);
  EXPECT_EQ(b.version("d4"), 2u);
  EXPECT_EQ(b.version("new"), 1u);
  EXPECT_EQ(database->bodies_read, read + 1);
  EXPECT_EQ(b.store->catalog_stats().whole_reads, 0u);
}

TEST_F(StoreCatalog, ALogThatWasCutMakesTheStoreCompareEverything) {
  for (std::uint64_t i = 0; i < 30; ++i)
    ASSERT_OK(test::put_document(*a.store, "d" + std::to_string(i), {i}));
  ASSERT_TRUE(b.has("d29", 1));
  b.store.reset();
  ASSERT_OK(a.remove("d3"));
  ASSERT_OK(a.rename("d4", "renamed"));
  ASSERT_OK(test::put_document(*a.store, "new", {99}));
  database->cut_log();
  const int read = database->bodies_read;
  ASSERT_OK(b.open(database));
  EXPECT_EQ(b.version("d3"), 0u);
  EXPECT_EQ(b.version("d4"), 2u);
  EXPECT_EQ(b.version("new"), 1u);
  EXPECT_EQ(database->bodies_read, read + 1) << "texts that are here are not fetched again";
  EXPECT_EQ(b.store->catalog_stats().whole_reads, 1u);
}

TEST_F(StoreCatalog, ALostStoreIsBuiltAnew) {
  for (std::uint64_t i = 0; i < 700; ++i)  // more than one page
    ASSERT_OK(a.store->commit_document(test::manifest_of("d" + std::to_string(i), {i}),
                                       test::text_of("d" + std::to_string(i))));
  Replica c(database);
  ASSERT_OK(c.status);
  for (std::uint64_t i = 0; i < 700; ++i) {
    const std::string id = "d" + std::to_string(i);
    EXPECT_EQ(c.store->get_text("default", id).value_or(""), test::text_of(id));
  }
  ASSERT_EQ(c.store->namespaces().size(), 1u);
  EXPECT_EQ(c.store->namespaces()[0].documents, 700u);
}

TEST_F(StoreCatalog, ADamagedRecordIsReadFromTheCatalogAtTheNextStart) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  b.store.reset();
  {
    const std::lock_guard lock(b.disk->mu);
    b.disk->records[{Family::kCatalog, catalog_key(kHeadKind, "default", "d")}] = "damaged";
  }
  ASSERT_OK(b.open(database));
  EXPECT_EQ(b.version("d"), 1u);
}

TEST_F(StoreCatalog, AStartWithoutTheCatalogGoesOnWithTheCopyAndANewStoreIsRefused) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  database->away = true;
  ASSERT_OK(b.open(database));
  EXPECT_EQ(b.version("d"), 1u);
  EXPECT_FALSE(b.store->catalog_stats().up);
  EXPECT_TRUE(catalog_is_away(b.rename("d", "x").status()));
  const Replica c(database);
  EXPECT_TRUE(catalog_is_away(c.status)) << c.status.to_string();
  database->away = false;
  EXPECT_TRUE(soon([&] { return b.rename("d", "x").ok(); }));
}

TEST_F(StoreCatalog, AStoreOfAnotherCatalogIsRefused) {
  const auto other = std::make_shared<MemoryDatabase>();
  other->identity = "another";
  const Status s = b.open(other);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_EQ(s.field(), "catalog.url");
  EXPECT_NE(s.message().find("another shared catalog"), std::string::npos);
}

TEST_F(StoreCatalog, ACatalogThatWentBackInTimeIsNotFollowed) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  b.store.reset();
  {
    const std::lock_guard lock(database->mu);
    database->documents.clear();
    database->log.clear();
    database->end = {};
  }
  const Status s = b.open(database);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition) << s.to_string();
  EXPECT_NE(s.message().find("backup"), std::string::npos);
}

TEST_F(StoreCatalog, DocumentsFromBeforeGoIntoTheCatalogAndOnesThatDifferAreRefused) {
  Replica c(nullptr);
  ASSERT_OK(test::put_document(*c.store, "own", {5}));
  ASSERT_OK(test::put_document(*c.store, "both", {6}));
  ASSERT_OK(test::put_document(*a.store, "both", {6}));
  ASSERT_OK(c.open(database));
  EXPECT_TRUE(b.has("own", 1) && b.has("both", 1));
  EXPECT_TRUE(c.store->find_segment(test::key_of(5))) << "its KV stays";
  EXPECT_TRUE(c.store->find_segment(test::key_of(6)));
  ASSERT_OK(c.rename("own", "renamed at c"));
  EXPECT_TRUE(b.has("own", 2));

  Replica e(nullptr);
  DocumentManifest m = test::manifest_of("both", {7});
  m.content_hash = "sha256:" + sha256("other").hex();
  ASSERT_OK(e.store->commit_document(m, test::text_of("other")));
  const Status s = e.open(database);
  EXPECT_EQ(s.code(), Code::kFailedPrecondition);
  EXPECT_NE(s.message().find("'both'"), std::string::npos) << s.message();
  // The way out that the message names.
  ASSERT_OK(e.open(nullptr));
  ASSERT_OK(e.remove("both"));
  ASSERT_OK(e.open(database));
  EXPECT_EQ(e.version("both"), 1u);
}

TEST_F(StoreCatalog, WhatIsChangedWithoutTheCatalogIsComparedAtTheNextStartWithIt) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_OK(test::put_document(*a.store, "e", {2}));
  ASSERT_TRUE(b.has("d", 1) && b.has("e", 1));
  ASSERT_OK(b.open(nullptr));
  ASSERT_OK(b.remove("d"));
  ASSERT_OK(b.rename("e", "alone"));
  ASSERT_OK(test::put_document(*b.store, "f", {3}));
  ASSERT_OK(b.open(database));
  EXPECT_EQ(b.version("d"), 1u) << "the catalog has it";
  EXPECT_EQ(b.store->get_document_head("default", "e")->title, "Title of e") << "of the catalog";
  EXPECT_TRUE(a.has("f", 1));
}

TEST_F(StoreCatalog, CompanionsOfOneReplicaStayThere) {
  ASSERT_OK(test::put_document(*a.store, "d", {1}));
  ASSERT_TRUE(b.has("d", 1));
  const auto at_b = b.store->get_document("default", "d");
  ASSERT_OK(at_b);
  const ContextKey companion = test::key_of(77);
  ASSERT_OK(b.store->add_companions(*at_b, {&companion, 1}));
  ASSERT_OK(a.rename("d", "x"));
  ASSERT_TRUE(b.has("d", 2));
  EXPECT_EQ(b.store->get_document_head("default", "d")->companions.size(), 1u);
  EXPECT_EQ(a.store->get_document_head("default", "d")->companions.size(), 0u);
  ASSERT_OK(a.store->commit_document(test::manifest_of("d", {2}), test::text_of("d")));
  ASSERT_TRUE(b.has("d", 3));
  EXPECT_TRUE(b.store->get_document_head("default", "d")->companions.empty()) << "of an old text";
}

TEST(StoreCatalogExpiry, AUseAtOneReplicaKeepsADocumentForAll) {
  const auto database = std::make_shared<MemoryDatabase>();
  std::atomic<std::int64_t> now{1'000'000};
  Replica a(database, [&] { return now.load(); }), b(database, [&] { return now.load(); });
  DocumentManifest m = test::manifest_of("d", {1});
  m.ttl_seconds = 100;
  m.ttl_anchor = TtlAnchor::kLastUsed;
  ASSERT_OK(a.store->commit_document(m, test::text_of("d")));
  m.id = "e";
  m.ttl_anchor = TtlAnchor::kCreated;
  ASSERT_OK(a.store->commit_document(m, test::text_of("e")));
  ASSERT_TRUE(b.has("d", 1) && b.has("e", 1));
  now += 60'000;
  a.store->touch_document("default", "d");
  ASSERT_TRUE(soon([&] {
    const auto head = b.store->get_document_head("default", "d");
    return head.ok() && head->last_used_ms == 1'060'000;
  }));
  now += 60'000;
  EXPECT_EQ(b.version("d"), 1u);
  EXPECT_EQ(b.version("e"), 0u);
  EXPECT_EQ(b.store->expire(now).value_or(0), 1u);
  EXPECT_TRUE(soon([&] {
    const std::lock_guard lock(database->mu);
    return database->documents.size() == 1;
  }));
  now += 60'000;
  EXPECT_EQ(a.store->expire(now).value_or(0), 1u);
  EXPECT_EQ(b.version("d"), 0u);
  EXPECT_OK(b.store->expire(now));
}

TEST(StoreCatalogFaults, EveryCallMayFailOnceAndNothingIsLostOrDoubled) {
  for (int fail_at = 0; fail_at < 60; ++fail_at) {
    const auto database = std::make_shared<MemoryDatabase>();
    std::atomic<int> calls{0};
    Replica a(database);
    ASSERT_OK(a.status);
    database->set_fault(
        [&](std::string_view) { return calls++ == fail_at ? catalog_away("injected") : Status(); });
    Replica b(database);
    if (!b.status.ok()) {
      EXPECT_TRUE(catalog_is_away(b.status)) << b.status.to_string();
      ASSERT_OK(b.open(database));
    }
    std::map<std::string, std::uint64_t> acknowledged;
    for (int i = 0; i < 8; ++i) {
      const std::string id = "d" + std::to_string(i % 4);
      Replica& r = i % 2 == 0 ? a : b;
      const auto done = r.store->commit_document(test::manifest_of(id, {1}), test::text_of(id));
      if (done.ok()) acknowledged[id] = done->version;
    }
    const bool removed = a.remove("d0").ok();
    for (const auto& [id, version] : acknowledged) {
      const std::uint64_t want = removed && id == "d0" ? 0 : version;
      EXPECT_TRUE(a.has(id, want) && b.has(id, want)) << fail_at << " " << id;
    }
    a.store.reset();
    b.store.reset();
    database->set_fault({});
  }
}

}  // namespace
}  // namespace quire
