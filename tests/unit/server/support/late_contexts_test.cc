// KV that a query lacked is computed behind its answer. Where it cannot be kept, later queries do
// not compute it in vain until a pause is over.
#include "server/support/late_contexts.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "tests/support/fake_engine.h"
#include "tests/support/faulty_store.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

class LateContextsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions o;
    o.path = (folder_.path() / "store").string();
    auto opened = open_store(o);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    inner_ = std::move(*opened);
    store_ = std::make_unique<test::FaultyStore>(inner_);
    engine_ = std::make_unique<test::FakeEngine>(*inner_);
    set_log_sink(
        [this](LogLevel, std::string_view, std::initializer_list<LogField>) {
          const std::lock_guard lock(log_mu_);
          ++warnings_;
        },
        LogLevel::kWarning);
  }
  void TearDown() override {
    engine_->stop(std::chrono::milliseconds(0));
    workers_.stop();
    set_log_sink(nullptr, LogLevel::kWarning);
  }

  /// Each asks about a text of its own, which has no KV.
  QueryRequest request() {
    QueryRequest r;
    r.cache.strategy = "auto";
    QueryContext context;
    context.token_ids = {1, 2, next_id_++};
    context.key = engine_->names().context_key(context.token_ids, r.tenant, r.salt_digest);
    r.contexts.push_back(std::move(context));
    return r;
  }
  std::unique_ptr<LateContexts> missing() { return LateContexts::of(request(), *store_, *pause_); }
  void compute(std::unique_ptr<LateContexts> late) {
    late->compute(*engine_, *store_, workers_, pause_);
  }
  /// Ends engine and workers once `n` attempts to keep KV were made.
  void finish(int n) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (store_->writes() < n && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(store_->writes(), n);
    engine_->stop(std::chrono::milliseconds(0));
    workers_.stop();
  }
  std::size_t warnings() {
    const std::lock_guard lock(log_mu_);
    return warnings_;
  }

  testing::TempFolder folder_;
  std::unique_ptr<Store> inner_;
  std::unique_ptr<test::FaultyStore> store_;
  WorkerPool workers_{1, 16};
  std::unique_ptr<test::FakeEngine> engine_;
  const std::shared_ptr<LatePause> pause_ = std::make_shared<LatePause>();
  std::int32_t next_id_ = 3;
  std::mutex log_mu_;
  std::size_t warnings_ = 0;  // guarded by log_mu_
};

TEST_F(LateContextsTest, WhatIsKeptBeginsNoPause) {
  compute(missing());
  finish(1);
  EXPECT_EQ(engine_->prefills(), 1);
  EXPECT_TRUE(pause_->is_over());
  EXPECT_NE(missing(), nullptr);
  EXPECT_EQ(warnings(), 0u);
}

TEST_F(LateContextsTest, AFullDiskCostsOneLineAMinute) {
  store_->fail_at(0, Status::exhausted("the disk is full"), 1000);
  compute(missing());
  compute(LateContexts::of(request(), *store_, LatePause()));  // of a query at the same time
  finish(2);
  EXPECT_EQ(missing(), nullptr) << "later queries compute nothing in vain";
  EXPECT_EQ(warnings(), 1u);
  const auto later = LatePause::Clock::now() + LatePause::kLength + std::chrono::seconds(1);
  EXPECT_TRUE(pause_->is_over(later));
  EXPECT_TRUE(pause_->begin(later));
}

TEST_F(LateContextsTest, SoManyWaitAndNoMore) {
  for (int i = 0; i < LatePause::kMostWaiting; ++i) EXPECT_TRUE(pause_->take_place());
  compute(missing());
  EXPECT_EQ(engine_->prefills(), 0);
  pause_->leave_place();
  compute(missing());
  finish(1);
  EXPECT_EQ(engine_->prefills(), 1);
  for (int i = 0; i < LatePause::kMostWaiting - 1; ++i) pause_->leave_place();
  EXPECT_EQ(warnings(), 0u);
}

TEST_F(LateContextsTest, WhatItsDocumentDoesNotNameIsNotComputed) {
  engine_->close();
  for (int i = 0; i < LatePause::kMostWaiting - 1; ++i) EXPECT_TRUE(pause_->take_place());
  QueryRequest stale = request();
  stale.contexts[0].key = sha256("of another model");
  compute(LateContexts::of(stale, *store_, *pause_));
  EXPECT_TRUE(pause_->take_place()) << "nothing waits";
}

TEST_F(LateContextsTest, WhatIsReadWithoutTextsThatVanishedIsNotComputed) {
  QueryRequest r = request();
  ASSERT_NE(LateContexts::of(r, *store_, *pause_), nullptr);
  r.contexts[0].unnamed = true;
  EXPECT_EQ(LateContexts::of(r, *store_, *pause_), nullptr);
}

TEST_F(LateContextsTest, OtherStrategiesDoAsTheirNamesSay) {
  QueryRequest r = request();
  r.cache.strategy = "recompute";
  EXPECT_EQ(LateContexts::of(r, *store_, *pause_), nullptr);
}

TEST_F(LateContextsTest, ARequestThatStoresNothingLeavesNothingToCompute) {
  QueryRequest r = request();
  ASSERT_NE(LateContexts::of(r, *store_, *pause_), nullptr);
  r.cache.write = false;
  EXPECT_EQ(LateContexts::of(r, *store_, *pause_), nullptr);
}

}  // namespace
}  // namespace quire
