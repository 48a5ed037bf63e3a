#include "server/access/idempotency.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/harness/memory_records.h"
#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using test::MemoryReplies;

using Outcome = IdempotencyStore::Outcome;

HttpResponse reply(const std::string& body) {
  HttpResponse r;
  r.body = body;
  return r;
}

TEST(Idempotency, FirstRunsThenReplays) {
  IdempotencyStore s({});
  EXPECT_EQ(s.begin("k", sha256("body"))->outcome, Outcome::kFirst);
  EXPECT_EQ(s.begin("k", sha256("body"))->outcome, Outcome::kInProgress);
  EXPECT_EQ(s.begin("k", sha256("other"))->outcome, Outcome::kMismatch);
  (void)s.complete("k", reply("done"));
  const auto again = s.begin("k", sha256("body"));
  ASSERT_EQ(again->outcome, Outcome::kReplay);
  EXPECT_EQ(again->reply->body, "done");
  EXPECT_EQ(s.begin("k", sha256("other"))->outcome, Outcome::kMismatch);
}

TEST(Idempotency, ForgettingLetsTheNextBeFirstButKeepsReplies) {
  IdempotencyStore s({});
  (void)s.begin("k", sha256("b"));
  s.forget("k");
  EXPECT_EQ(s.begin("k", sha256("b"))->outcome, Outcome::kFirst);
  (void)s.complete("k", reply("x"));
  s.forget("k");
  EXPECT_EQ(s.begin("k", sha256("b"))->outcome, Outcome::kReplay);
}

TEST(Idempotency, RepliesAgeOut) {
  IdempotencyStore::Clock::time_point now{};
  IdempotencyStore s({}, [&] { return now; });
  (void)s.begin("k", sha256("b"));
  (void)s.complete("k", reply("x"));
  now += std::chrono::hours(23);
  EXPECT_EQ(s.begin("k", sha256("b"))->outcome, Outcome::kReplay);
  now += std::chrono::hours(2);
  EXPECT_EQ(s.begin("k", sha256("b"))->outcome, Outcome::kFirst);
}

TEST(Idempotency, SizeIsBoundedAndRunningEntriesStay) {
  IdempotencyStore::Options o;
  o.max_entries = 10;
  IdempotencyStore s(o);
  (void)s.begin("running", sha256("b"));
  for (int i = 0; i < 100; ++i) {
    (void)s.begin(std::to_string(i), sha256("b"));
    (void)s.complete(std::to_string(i), reply("x"));
  }
  EXPECT_LE(s.size(), 11u);
  EXPECT_EQ(s.begin("running", sha256("b"))->outcome, Outcome::kInProgress);
  EXPECT_EQ(s.begin("99", sha256("b"))->outcome, Outcome::kReplay);
}

