// A prefill is submitted once the shared tiers were asked, whatever they said, unless it was
// stopped.
#include "engine/schedule/prefill_recall.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/support/harness/memory_remote.h"
#include "tests/support/harness/remote_replica.h"

namespace quire {
namespace {

class PrefillRecallTest : public ::testing::Test {
 protected:
  PrefillRecallTest() : a(open()), b(open()) {}

  std::unique_ptr<AdminStore> open() {
    StoreOptions options;
    options.remote.write_through = true;
    RemoteCache::Tiers tiers;
    tiers.push_back(std::make_unique<test::MemoryRemote>(shared));
    auto opened = open_store_on(
        options, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()),
        std::move(tiers));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    return std::move(*opened);
  }
  static PrefillRequest request() {
    PrefillRequest r;
    r.token_ids = {1, 2, 3};
    return r;
  }

  std::shared_ptr<test::MemoryShared> shared = std::make_shared<test::MemoryShared>();
  std::unique_ptr<AdminStore> a, b;
};

TEST_F(PrefillRecallTest, WhatWasFoundIsInTheStoreUntilThePrefillIsDone) {
  ASSERT_OK(test::put_document(*a, "d", {1}));
  std::promise<PrefillTask::Done> submitted;
  PrefillRecall recall(*b, [&](const ContextKey& key, PrefillRequest r, PrefillTask::Done done) {
    EXPECT_EQ(key, test::key_of(1));
    EXPECT_EQ(r.token_ids, request().token_ids);
    submitted.set_value(std::move(done));
  });
  bool ended = false;
  recall.start(test::recall_of(1), request(), [&](Result<PrefillResult> r) {
    ended = true;
    EXPECT_OK(r);
  });
  PrefillTask::Done done = submitted.get_future().get();
  EXPECT_TRUE(b->peek_segment(test::key_of(1)));
  done(PrefillResult());
  EXPECT_TRUE(ended);
}

TEST_F(PrefillRecallTest, AMissIsSubmittedToo) {
  std::promise<PrefillTask::Done> submitted;
  PrefillRecall recall(*b, [&](const ContextKey&, PrefillRequest, PrefillTask::Done done) {
    submitted.set_value(std::move(done));
  });
  recall.start(test::recall_of(1), request(), [](const Result<PrefillResult>&) {});
  submitted.get_future().wait();
  EXPECT_FALSE(b->peek_segment(test::key_of(1)));
}

TEST_F(PrefillRecallTest, StoppingEndsWhatWaitsAndSubmitsNothing) {
  std::promise<void> go;
  auto gone = go.get_future().share();
  shared->fault = [gone](std::string_view) { return gone.wait(), Status(); };
  PrefillRecall recall(*b, [](const ContextKey&, PrefillRequest, const PrefillTask::Done&) {
    ADD_FAILURE() << "it was stopped";
  });
  int ended = 0;
  const auto unavailable = [&](const Result<PrefillResult>& r) {
    ++ended;
    EXPECT_EQ(r.code(), Code::kUnavailable);
  };
  recall.start(test::recall_of(1), request(), unavailable);
  recall.stop();
  EXPECT_EQ(ended, 1);
  recall.start(test::recall_of(2), request(), unavailable);
  EXPECT_EQ(ended, 2);
  go.set_value();
  b.reset();  // the reply arrives before the store is closed
}

}  // namespace
}  // namespace quire
