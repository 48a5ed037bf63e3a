#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <new>
#include <thread>
#include <utility>

#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

class SchedulerTest : public ::testing::Test {
 protected:
  SchedulerTest() : real_(open_test_store(folder_.path() / "store")), store_(real_) { start(); }
  ~SchedulerTest() override { stop_engine(); }
  void start(const std::function<void(EngineOptions&)>& edit = {}) {
    stop_engine();
    engine_ = make_test_engine(model_.path(), store_, edit);
  }
  void stop_engine() {
    store_.release();
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_.reset();
  }
  /// Submits a query that waits for a held read until it is released.
  std::shared_ptr<CollectingSink> held_query() {
    auto sink = std::make_shared<CollectingSink>();
    auto handle = engine_->query(make_request(*engine_, {doc_}, random_ids(rng_, 4), "reuse"),
                                 sink);
    EXPECT_TRUE(handle.ok()) << handle.status().to_string();
    return sink;
  }
  void add_document() {
    doc_ = {"d", random_ids(rng_, 40), std::nullopt};
    doc_.key = ingest(*engine_, store_, "d", doc_.ids);
  }
  QueryRequest plain(std::size_t n = 5) {
    return make_request(*engine_, {}, random_ids(rng_, n), "recompute");
  }

  std::mt19937 rng_{17};
  TempFolder folder_;
  RandomModelFolder model_;
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
  Doc doc_;
};

TEST_F(SchedulerTest, AFullQueueRefusesAtOnce) {
  start([](EngineOptions& o) { o.max_queue = 2; });
  add_document();
  store_.hold();
  // Sixteen run (and wait for their reads), and two wait in the queue.
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::size_t accepted = 0;
  Status refused;
  while (refused.ok() && accepted < 100) {
    auto sink = std::make_shared<CollectingSink>();
    auto handle = engine_->query(make_request(*engine_, {doc_}, random_ids(rng_, 4), "reuse"),
                                 sink);
    if (handle.ok()) {
      ++accepted;
      sinks.push_back(sink);
    } else if (accepted >= 18) {
      refused = handle.status();
    } else {
      std::this_thread::yield();  // the engine thread has not taken the last one yet
    }
  }
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(accepted, 18u);
  EXPECT_EQ(engine_->load().queries_running, 16);
  EXPECT_EQ(engine_->load().queries_waiting, 2);
  store_.release();
  for (auto& s : sinks) EXPECT_TRUE(s->wait().status.ok());
}

TEST_F(SchedulerTest, AQueryThatNeverFitsIsRefusedByTheFieldsOfItsRequest) {
  start([](EngineOptions& o) { o.working_cache_bytes = 64 << 10; });
  QueryRequest alone = plain(400);
  alone.question_param = "messages";
  auto refused = engine_->query(alone, std::make_shared<CollectingSink>()).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.field(), "messages");
  EXPECT_EQ(refused.message().find("documents"), std::string::npos) << refused.message();
  QueryRequest about = make_request(*engine_, {{"d", random_ids(rng_, 400), std::nullopt}},
                                    random_ids(rng_, 4), "recompute");
  about.documents_param = "documents";
  refused = engine_->query(about, std::make_shared<CollectingSink>()).status();
  EXPECT_EQ(refused.field(), "documents");
  EXPECT_NE(refused.message().find("fewer or shorter documents"), std::string::npos);
}

TEST_F(SchedulerTest, StopLetsRunningQueriesFinishWithinTheGrace) {
  auto request = plain();
  request.sampling.max_tokens = 50;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine_->query(request, sink).ok());
  engine_->stop(std::chrono::seconds(60));
  EXPECT_TRUE(sink->done());
  EXPECT_TRUE(sink->wait().status.ok());
  EXPECT_EQ(sink->wait().ids.size(), 50u);
  EXPECT_EQ(run_query(*engine_, plain()).status.code(), Code::kUnavailable);
  EXPECT_EQ(prefill_now(*engine_, {400}).code(), Code::kUnavailable);
}

TEST_F(SchedulerTest, StopWithoutGraceEndsEverythingOnce) {
  add_document();
  store_.hold();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 20; ++i) sinks.push_back(held_query());
  engine_->stop(std::chrono::milliseconds(0));
  for (auto& s : sinks) {
    ASSERT_TRUE(s->done());
    EXPECT_EQ(s->wait().status.code(), Code::kUnavailable);
  }
  store_.release();
  engine_.reset();
}

