// Small records that the replicas of a shared catalog have in common, and replies to repeated
// requests: over a catalog in memory, and over a real PostgreSQL server where Debian's package
// `postgresql` is installed.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>

#include "cachestore/catalog/postgres_catalog.h"
#include "cachestore/catalog/request_fence.h"
#include "tests/support/harness/cutting_proxy.h"
#include "tests/support/harness/memory_catalog.h"
#include "tests/support/harness/postgres_process.h"
#include "tests/support/harness/test_store.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using test::MemoryCatalog;
using test::MemoryDatabase;
using test::MemoryDisk;
using test::MemoryTier;
using test::PostgresProcess;
using testing::soon;

constexpr const char* kName = "fidelity/model";
using Value = std::optional<std::string>;

RecordChange append(const std::string& text) {
  return [text](const Value& before) -> Result<Value> { return Value(before.value_or("") + text); };
}

struct Replica {
  Status open(std::unique_ptr<SharedCatalog> catalog) {
    store.reset();
    StoreOptions options;
    options.catalog.poll = std::chrono::milliseconds(20);
    QUIRE_ASSIGN_OR_RETURN(
        store, open_store_on(options, std::make_unique<MemoryTier>(disk), {}, std::move(catalog)));
    return {};
  }
  std::string value() const {
    const auto found = store->get_shared_meta(kName);
    return found.ok() ? *found : found.status().code() == Code::kNotFound ? "none" : "an error";
  }
  std::shared_ptr<MemoryDisk> disk = std::make_shared<MemoryDisk>();
  std::unique_ptr<AdminStore> store;
};

struct SharedRecordsTest : ::testing::Test {
  SharedRecordsTest() {
    for (Replica* r : {&a, &b}) EXPECT_OK(r->open(std::make_unique<MemoryCatalog>(database)));
  }
  std::shared_ptr<MemoryDatabase> database = std::make_shared<MemoryDatabase>();
  Replica a, b;
};

TEST(StoreRecords, WithoutACatalogTheyAreTheStoresOwn) {
  Replica a;
  ASSERT_OK(a.open(nullptr));
  EXPECT_EQ(a.value(), "none");
  ASSERT_OK(a.store->update_shared_meta(kName, append("x")));
  ASSERT_OK(a.store->update_shared_meta(kName, append("y")));
  EXPECT_EQ(a.store->get_meta(kName).value_or(""), "xy");
  const Status refused = a.store->update_shared_meta(
      kName, [](const Value&) -> Result<Value> { return Status::exhausted("no more"); });
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(a.value(), "xy");
  ASSERT_OK(
      a.store->update_shared_meta(kName, [](const Value&) -> Result<Value> { return Value(); }));
  EXPECT_EQ(a.store->get_meta(kName).code(), Code::kNotFound);
  EXPECT_EQ(a.store->shared_replies(), nullptr);
}

TEST_F(SharedRecordsTest, WhatOneChangesTheOtherHas) {
  EXPECT_EQ(b.value(), "none");
  ASSERT_OK(a.store->update_shared_meta(kName, append("x")));
  EXPECT_EQ(b.value(), "x");
  ASSERT_OK(b.store->update_shared_meta(kName, append("y")));
  EXPECT_EQ(a.value(), "xy");
  ASSERT_OK(
      a.store->update_shared_meta(kName, [](const Value&) -> Result<Value> { return Value(); }));
  EXPECT_EQ(b.value(), "none");
  EXPECT_EQ(b.store->get_meta(kName).code(), Code::kNotFound) << "nor does its copy come back";
  ASSERT_OK(b.store->update_shared_meta(kName, append("z")));
  EXPECT_EQ(a.value(), "z");
}

TEST_F(SharedRecordsTest, AChangeMeetsTheLatestValue) {
  bool first = true;
  database->records.before_put = [&](std::string_view) {
    if (!std::exchange(first, false)) return;
    EXPECT_OK(b.store->update_shared_meta(kName, append("b")));
  };
  ASSERT_OK(a.store->update_shared_meta(kName, append("a")));
  EXPECT_EQ(a.value(), "ba");
}

