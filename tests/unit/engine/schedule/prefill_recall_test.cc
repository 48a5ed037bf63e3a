// A prefill is submitted once the shared tiers were asked, whatever they said, unless it was
// stopped.
#include "engine/schedule/prefill_recall.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stop_token>
#include <thread>

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

TEST_F(PrefillRecallTest, WhatAnotherReplicaComputesIsSubmittedOnceItIsThere) {
  shared->leases = true;
  a = open();
  b = open();
  std::promise<PrefillTask::Done> at_a, at_b;
  PrefillRecall first(*a, [&](const ContextKey&, PrefillRequest, PrefillTask::Done done) {
    at_a.set_value(std::move(done));
  });
  PrefillRecall second(*b, [&](const ContextKey&, PrefillRequest, PrefillTask::Done done) {
    at_b.set_value(std::move(done));
  });
  first.start(test::recall_of(1), request(), [](const Result<PrefillResult>&) {});
  PrefillTask::Done computed = at_a.get_future().get();
  second.start(test::recall_of(1), request(), [](const Result<PrefillResult>&) {});
  while (shared->takes < 3) std::this_thread::yield();
  auto submitted = at_b.get_future();
  EXPECT_EQ(submitted.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  PrefillResult result;
  auto segment = test::put_segment(*a, 1);
  ASSERT_OK(segment);
  result.segment = *segment;
  computed(std::move(result));
  const PrefillTask::Done done = submitted.get();
  EXPECT_TRUE(b->peek_segment(test::key_of(1)));
  EXPECT_EQ(b->remote_stats().leases.spared, 1u);
}

TEST_F(PrefillRecallTest, ContextsThatGoOnFromOneAnotherHaveOneTurn) {
  shared->leases = true;
  a = open();
  std::atomic<int> submitted{0};
  std::vector<PrefillTask::Done> running(3);
  PrefillRecall recall(*a, [&](const ContextKey&, PrefillRequest, PrefillTask::Done done) {
    running[static_cast<std::size_t>(submitted.load())] = std::move(done);
    ++submitted;
  });
  PrefillRequest first, second, other;
  for (std::int32_t t = 0; t < 200; ++t) {
    first.token_ids.push_back(t);
    other.token_ids.push_back(t + 1);
  }
  second.left_context = first.token_ids;
  second.token_ids = {7, 8, 9};
  const auto leases = [&] {
    const std::lock_guard lock(shared->mu);
    return shared->held.size();
  };
  const auto run = [&](std::uint64_t key, const PrefillRequest& r) {
    const int before = submitted;
    recall.start(test::recall_of(key), r, [](const Result<PrefillResult>&) {});
    while (submitted == before) std::this_thread::yield();
  };
  run(1, first);
  run(2, second);
  EXPECT_EQ(leases(), 1u);
  run(3, other);
  EXPECT_EQ(leases(), 2u);
  EXPECT_EQ(a->remote_stats().leases.own, 3u);
}

TEST_F(PrefillRecallTest, AFailedPrefillEndsItsTurn) {
  shared->leases = true;
  a = open();
  b = open();
  std::promise<PrefillTask::Done> at_a;
  auto first = std::make_unique<PrefillRecall>(
      *a, [&](const ContextKey&, PrefillRequest, PrefillTask::Done done) {
        at_a.set_value(std::move(done));
      });
  first->start(test::recall_of(1), request(), [](const Result<PrefillResult>&) {});
  const PrefillTask::Done failing = at_a.get_future().get();
  std::promise<void> at_b;
  PrefillRecall second(*b, [&](const ContextKey&, const PrefillRequest&, const PrefillTask::Done&) {
    at_b.set_value();
  });
  second.start(test::recall_of(1), request(), [](const Result<PrefillResult>&) {});
  failing(Status::exhausted("no memory"));
  at_b.get_future().wait();
  EXPECT_EQ(b->remote_stats().leases.own, 1u);
}

TEST_F(PrefillRecallTest, ACancelledOneDoesNotWaitForAnotherReplica) {
  shared->leases = true;
  a = open();
  b = open();
  std::promise<void> at_a, at_b;
  PrefillRecall first(*a, [&](const ContextKey&, const PrefillRequest&, const PrefillTask::Done&) {
    at_a.set_value();  // and it computes for ever
  });
  PrefillRecall second(*b,
                       [&](const ContextKey&, const PrefillRequest& r, const PrefillTask::Done&) {
                         EXPECT_TRUE(r.cancelled.stop_requested());
                         at_b.set_value();
                       });
  first.start(test::recall_of(1), request(), [](const Result<PrefillResult>&) {});
  at_a.get_future().wait();
  std::stop_source cancelled;
  PrefillRequest wanted = request();
  wanted.cancelled = cancelled.get_token();
  second.start(test::recall_of(1), std::move(wanted), [](const Result<PrefillResult>&) {});
  while (shared->takes < 3) std::this_thread::yield();
  auto submitted = at_b.get_future();
  EXPECT_EQ(submitted.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  cancelled.request_stop();
  submitted.wait();
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
