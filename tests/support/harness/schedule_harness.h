/// An engine whose thread a test can hold while it queues work.
#pragma once

#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;

class ScheduleTest : public ::testing::Test {
 protected:
  ScheduleTest() : real_(open_test_store(folder_.path() / "store")), store_(real_) { start(); }
  ~ScheduleTest() override { stop_engine(); }

  void start(const std::function<void(EngineOptions&)>& edit = {}) {
    stop_engine();
    engine_ = make_test_engine(model_.path(), store_, edit);
  }
  void stop_engine() {
    store_.release();
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_.reset();
  }
  QueryRequest plain(std::size_t n = 5, const std::string& tenant = "t") {
    QueryRequest r = make_request(*engine_, {}, random_ids(rng_, n), "recompute");
    r.tenant = tenant;
    return r;
  }
  std::shared_ptr<CollectingSink> submit(QueryRequest request) {
    auto sink = std::make_shared<CollectingSink>();
    return submit(std::move(request), sink).ok() ? sink : nullptr;
  }
  Result<QueryHandle> submit(QueryRequest request, const std::shared_ptr<CollectingSink>& sink) {
    auto handle = engine_->query(std::move(request), sink);
    EXPECT_TRUE(handle.ok()) << handle.status().to_string();
    return handle;
  }
  /// Submits a query that holds the engine thread until `gate` opens. Returns once the thread waits
  /// there.
  std::shared_ptr<CollectingSink> block(Gate& gate) {
    auto sink = std::make_shared<CollectingSink>();
    auto there = std::make_shared<Gate>();
    sink->at_token = [&gate, there](int) {
      there->open();
      gate.pass();
      return true;
    };
    QueryRequest r = plain(4, "blocker");
    r.id = "qry_blocker";
    r.sampling.max_tokens = 2;
    (void)submit(std::move(r), sink);
    there->pass();
    return sink;
  }

  std::mt19937 rng_{23};
  TempFolder folder_;
  RandomModelFolder model_;
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace quire::testing
