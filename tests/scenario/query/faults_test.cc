/// A cache fault never fails a query. It becomes a miss with a reason, and the answer stays the
/// same.
#include <gtest/gtest.h>

#include "engine/plan/strategy.h"
#include "engine/record/kv_layout.h"
#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

class FaultsTest : public ::testing::Test {
 protected:
  FaultsTest()
      : real_(open_test_store(folder_.path() / "store")),
        store_(real_),
        engine_(make_test_engine(model_.path(), store_)) {
    for (std::size_t n : {40u, 70u, 100u}) {
      Doc d{"d" + std::to_string(n), random_ids(rng_, n), std::nullopt};
      d.key = ingest(*engine_, store_, d.id, d.ids);
      docs_.push_back(std::move(d));
    }
    request_ = make_request(*engine_, docs_, random_ids(rng_, 8), "reuse");
    const Outcome o = run_query(*engine_, request_);
    EXPECT_TRUE(o.status.ok());
    EXPECT_EQ(o.plan.fates.reused, 210);
    want_ = o.ids;
  }
  ~FaultsTest() override {
    store_.release();
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
  }
  static constexpr std::size_t kBlocks = 3 + 5 + 7;  // each has one value

  std::mt19937 rng_{5};
  TempFolder folder_;
  RandomModelFolder model_;
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  QueryRequest request_;
  std::vector<std::int32_t> want_;
};

TEST_F(FaultsTest, EachSingleReadMayFailInEachWay) {
  const std::vector<std::pair<Status, MissReason>> ways = {
      {Status::corruption("bit flip"), MissReason::kCorrupt},
      {Status::not_found("gone"), MissReason::kEvicted},
      {Status::io("disk"), MissReason::kTierUnavailable}};
  request_.cache.write = false;
  for (std::size_t n = 0; n < kBlocks; ++n) {
    const auto& [status, reason] = ways[n % ways.size()];
    store_.read_fault = [n, status = status](std::size_t index) {
      return index == n ? status : Status();
    };
    const Outcome o = run_query(*engine_, request_);
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids, want_) << "read " << n;
    const std::size_t bad = n < 3 ? 0 : n < 8 ? 1 : 2;
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_EQ(o.plan.contexts[i].miss, i == bad ? reason : MissReason::kNone) << n;
    EXPECT_EQ(o.plan.fates.reused - o.stats.shared_tokens, 210 - o.plan.contexts[bad].num_tokens);
    EXPECT_EQ(o.plan.fates.computed, o.plan.prompt_tokens - o.plan.fates.reused);
    EXPECT_EQ(o.first_plan.fates.reused, 210);
    expect_fates_sum(o.plan);
  }
}

TEST_F(FaultsTest, EveryReadFailing) {
  store_.read_fault = [](std::size_t) { return Status::io("disk lost"); };
  const Outcome o = run_query(*engine_, request_);
  EXPECT_EQ(o.ids, want_);
  EXPECT_EQ(o.plan.fates.reused, o.stats.shared_tokens);
  expect_fates_sum(o.plan);
}

TEST_F(FaultsTest, AFullReadQueueIsAMiss) {
  store_.refuse_reads = Status::exhausted("queue full");
  const Outcome o = run_query(*engine_, request_);
  EXPECT_EQ(o.ids, want_);
  for (const auto& c : o.plan.contexts) EXPECT_EQ(c.miss, MissReason::kTierUnavailable);
}

TEST_F(FaultsTest, AValueOfTheWrongLengthIsCorrupt) {
  // The store's checksum is right, but the engine did not write these bytes.
  const auto ids = random_ids(rng_, 40);
  const ContextKey key = engine_->names().context_key(ids, "t", {});
  {
    auto writer = real_->begin_segment(key, SegmentLayout{3, 1, 1}, 4096, "t", "x");
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    const std::vector<std::byte> bytes(100);
    for (std::uint32_t b = 0; b < 3; ++b) ASSERT_TRUE((*writer)->put_value(b, 0, bytes).ok());
    ASSERT_TRUE((*writer)->put_sketch(0, bytes).ok());
    auto handle = (*writer)->finish();
    ASSERT_TRUE(handle.ok());
    auto request = make_request(*engine_, {docs_[0], {"odd", ids, key}}, random_ids(rng_, 5),
                                "reuse");
    const Outcome odd = run_query(*engine_, request);
    ASSERT_TRUE(odd.status.ok()) << odd.status.to_string();
    EXPECT_EQ(odd.plan.contexts[1].miss, MissReason::kCorrupt);
    EXPECT_EQ(odd.plan.fates.reused - odd.stats.shared_tokens, 40);
    expect_fates_sum(odd.plan);
  }
}