TEST_F(SharedRecordsTest, AReadThatAChangeOvertakesLeavesTheCopyOfTheChange) {
  const RecordChange remove = [](const Value&) -> Result<Value> { return Value(); };
  struct Case {
    RecordChange change;
    std::string after;
  };
  ASSERT_OK(b.store->update_shared_meta(kName, append("x")));
  for (const Case& c : {Case{append("y"), "xy"}, Case{remove, "none"}, Case{append("z"), "z"}}) {
    bool first = true;
    database->records.after_get = [&](std::string_view) {
      if (!std::exchange(first, false)) return;
      EXPECT_OK(b.store->update_shared_meta(kName, c.change));
    };
    (void)b.value();
    database->records.after_get = {};
    const auto copy = b.store->get_meta(kName);
    EXPECT_EQ(copy.ok() ? *copy : "none", c.after);
    EXPECT_EQ(b.value(), c.after);
  }
}

TEST_F(SharedRecordsTest, WhileTheCatalogIsAwayTheCopyAnswersAndNothingChanges) {
  ASSERT_OK(a.store->update_shared_meta(kName, append("x")));
  EXPECT_EQ(b.value(), "x");
  database->away = true;
  EXPECT_EQ(b.value(), "x");
  EXPECT_TRUE(catalog_is_away(b.store->update_shared_meta(kName, append("y"))));
  database->away = false;
  EXPECT_EQ(b.value(), "x");
}

TEST_F(SharedRecordsTest, WhileTheCatalogIsAwayARecordWithoutACopyIsNotKnownToBeMissing) {
  ASSERT_OK(a.store->update_shared_meta(kName, append("x")));
  database->away = true;
  EXPECT_TRUE(catalog_is_away(b.store->get_shared_meta(kName).status()));
  database->away = false;
  EXPECT_EQ(b.value(), "x");
}

TEST_F(SharedRecordsTest, ACopyThatCannotBeWrittenIsNoFailure) {
  a.disk->full_from = 0;
  EXPECT_OK(a.store->update_shared_meta(kName, append("x")));
  EXPECT_EQ(a.value(), "x");
  EXPECT_EQ(b.value(), "x");
}

TEST_F(SharedRecordsTest, ARecordFromBeforeTheCatalogCountsUntilThereIsAnother) {
  Replica c;
  ASSERT_OK(c.open(nullptr));
  ASSERT_OK(c.store->put_meta(kName, "old"));
  ASSERT_OK(c.open(std::make_unique<MemoryCatalog>(database)));
  EXPECT_EQ(c.value(), "old");
  EXPECT_EQ(b.value(), "none");
  ASSERT_OK(c.store->update_shared_meta(kName, append(" and new")));
  EXPECT_EQ(b.value(), "old and new");
}

class PostgresRecordsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::postgres_programs().empty())
      GTEST_SKIP() << "there is no PostgreSQL server: install Debian's package postgresql";
    server = std::make_unique<PostgresProcess>();
  }
  std::unique_ptr<SharedCatalog> catalog(const std::string& url,
                                         std::chrono::milliseconds lease = std::chrono::hours(1)) {
    CatalogOptions options;
    options.url = url;
    options.poll = std::chrono::milliseconds(100);
    options.job_lease = lease;
    auto opened = open_shared_catalog(options);
    EXPECT_OK(opened);
    return opened.ok() ? std::move(*opened) : nullptr;
  }
  std::unique_ptr<PostgresProcess> server;
};

TEST_F(PostgresRecordsTest, ManyWritersLoseNoChange) {
  Replica a, b;
  ASSERT_OK(a.open(catalog(server->url())));
  ASSERT_OK(b.open(catalog(server->url())));
  constexpr int kEach = 25;
  std::vector<std::future<void>> writers;
  for (Replica* r : {&a, &b, &a, &b})
    writers.push_back(std::async(std::launch::async, [r] {
      for (int i = 0; i < kEach; ++i) EXPECT_OK(r->store->update_shared_meta(kName, append("x")));
    }));
  writers.clear();
  EXPECT_EQ(a.value(), std::string(4 * kEach, 'x'));
  EXPECT_EQ(b.value(), a.value());
  std::string odd("\0\xff'\\", 4);
  ASSERT_OK(b.store->update_shared_meta(kName,
                                        [&](const Value&) -> Result<Value> { return Value(odd); }));
  EXPECT_EQ(a.value(), odd);
}