TEST(Idempotency, RepliesToWhatChangedSomethingLiveOverARestart) {
  using Keep = IdempotencyStore::Keep;
  IdempotencyStore::Clock::time_point now{};
  const auto clock = [&] { return now; };
  IdempotencyStore before({}, clock);
  for (const std::string slot : {"old", "new", "query", "running"}) {
    (void)before.begin(slot, sha256(slot), slot == "query" ? Keep::kRunning : Keep::kRestart);
    now += std::chrono::hours(1);
  }
  HttpResponse r = reply("made\n");
  r.status = 202;
  r.content_type = "application/json";
  r.headers.set("Location", "/v1/jobs/j");
  (void)before.complete("old", reply("x"));
  (void)before.complete("new", r);
  (void)before.complete("query", reply("an answer"));
  const std::string saved = before.save(1'000, 1 << 20);
  EXPECT_EQ(saved.find("an answer"), std::string::npos);

  now += std::chrono::hours(1000);  // another process has a different clock
  constexpr std::int64_t kHourMs = 3'600'000;
  IdempotencyStore after({}, clock);
  ASSERT_TRUE(after.restore(saved, 1'000 + 20 * kHourMs).ok());
  EXPECT_EQ(after.size(), 2u);
  const auto again = after.begin("new", sha256("new"));
  ASSERT_EQ(again->outcome, Outcome::kReplay);
  EXPECT_EQ(again->reply->status, 202);
  EXPECT_EQ(again->reply->content_type, "application/json");
  EXPECT_EQ(again->reply->headers.get("location"), "/v1/jobs/j");
  EXPECT_EQ(again->reply->body, "made\n");
  EXPECT_EQ(after.begin("new", sha256("other"))->outcome, Outcome::kMismatch);
  now += std::chrono::minutes(30);
  EXPECT_EQ(after.begin("old", sha256("old"))->outcome, Outcome::kFirst) << "24 hours are over";
  EXPECT_EQ(after.begin("new", sha256("new"))->outcome, Outcome::kReplay);

  IdempotencyStore late({}, clock);
  ASSERT_TRUE(late.restore(saved, 1'000 + 30 * kHourMs).ok());
  EXPECT_EQ(late.size(), 0u);
  IdempotencyStore busy({}, clock);
  (void)busy.begin("new", sha256("new"));
  ASSERT_TRUE(busy.restore(saved, 1'000).ok());
  EXPECT_EQ(busy.begin("new", sha256("new"))->outcome, Outcome::kInProgress);
  EXPECT_LT(before.save(1'000, 1000).size(), saved.size()) << "the newest fit";
}

TEST(Idempotency, DamagedRecordsAreRefusedWhole) {
  IdempotencyStore before({});
  (void)before.begin("k", sha256("b"), IdempotencyStore::Keep::kRestart);
  (void)before.complete("k", reply("x"));
  const std::string saved = before.save(0, 1 << 20);
  for (std::size_t n = 0; n < saved.size(); ++n) {
    IdempotencyStore s({});
    EXPECT_EQ(s.restore(std::string_view(saved).substr(0, n), 0).code(), Code::kCorruption) << n;
    EXPECT_EQ(s.size(), 0u);
  }
  IdempotencyStore s({});
  EXPECT_EQ(s.restore(saved + "x", 0).code(), Code::kCorruption);
  EXPECT_TRUE(s.restore(saved, 0).ok());
  EXPECT_EQ(s.size(), 1u);
}

/// Two replicas of one catalog.
struct SharedIdempotency : ::testing::Test {
  using Store = IdempotencyStore;
  SharedIdempotency() {
    a.share(&replies_a);
    b.share(&replies_b);
  }
  static Outcome begin(Store& store, const std::string& slot, const std::string& body = "b",
                       Store::Keep keep = Store::Keep::kRestart) {
    const auto found = store.begin(slot, sha256(body), keep);
    EXPECT_OK(found);
    return found->outcome;
  }
  Status call() const { return away ? catalog_away("it is away in this test") : Status(); }

  MemoryReplies::Table table;
  bool away = false;
  MemoryReplies replies_a{table, "a", [this] { return call(); }};
  MemoryReplies replies_b{table, "b", [this] { return call(); }};
  Store a{{}}, b{{}};
};

TEST_F(SharedIdempotency, ARepetitionAtAnotherReplicaHasTheFirstReply) {
  EXPECT_EQ(begin(a, "k"), Outcome::kFirst);
  EXPECT_EQ(begin(b, "k"), Outcome::kInProgress);
  EXPECT_EQ(begin(b, "k", "another"), Outcome::kMismatch);
  HttpResponse made = reply("made\n");
  made.status = 202;
  made.headers.set("Location", "/v1/jobs/j");
  (void)a.complete("k", made);
  EXPECT_EQ(begin(b, "k", "another"), Outcome::kMismatch);
  for (int i = 0; i < 2; ++i) {  // from the catalog, and then from its own memory
    const auto again = b.begin("k", sha256("b"), IdempotencyStore::Keep::kRestart);
    ASSERT_EQ(again->outcome, Outcome::kReplay);
    EXPECT_EQ(again->reply->status, 202);
    EXPECT_EQ(again->reply->headers.get("location"), "/v1/jobs/j");
    EXPECT_EQ(again->reply->body, "made\n");
    away = true;
  }
}

TEST_F(SharedIdempotency, WhoIsFirstIsToldWhetherTheCatalogKnowsOfIt) {
  EXPECT_TRUE(a.begin("k", sha256("b"), Store::Keep::kRestart)->shared);
  EXPECT_FALSE(a.begin("l", sha256("b"), Store::Keep::kRunning)->shared);
}

TEST_F(SharedIdempotency, WhatChangesNothingIsNotShared) {
  EXPECT_EQ(begin(a, "k", "b", IdempotencyStore::Keep::kRunning), Outcome::kFirst);
  (void)a.complete("k", reply("an answer"));
  EXPECT_EQ(begin(b, "k", "b", IdempotencyStore::Keep::kRunning), Outcome::kFirst);
  EXPECT_TRUE(table.all().empty());
}

TEST_F(SharedIdempotency, ARequestThatFailedMayComeAgainAnywhere) {
  EXPECT_EQ(begin(a, "k"), Outcome::kFirst);
  a.forget("k");
  EXPECT_EQ(begin(b, "k"), Outcome::kInProgress) << "it is told about a second later";
  EXPECT_OK(a.settle());
  EXPECT_EQ(begin(b, "k"), Outcome::kFirst);
  EXPECT_OK(a.settle());
  EXPECT_EQ(begin(a, "k"), Outcome::kInProgress) << "it is the other's now";
  b.forget("k");
  EXPECT_EQ(begin(b, "k"), Outcome::kFirst) << "its own it knows at once";
  EXPECT_OK(b.settle());
  EXPECT_EQ(begin(a, "k"), Outcome::kInProgress) << "the repetition that runs is not forgotten";
}

TEST_F(SharedIdempotency, ARequestOfAReplicaThatDiedRunsAgain) {
  EXPECT_EQ(begin(a, "k"), Outcome::kFirst);
  table.forget_replica("a");
  EXPECT_EQ(begin(b, "k"), Outcome::kFirst);
  EXPECT_EQ(a.complete("k", reply("too late")).code(), Code::kFailedPrecondition);
  EXPECT_EQ(begin(b, "k"), Outcome::kInProgress);
  EXPECT_EQ(begin(a, "k"), Outcome::kInProgress) << "what the other replies counts";
  EXPECT_OK(b.complete("k", reply("done")));
  EXPECT_EQ(a.begin("k", sha256("b"), IdempotencyStore::Keep::kRestart)->reply->body, "done");
}

TEST_F(SharedIdempotency, ABeginWhoseAnswerIsLostIsFreedAgain) {
  table.lose_answer = true;
  EXPECT_TRUE(
      catalog_is_away(a.begin("k", sha256("b"), IdempotencyStore::Keep::kRestart).status()));
  EXPECT_EQ(begin(b, "k"), Outcome::kInProgress);
  EXPECT_OK(a.settle());
  EXPECT_EQ(begin(b, "k"), Outcome::kFirst);
}

TEST_F(SharedIdempotency, WhatIsFreedNeverMeetsItsRepetition) {
  std::atomic<bool> stop{false};
  std::thread settles([&] {
    while (!stop) EXPECT_OK(a.settle());
  });
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(begin(a, "k"), Outcome::kFirst);
    a.forget("k");
    ASSERT_EQ(begin(a, "k"), Outcome::kFirst);
    ASSERT_EQ(table.all().size(), 1u) << "the row of the repetition is there";
    a.forget("k");
  }
  stop = true;
  settles.join();
}

TEST_F(SharedIdempotency, WhileTheCatalogIsAwayNothingBeginsAndNothingIsForgotten) {
  EXPECT_EQ(begin(a, "k"), Outcome::kFirst);
  away = true;
  EXPECT_TRUE(
      catalog_is_away(b.begin("k", sha256("b"), IdempotencyStore::Keep::kRestart).status()));
  EXPECT_TRUE(
      catalog_is_away(a.begin("n", sha256("b"), IdempotencyStore::Keep::kRestart).status()));
  EXPECT_TRUE(catalog_is_away(a.complete("k", reply("done"))));
  EXPECT_TRUE(catalog_is_away(a.settle()));
  EXPECT_TRUE(catalog_is_away(a.begin("k", sha256("b"), IdempotencyStore::Keep::kRestart).status()))
      << "who has the reply must find it again, whatever becomes of this replica";
  away = false;
  EXPECT_EQ(begin(b, "k"), Outcome::kInProgress);
  EXPECT_EQ(begin(a, "k"), Outcome::kReplay);
  EXPECT_EQ(begin(b, "k"), Outcome::kReplay) << "it was told before it was given";
  EXPECT_OK(a.settle());
  EXPECT_EQ(begin(a, "n"), Outcome::kFirst) << "what did not begin may be tried again";
  EXPECT_EQ(table.purges, 1) << "once an hour";
}

TEST_F(SharedIdempotency, TooMuchThatTheCatalogDoesNotKnowKeepsFurtherRequestsFromBeginning) {
  Store few{{.max_unreported = 3}};
  int calls = 0;
  MemoryReplies replies(table, "few", [&] { return ++calls, call(); });
  few.share(&replies);
  const auto begin_few = [&](const std::string& slot) {
    return few.begin(slot, sha256("b"), Store::Keep::kRestart).status();
  };
  away = true;
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(catalog_is_away(begin_few("k" + std::to_string(i))));
  EXPECT_EQ(calls, 3) << "only these may have begun";
  EXPECT_EQ(few.size(), 0u);
  away = false;
  EXPECT_TRUE(catalog_is_away(begin_few("k"))) << "it has yet to be told of them";
  EXPECT_OK(few.settle());
  EXPECT_OK(begin_few("k"));
}

TEST_F(SharedIdempotency, ALongReplyIsNotShared) {
  EXPECT_EQ(begin(a, "k"), Outcome::kFirst);
  (void)a.complete("k", reply(std::string(5u << 20, 'x')));
  EXPECT_EQ(begin(a, "k"), Outcome::kReplay);
  EXPECT_EQ(begin(b, "k"), Outcome::kFirst);
}

TEST_F(SharedIdempotency, ADamagedReplyIsAnErrorAndNoReply) {
  EXPECT_EQ(begin(a, "k"), Outcome::kFirst);
  (void)a.complete("k", reply("done"));
  table.replies.begin()->second.reply.pop_back();
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(b.begin("k", sha256("b"), IdempotencyStore::Keep::kRestart).code(),
              Code::kCorruption);
}

}  // namespace
}  // namespace quire
