#include "server/access/idempotency.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Outcome = IdempotencyStore::Outcome;

HttpResponse reply(const std::string& body) {
  HttpResponse r;
  r.body = body;
  return r;
}

TEST(Idempotency, FirstRunsThenReplays) {
  IdempotencyStore s({});
  EXPECT_EQ(s.begin("k", sha256("body")).outcome, Outcome::kFirst);
  EXPECT_EQ(s.begin("k", sha256("body")).outcome, Outcome::kInProgress);
  EXPECT_EQ(s.begin("k", sha256("other")).outcome, Outcome::kMismatch);
  s.complete("k", reply("done"));
  const auto again = s.begin("k", sha256("body"));
  ASSERT_EQ(again.outcome, Outcome::kReplay);
  EXPECT_EQ(again.reply->body, "done");
  EXPECT_EQ(s.begin("k", sha256("other")).outcome, Outcome::kMismatch);
}

TEST(Idempotency, ForgettingLetsTheNextBeFirstButKeepsReplies) {
  IdempotencyStore s({});
  (void)s.begin("k", sha256("b"));
  s.forget("k");
  EXPECT_EQ(s.begin("k", sha256("b")).outcome, Outcome::kFirst);
  s.complete("k", reply("x"));
  s.forget("k");
  EXPECT_EQ(s.begin("k", sha256("b")).outcome, Outcome::kReplay);
}

TEST(Idempotency, RepliesAgeOut) {
  IdempotencyStore::Clock::time_point now{};
  IdempotencyStore s({}, [&] { return now; });
  (void)s.begin("k", sha256("b"));
  s.complete("k", reply("x"));
  now += std::chrono::hours(23);
  EXPECT_EQ(s.begin("k", sha256("b")).outcome, Outcome::kReplay);
  now += std::chrono::hours(2);
  EXPECT_EQ(s.begin("k", sha256("b")).outcome, Outcome::kFirst);
}

TEST(Idempotency, SizeIsBoundedAndRunningEntriesStay) {
  IdempotencyStore::Options o;
  o.max_entries = 10;
  IdempotencyStore s(o);
  (void)s.begin("running", sha256("b"));
  for (int i = 0; i < 100; ++i) {
    (void)s.begin(std::to_string(i), sha256("b"));
    s.complete(std::to_string(i), reply("x"));
  }
  EXPECT_LE(s.size(), 11u);
  EXPECT_EQ(s.begin("running", sha256("b")).outcome, Outcome::kInProgress);
  EXPECT_EQ(s.begin("99", sha256("b")).outcome, Outcome::kReplay);
}

TEST(Idempotency, RepliesToWhatChangedSomethingLiveOverARestart) {
  using Keep = IdempotencyStore::Keep;
  IdempotencyStore::Clock::time_point now{};
  const auto clock = [&] { return now; };
  IdempotencyStore before({}, clock);
  for (const char* slot : {"old", "new", "query", "running"}) {
    (void)before.begin(slot, sha256(slot));
    now += std::chrono::hours(1);
  }
  HttpResponse r = reply("made\n");
  r.status = 202;
  r.content_type = "application/json";
  r.headers.set("Location", "/v1/jobs/j");
  before.complete("old", reply("x"), Keep::kRestart);
  before.complete("new", r, Keep::kRestart);
  before.complete("query", reply("an answer"));
  const std::string saved = before.save(1'000, 1 << 20);
  EXPECT_EQ(saved.find("an answer"), std::string::npos);

  now += std::chrono::hours(1000);  // another process has a different clock
  constexpr std::int64_t kHourMs = 3'600'000;
  IdempotencyStore after({}, clock);
  ASSERT_TRUE(after.restore(saved, 1'000 + 20 * kHourMs).ok());
  EXPECT_EQ(after.size(), 2u);
  const auto again = after.begin("new", sha256("new"));
  ASSERT_EQ(again.outcome, Outcome::kReplay);
  EXPECT_EQ(again.reply->status, 202);
  EXPECT_EQ(again.reply->content_type, "application/json");
  EXPECT_EQ(again.reply->headers.get("location"), "/v1/jobs/j");
  EXPECT_EQ(again.reply->body, "made\n");
  EXPECT_EQ(after.begin("new", sha256("other")).outcome, Outcome::kMismatch);
  now += std::chrono::minutes(30);
  EXPECT_EQ(after.begin("old", sha256("old")).outcome, Outcome::kFirst) << "24 hours are over";
  EXPECT_EQ(after.begin("new", sha256("new")).outcome, Outcome::kReplay);

  IdempotencyStore late({}, clock);
  ASSERT_TRUE(late.restore(saved, 1'000 + 30 * kHourMs).ok());
  EXPECT_EQ(late.size(), 0u);
  IdempotencyStore busy({}, clock);
  (void)busy.begin("new", sha256("new"));
  ASSERT_TRUE(busy.restore(saved, 1'000).ok());
  EXPECT_EQ(busy.begin("new", sha256("new")).outcome, Outcome::kInProgress);
  EXPECT_LT(before.save(1'000, 1000).size(), saved.size()) << "the newest fit";
}

TEST(Idempotency, DamagedRecordsAreRefusedWhole) {
  IdempotencyStore before({});
  (void)before.begin("k", sha256("b"));
  before.complete("k", reply("x"), IdempotencyStore::Keep::kRestart);
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

}  // namespace
}  // namespace quire