TEST_F(PostgresRecordsTest, AChangeWhoseAnswerOrMessageIsLostIsMadeOnce) {
  test::CuttingProxy proxy(server->port());
  Replica a, b;
  ASSERT_OK(a.open(catalog(server->url_at(proxy.port()))));
  ASSERT_OK(b.open(catalog(server->url())));
  ASSERT_OK(a.store->update_shared_meta(kName, append("x")));
  std::string expected = "x";
  for (int i = 0; i < 4; ++i) {
    if (i % 2 == 0)
      proxy.lose_answer("record_put");
    else
      proxy.lose_message("record_put");
    expected += 'y';
    EXPECT_OK(a.store->update_shared_meta(kName, append("y")));
    EXPECT_TRUE(proxy.has_cut());
    EXPECT_EQ(b.value(), expected);
  }
}

TEST_F(PostgresRecordsTest, RepliesAreSharedAndBelongToReplicasThatLive) {
  using Outcome = SharedReply::Outcome;
  constexpr std::chrono::hours kDay{24};
  constexpr std::chrono::milliseconds kLease{1500};
  const auto a = catalog(server->url(), kLease), b = catalog(server->url(), kLease);
  const Digest slot = sha256("slot"), body = sha256("body");
  EXPECT_EQ(a->replies().begin(slot, body, kDay)->outcome, Outcome::kFirst);
  EXPECT_EQ(b->replies().begin(slot, body, kDay)->outcome, Outcome::kInProgress);
  EXPECT_EQ(b->replies().begin(slot, sha256("another"), kDay)->outcome, Outcome::kMismatch);
  EXPECT_EQ(b->replies().complete(slot, "not its own").code(), Code::kFailedPrecondition);
  ASSERT_OK(b->replies().forget(slot));
  const std::string reply("a reply\0\xff", 9);
  ASSERT_OK(a->replies().complete(slot, reply));
  ASSERT_OK(a->replies().forget(slot));
  const auto again = b->replies().begin(slot, body, kDay);
  ASSERT_OK(again);
  EXPECT_EQ(again->outcome, Outcome::kReplay);
  EXPECT_EQ(again->reply, reply);

  // A replica that dies leaves its requests to the others.
  const Digest other = sha256("other");
  EXPECT_EQ(a->replies().begin(other, body, kDay)->outcome, Outcome::kFirst);
  EXPECT_EQ(b->replies().begin(other, body, kDay)->outcome, Outcome::kInProgress);
  EXPECT_TRUE(
      soon([&] { return b->replies().begin(other, body, kDay)->outcome == Outcome::kFirst; }));
  EXPECT_EQ(a->replies().complete(other, "too late").code(), Code::kFailedPrecondition);
  EXPECT_EQ(a->replies().begin(other, body, kDay)->outcome, Outcome::kInProgress);
  ASSERT_OK(b->replies().forget(other));
  EXPECT_EQ(a->replies().begin(other, body, kDay)->outcome, Outcome::kFirst);

  // What is older than a reply lasts is begun anew, and purged.
  ASSERT_OK(server->run("UPDATE quire_replies SET at = now() - interval '25 hours'"));
  EXPECT_EQ(b->replies().begin(slot, sha256("another"), kDay)->outcome, Outcome::kFirst);
  ASSERT_OK(b->replies().purge(kDay));
  EXPECT_EQ(b->replies().begin(other, body, kDay)->outcome, Outcome::kFirst);
  EXPECT_EQ(a->replies().begin(slot, body, kDay)->outcome, Outcome::kMismatch);
}