TEST_F(FaultsTest, KvOfOtherTokensUnderARightKeyIsAMissForEveryRecomputePass) {
  // Checksums and sizes are right, but the numbers are not this document's. Layer 0 shows it.
  const auto ids = random_ids(rng_, 40);
  const ContextKey key = engine_->names().context_key(ids, "t", {});
  const KvLayout layout({3, 2, 16, DType::kF16}, 40, 16);
  for (const Strategy& known : strategies()) {
    if (known.selector != "all" || !known.takes_recompute_ratio) continue;
    const std::string strategy(known.name);
    auto writer = real_->begin_segment(key, layout.segment(), 1 << 16, "t", "x");
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
      const std::vector<std::byte> halves(static_cast<std::size_t>(layout.value_bytes(b, 0)),
                                          std::byte{0x3c});
      ASSERT_TRUE((*writer)->put_value(static_cast<std::uint32_t>(b), 0, halves).ok());
    }
    ASSERT_TRUE((*writer)->put_sketch(0, std::vector<std::byte>(100)).ok());
    auto handle = (*writer)->finish();
    ASSERT_TRUE(handle.ok());
    auto request = make_request(*engine_, {docs_[1], {"odd", ids, key}, docs_[0]},
                                random_ids(rng_, 5), strategy);
    request.cache.write = false;
    const Outcome odd = run_query(*engine_, request);
    ASSERT_TRUE(odd.status.ok()) << odd.status.to_string();
    auto right = request;
    right.tenant = "other";
    for (auto& c : right.contexts) c.key.reset();
    const Outcome want = run_query(*engine_, right);
    ASSERT_TRUE(want.status.ok());
    EXPECT_EQ(odd.ids, want.ids) << strategy;
    EXPECT_EQ(odd.plan.contexts[1].miss, MissReason::kCorrupt);
    EXPECT_EQ(odd.plan.contexts[0].miss, MissReason::kNone);
    EXPECT_EQ(odd.plan.contexts[2].miss, MissReason::kNone);
    EXPECT_EQ(odd.plan.fates.computed + odd.stats.shared_tokens,
              odd.plan.prefix_tokens + odd.plan.suffix_tokens + 40);
    expect_fates_sum(odd.plan);
    // It is not read again. From now on it is an ordinary miss, also for strategies that would not
    // have noticed.
    EXPECT_FALSE(real_->peek_segment(key).has_value());
    request.cache.strategy = "reuse";
    const Outcome next = run_query(*engine_, request);
    ASSERT_TRUE(next.status.ok()) << next.status.to_string();
    EXPECT_EQ(next.plan.contexts[1].miss, MissReason::kEvicted);
    EXPECT_EQ(next.plan.fates.computed, odd.plan.fates.computed);
  }
}

