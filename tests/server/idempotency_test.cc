#include "server/idempotency.h"

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

}  // namespace
}  // namespace quire