TEST_F(PostgresRecordsTest, WhatHungChangesNothingForARequestThatAnotherHasByNow) {
  using Outcome = SharedReply::Outcome;
  constexpr std::chrono::hours kDay{24};
  const auto a = catalog(server->url()), b = catalog(server->url());
  const Digest slot = sha256("slot"), later = sha256("later"), body = sha256("body");
  const auto put = [](SharedCatalog& catalog, std::uint64_t expected) {
    CatalogPut p;
    p.ns = "default";
    p.id = "d";
    p.head = "head";
    p.tokens = "tokens";
    p.text = "text";
    return catalog.put(p, expected);
  };
  const auto add = [](SharedCatalog& catalog, const std::string& id) {
    SharedJob job;
    job.id = id;
    job.ns = "default";
    const SharedJobPart part{"text/1", "text"};
    return catalog.jobs().add(job, {&part, 1});
  };
  const auto hang = [&] {
    ASSERT_OK(server->run("UPDATE quire_replies SET at = now() - interval '1 hour'"));
    ASSERT_OK(server->run("UPDATE quire_replicas SET until = now() - interval '1 hour'"));
  };
  std::uint64_t made = 0;
  EXPECT_EQ(a->replies().begin(slot, body, kDay)->outcome, Outcome::kFirst);
  {
    const RequestFence fence(slot);
    const auto number = put(*a, 0);
    ASSERT_OK(number);
    made = *number;
    ASSERT_OK(add(*a, "job_1"));
    ASSERT_OK(a->records().put("r", "x", 0));
    ASSERT_OK(a->bar("default", "none"));
  }
  EXPECT_EQ(a->jobs().parts("job_1", "", 9)->size(), 1u);
  hang();
  EXPECT_EQ(b->replies().begin(slot, body, kDay)->outcome, Outcome::kFirst);
  {
    const RequestFence fence(slot);
    EXPECT_TRUE(catalog_is_away(put(*a, made).status()));
    EXPECT_TRUE(catalog_is_away(a->remove("default", "d", made, /*expired=*/false).status()));
    EXPECT_TRUE(catalog_is_away(a->bar("default", "another")));
    EXPECT_TRUE(catalog_is_away(add(*a, "job_2")));
    EXPECT_TRUE(catalog_is_away(a->records().put("r", "y", 1)));
    EXPECT_TRUE(catalog_is_away(a->records().put("s", "y", 0)));
    const auto again = put(*b, made);
    ASSERT_OK(again);
    made = *again;
  }
  EXPECT_EQ(a->jobs().get("job_2").code(), Code::kNotFound);
  EXPECT_TRUE(a->jobs().parts("job_2", "", 9)->empty());
  EXPECT_EQ(a->records().get("r")->value, "x");
  EXPECT_EQ(a->records().get("s")->revision, 0u);
  EXPECT_EQ(server->run("SELECT count(*) FROM quire_deletions").value().at(0).number(0, 0), 1u);
  EXPECT_OK(put(*a, made)) << "other requests go on";

  // A change that is made keeps the request for the time of a lease.
  EXPECT_EQ(a->replies().begin(later, body, kDay)->outcome, Outcome::kFirst);
  hang();
  {
    const RequestFence fence(later);
    ASSERT_OK(a->records().put("r", "z", 1));
  }
  EXPECT_EQ(b->replies().begin(later, body, kDay)->outcome, Outcome::kInProgress);
}

TEST_F(PostgresRecordsTest, OfManyReplicasOneIsFirst) {
  const Digest slot = sha256("slot"), body = sha256("body");
  std::vector<std::unique_ptr<SharedCatalog>> replicas;
  for (int i = 0; i < 6; ++i) replicas.push_back(catalog(server->url()));
  std::atomic<int> first{0};
  std::vector<std::future<void>> requests;
  for (const auto& r : replicas)
    requests.push_back(std::async(std::launch::async, [&] {
      const auto found = r->replies().begin(slot, body, std::chrono::hours(24));
      EXPECT_OK(found);
      first += found->outcome == SharedReply::Outcome::kFirst;
    }));
  requests.clear();
  EXPECT_EQ(first, 1);
}

}  // namespace
}  // namespace quire