TEST_F(FaultsTest, BytesFlippedOnDiskAreCaughtAndTheAnswerStaysRight) {
  engine_->stop(std::chrono::seconds(5));
  engine_.reset();
  real_.reset();
  int flipped = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
    if (!entry.is_regular_file() || entry.path().extension() != ".extent") continue;
    std::string bytes = read_file(entry.path());
    for (std::size_t i = 1000; i < bytes.size(); i += 4096, ++flipped)  // one byte of each page
      bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    write_file(entry.path(), bytes);
  }
  ASSERT_GT(flipped, 0);
  real_ = open_test_store(folder_.path() / "store");
  auto engine = make_test_engine(model_.path(), *real_);
  const Outcome o = run_query(*engine, request_);
  EXPECT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.ids, want_);
  int corrupt = 0;
  for (const auto& c : o.plan.contexts) corrupt += c.miss == MissReason::kCorrupt;
  EXPECT_EQ(corrupt, std::ssize(o.plan.contexts));
  expect_fates_sum(o.plan);
  engine->stop(std::chrono::seconds(5));
  engine.reset();
  // The segments were written again, so the next start finds them whole.
  real_.reset();
  real_ = open_test_store(folder_.path() / "store");
  engine = make_test_engine(model_.path(), *real_);
  const Outcome again = run_query(*engine, request_);
  EXPECT_EQ(again.ids, want_);
  EXPECT_EQ(again.plan.fates.reused - again.stats.shared_tokens, 210);
  engine->stop(std::chrono::seconds(5));
  engine.reset();
}

TEST_F(FaultsTest, EvictedDocumentsAreComputedAndStoredAgain) {
  // As under a budget, the document stays and its KV is evicted.
  auto manifest = real_->get_document("t", "d70");
  ASSERT_TRUE(manifest.ok());
  const ContextKey key = manifest->chunks[0].key;
  auto lost = *manifest;
  lost.chunks[0].key = ContextKey{};
  ASSERT_TRUE(real_->commit_document(lost, std::nullopt, {}).ok());
  EXPECT_FALSE(real_->find_segment(key).has_value());
  ASSERT_TRUE(real_->commit_document(*manifest, std::nullopt, {}).ok());
  const Outcome o = run_query(*engine_, request_);
  ASSERT_TRUE(o.status.ok());
  EXPECT_EQ(o.ids, want_);
  EXPECT_EQ(o.plan.contexts[1].miss, MissReason::kEvicted);
  EXPECT_EQ(o.stats.written_tokens, 70);
  engine_->stop(std::chrono::seconds(5));  // ends once the writer has finished
  EXPECT_TRUE(real_->find_segment(key).has_value());
  engine_ = make_test_engine(model_.path(), store_);
  const Outcome again = run_query(*engine_, request_);
  EXPECT_EQ(again.ids, want_);
  EXPECT_EQ(again.plan.fates.reused - again.stats.shared_tokens, 210);
}

TEST_F(FaultsTest, KvThatFindsNoRoomToWaitForTheDiskIsNotStored) {
  // An eighth of the memory tier holds the KV of 170 tokens.
  std::unique_ptr<Store> real = open_test_store(folder_.path() / "small", 512u << 10);
  FaultyStore store(real);
  Gate disk;
  store.before_write = [&disk] { disk.pass(); };
  const auto engine = make_test_engine(model_.path(), store);
  std::vector<Doc> docs;
  for (const char* name : {"one", "two"}) {
    Doc d{name, random_ids(rng_, 150), std::nullopt};
    d.key = engine->names().context_key(d.ids, "t", {}, {});
    docs.push_back(std::move(d));
  }
  const Outcome o = run_query(*engine, make_request(*engine, docs, random_ids(rng_, 8), "reuse"));
  EXPECT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.plan.fates.computed, o.plan.prompt_tokens);
  EXPECT_EQ(o.stats.written_tokens, 150);
  disk.open();
  engine->stop(std::chrono::seconds(5));
}

TEST_F(FaultsTest, AStoreThatTakesNoWritesStillAnswers) {
  store_.refuse_writes = Status::exhausted("disk full");
  store_.read_fault = [](std::size_t index) {
    return index == 0 ? Status::corruption("x") : Status();
  };
  const Outcome o = run_query(*engine_, request_);
  EXPECT_TRUE(o.status.ok());
  EXPECT_EQ(o.ids, want_);
  const auto prefill = prefill_now(*engine_, random_ids(rng_, 50));
  EXPECT_EQ(prefill.code(), Code::kResourceExhausted);
}