TEST_F(SchedulerTest, StopAnswersWaitingPrefills) {
  std::vector<std::future<Result<PrefillResult>>> results;
  for (int i = 0; i < 30; ++i) {
    auto done = std::make_shared<std::promise<Result<PrefillResult>>>();
    results.push_back(done->get_future());
    PrefillRequest request;
    request.token_ids = random_ids(rng_, 300);
    engine_->prefill(std::move(request),
                     [done](Result<PrefillResult> r) { done->set_value(std::move(r)); });
  }
  engine_->stop(std::chrono::milliseconds(0));
  int refused = 0;
  for (auto& r : results) {
    ASSERT_EQ(r.wait_for(std::chrono::seconds(0)), std::future_status::ready);
    const auto result = r.get();
    if (!result.ok()) {
      EXPECT_EQ(result.code(), Code::kUnavailable);
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

/// A callback of which only the thread that made it can make copies, as if others had no memory.
class CopiedAtHome {
 public:
  explicit CopiedAtHome(std::function<void(Result<PrefillResult>)> then) : then_(std::move(then)) {}
  CopiedAtHome(const CopiedAtHome& other) : then_(other.then_), home_(other.home_) {
    if (std::this_thread::get_id() != home_) throw std::bad_alloc();
  }
  CopiedAtHome(CopiedAtHome&&) noexcept = default;
  void operator()(Result<PrefillResult> r) const { then_(std::move(r)); }

 private:
  std::function<void(Result<PrefillResult>)> then_;
  std::thread::id home_ = std::this_thread::get_id();
};

TEST_F(SchedulerTest, AContextThatThereIsNoMemoryForFailsAlone) {
  std::promise<Result<PrefillResult>> done;
  PrefillRequest request;
  request.token_ids = random_ids(rng_, 20);
  engine_->prefill(std::move(request), CopiedAtHome([&done](Result<PrefillResult> r) {
                     done.set_value(std::move(r));
                   }));
  EXPECT_EQ(done.get_future().get().code(), Code::kResourceExhausted);
  EXPECT_TRUE(run_query(*engine_, plain()).status.ok());
  EXPECT_TRUE(prefill_now(*engine_, random_ids(rng_, 20)).ok());
}

TEST_F(SchedulerTest, EqualContentInFlightIsComputedOnce) {
  const auto ids = random_ids(rng_, 200);
  Gate gate;
  store_.before_write = [&gate] { gate.pass(); };
  std::vector<std::future<Result<PrefillResult>>> results;
  for (int i = 0; i < 5; ++i) {
    auto done = std::make_shared<std::promise<Result<PrefillResult>>>();
    results.push_back(done->get_future());
    PrefillRequest request;
    request.token_ids = ids;
    engine_->prefill(std::move(request),
                     [done](Result<PrefillResult> r) { done->set_value(std::move(r)); });
  }
  // This query runs after all five submissions, so they were taken before it.
  EXPECT_TRUE(run_query(*engine_, plain()).status.ok());
  gate.open();
  int computed = 0;
  for (auto& r : results) {
    auto result = r.get();
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_TRUE(result->segment.valid());
    computed += result->already_cached ? 0 : 1;
  }
  EXPECT_EQ(store_.segments_begun(), 1);
  EXPECT_EQ(computed, 5);  // one computation answers all five
}

TEST_F(SchedulerTest, ACancelledPrefillLeavesTheOthersOfItsContent) {
  Gate gate;
  // Keeps the engine thread busy until both are queued.
  auto blocker = std::make_shared<CollectingSink>();
  blocker->at_plan = [&gate] { gate.pass(); };
  ASSERT_TRUE(engine_->query(plain(), blocker).ok());
  const auto ids = random_ids(rng_, 100);
  std::stop_source cancelled;
  cancelled.request_stop();
  std::promise<Result<PrefillResult>> a, b;
  PrefillRequest first, second;
  first.token_ids = second.token_ids = ids;
  first.cancelled = cancelled.get_token();
  engine_->prefill(std::move(first), [&a](Result<PrefillResult> r) { a.set_value(std::move(r)); });
  engine_->prefill(std::move(second), [&b](Result<PrefillResult> r) { b.set_value(std::move(r)); });
  gate.open();
  EXPECT_EQ(a.get_future().get().code(), Code::kCancelled);
  EXPECT_TRUE(b.get_future().get().ok());
  (void)blocker->wait();
}

TEST_F(SchedulerTest, PrefillReportsProgressChunkByChunk) {
  std::vector<std::int64_t> seen;
  std::promise<Result<PrefillResult>> done;
  PrefillRequest request;
  request.token_ids = random_ids(rng_, 150);
  request.on_progress = [&seen](std::int64_t n) { seen.push_back(n); };
  engine_->prefill(std::move(request),
                   [&done](Result<PrefillResult> r) { done.set_value(std::move(r)); });
  ASSERT_TRUE(done.get_future().get().ok());
  EXPECT_EQ(seen, (std::vector<std::int64_t>{64, 128, 150}));
}

TEST_F(SchedulerTest, PrefillsAreNotStarvedByQueries) {
  // A query that does not end decodes all the time, but ingest still gets its share.
  std::atomic<bool> stop{false};
  auto busy = std::make_shared<CollectingSink>();
  busy->at_token = [&stop](int) { return !stop.load(); };
  auto request = plain();
  request.sampling.max_tokens = 400;
  std::atomic<int> rounds{0};
  ASSERT_TRUE(engine_->query(request, busy).ok());
  EXPECT_TRUE(prefill_now(*engine_, random_ids(rng_, 100)).ok());
  stop = true;
  (void)busy->wait();
}

TEST_F(SchedulerTest, PromptsLargerThanTheWorkingCacheAreRefusedWithTheFix) {
  // 16 rows take 3 layers * 2 heads * 2 * 16 * 16 * 2 bytes = 6 KiB.
  start([](EngineOptions& o) { o.working_cache_bytes = 20 * 6144; });
  auto small = plain(100);
  EXPECT_TRUE(run_query(*engine_, small).status.ok());
  const Status s = run_query(*engine_, plain(400)).status;
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_NE(s.message().find("working_cache_bytes"), std::string::npos);
  EXPECT_EQ(prefill_now(*engine_, random_ids(rng_, 400)).code(), Code::kInvalidArgument);
  EXPECT_TRUE(prefill_now(*engine_, random_ids(rng_, 200)).ok());
}

TEST_F(SchedulerTest, QueriesWaitForMemoryInsteadOfFailing) {
  start([](EngineOptions& o) { o.working_cache_bytes = 20 * 6144; });
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 8; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine_->query(plain(200), sinks.back()).ok());
  }
  for (auto& s : sinks) EXPECT_TRUE(s->wait().status.ok());
}

TEST_F(SchedulerTest, OptionsAreCheckedByName) {
  const auto field = [this](auto edit) {
    EngineOptions o;
    o.model_path = model_.path().string();
    edit(o);
    return create_engine(o, store_).status().field();
  };
  EXPECT_EQ(field([](auto& o) { o.model_path.clear(); }), "model.path");
  EXPECT_EQ(field([](auto& o) { o.weights = "q4"; }), "model.weights");
  EXPECT_EQ(field([](auto& o) { o.kv_dtype = "i8"; }), "model.kv_dtype");
  EXPECT_EQ(field([](auto& o) { o.kv_dtype = "f8"; }), "model.kv_dtype");
  EXPECT_EQ(field([](auto& o) { o.device_kv_dtype = "bf16"; }), "model.device_kv_dtype");
  EXPECT_EQ(field([](auto& o) { o.device_kv_dtype = "f8"; }), "model.device_kv_dtype");
  EXPECT_EQ(field([](auto& o) { o.block_tokens = 48; }), "cache.block_tokens");
  EXPECT_EQ(field([](auto& o) { o.max_model_len = 100000; }), "model.max_model_len");
  EXPECT_EQ(field([](auto& o) { o.prefill_chunk_tokens = 100; }), "model.prefill_chunk_tokens");
  EXPECT_EQ(field([](auto& o) { o.max_queue = 0; }), "server.max_queue");
}

TEST_F(SchedulerTest, ATokenizerThatDoesNotFitTheModelIsRefused) {
  RandomModelFolder other;
  std::string config = read_file(other.path() / "config.json");
  config.replace(config.find("4096"), 4, "4000");
  write_file(other.path() / "config.json", config);
  EngineOptions o;
  o.model_path = other.path().string();
  const Status s = create_engine(o, store_).status();
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_NE(s.message().find("4000"), std::string::npos) << s.to_string();
}

TEST_F(SchedulerTest, FingerprintsFollowWhatChangesKv) {
  const EngineInfo base = engine_->info();
  EXPECT_EQ(base.fingerprint.size(), 10u);
  EXPECT_EQ(base.max_model_len, 512);
  EXPECT_EQ(base.kv_bytes_per_token, 3 * 2 * 2 * 16 * 2);
  start([](EngineOptions& o) { o.kv_dtype = "bf16"; });
  EXPECT_NE(engine_->info().fingerprint, base.fingerprint);
  start([](EngineOptions& o) { o.weights = "bf16"; });
  EXPECT_NE(engine_->info().fingerprint, base.fingerprint);
  start([](EngineOptions& o) { o.max_model_len = 256; });
  EXPECT_EQ(engine_->info().fingerprint, base.fingerprint);
}

}  // namespace
}  // namespace quire::testing