TEST_F(FaultsTest, WaitingForTheDiskHoldsUpNobodyElse) {
  store_.hold();
  auto waiting = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine_->query(request_, waiting).ok());
  auto other = make_request(*engine_, docs_, random_ids(rng_, 4), "recompute");
  EXPECT_TRUE(run_query(*engine_, other).status.ok());
  EXPECT_TRUE(prefill_now(*engine_, random_ids(rng_, 33)).ok());
  EXPECT_FALSE(waiting->done());
  store_.release();
  EXPECT_EQ(waiting->wait().ids, want_);
}

TEST_F(FaultsTest, CancelWhileWaitingForTheDisk) {
  store_.hold();
  auto sink = std::make_shared<CollectingSink>();
  auto handle = engine_->query(request_, sink);
  ASSERT_TRUE(handle.ok());
  handle->cancel();
  const Outcome& o = sink->wait();
  EXPECT_EQ(o.status.code(), Code::kCancelled);
  EXPECT_EQ(o.reason, FinishReason::kCancelled);
  EXPECT_TRUE(o.ids.empty());
  // Late answers are ignored.
  store_.release();
  EXPECT_EQ(run_query(*engine_, request_).ids, want_);
}

TEST_F(FaultsTest, CancelAtThePlanAndAtEachToken) {
  for (int when = 0; when < 4; ++when) {
    auto sink = std::make_shared<CollectingSink>();
    std::promise<QueryHandle> handle;
    auto shared = handle.get_future().share();
    if (when == 0) {
      sink->at_plan = [shared] { QueryHandle(shared.get()).cancel(); };
    } else {
      sink->at_token = [when](int tokens) { return tokens < when; };
    }
    auto result = engine_->query(request_, sink);
    ASSERT_TRUE(result.ok());
    handle.set_value(*result);
    const Outcome& o = sink->wait();
    EXPECT_EQ(o.status.code(), Code::kCancelled) << when;
    EXPECT_EQ(o.reason, FinishReason::kCancelled);
    EXPECT_EQ(o.ids.size(), static_cast<std::size_t>(when));
  }
  EXPECT_EQ(run_query(*engine_, request_).ids, want_);
  EXPECT_EQ(engine_->load().queries_running, 0);
}

TEST_F(FaultsTest, CancelWhileComputing) {
  // The query is cancelled from its progress while the first of many chunks runs.
  auto request = make_request(*engine_, {{"long", random_ids(rng_, 400), std::nullopt}},
                              random_ids(rng_, 4), "reuse");
  auto sink = std::make_shared<CollectingSink>();
  std::promise<QueryHandle> handle;
  auto shared = handle.get_future().share();
  sink->at_plan = [shared] { QueryHandle(shared.get()).cancel(); };
  auto result = engine_->query(request, sink);
  ASSERT_TRUE(result.ok());
  handle.set_value(*result);
  EXPECT_EQ(sink->wait().status.code(), Code::kCancelled);
}

TEST_F(FaultsTest, DeadlinesEndWaitingAndRunningQueries) {
  store_.hold();
  request_.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine_->query(request_, sink).ok());
  EXPECT_EQ(sink->wait().status.code(), Code::kDeadlineExceeded);
  store_.release();
  request_.deadline = std::chrono::steady_clock::now() - std::chrono::milliseconds(1);
  EXPECT_EQ(run_query(*engine_, request_).status.code(), Code::kDeadlineExceeded);
}

TEST_F(FaultsTest, WorkingMemoryIsGivenBack) {
  for (int i = 0; i < 30; ++i) {
    if (i % 3 == 0)
      store_.read_fault = [i](std::size_t index) {
        return index == static_cast<std::size_t>(i % 15) ? Status::io("x") : Status();
      };
    if (i % 3 == 1) store_.read_fault = nullptr;
    auto sink = std::make_shared<CollectingSink>();
    if (i % 3 == 2) sink->at_token = [](int) { return false; };
    ASSERT_TRUE(engine_->query(request_, sink).ok());
    (void)sink->wait();
  }
  EXPECT_EQ(engine_->load().queries_running, 0);
  EXPECT_EQ(engine_->load().queries_waiting, 0);
}

}  // namespace
}  // namespace quire::testing
