// How the chunks of a document are computed: some at a time, to one end, whatever fails.
#include "ingest/document/chunk_prefills.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>

#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using namespace test;

/// A document whose steps run in the test's thread.
class Document final : public ChunkPrefills::Owner {
 public:
  explicit Document(Engine& engine) : prefills(engine) {}

  PrefillRequest request_of(std::size_t chunk) override {
    ++requests;
    if (chunk == throws_at) throw std::runtime_error("no request for this chunk");
    PrefillRequest request;
    request.token_ids.assign(20, static_cast<std::int32_t>(chunk) + 3);
    request.tenant = "default";
    return request;
  }
  void add_tokens_done(std::int64_t n) override { tokens += n; }
  void post(std::function<void()> step) override {
    {
      const std::lock_guard lock(mu_);
      steps_.push_back(std::move(step));
    }
    changed_.notify_all();
  }
  void prefilled() override { ++ends; }

  /// Runs the next step once it is posted.
  void run_step() {
    std::function<void()> step;
    {
      std::unique_lock lock(mu_);
      changed_.wait(lock, [this] { return !steps_.empty(); });
      step = std::move(steps_.front());
      steps_.pop_front();
    }
    step();
  }

  ChunkPrefills prefills;
  std::atomic<std::int64_t> tokens = 0;
  int requests = 0, ends = 0;
  std::size_t throws_at = ~std::size_t{0};

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> steps_;  // guarded by mu_
};

class ChunkPrefillsTest : public IngestTest {
 protected:
  std::shared_ptr<Document> document(std::size_t chunks) {
    open();
    auto document = std::make_shared<Document>(*engine_);
    for (std::size_t i = 0; i < chunks; ++i) document->prefills.add(i);
    return document;
  }
};

TEST_F(ChunkPrefillsTest, RunAWindowAtATimeAndEndOnce) {
  const auto d = document(5);
  d->prefills.start(d, 2, {});
  EXPECT_EQ(d->requests, 2);
  d->run_step();
  EXPECT_EQ(d->requests, 3) << "one more where one has ended";
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(d->ends, 0);
    d->run_step();
  }
  EXPECT_EQ(d->ends, 1);
  EXPECT_OK(d->prefills.failure());
  EXPECT_EQ(d->tokens, 100);
  for (const ChunkPrefills::Item& item : d->prefills.items()) {
    ASSERT_TRUE(item.result);
    EXPECT_TRUE(item.result->segment);
  }
  d->prefills.release();
  for (const ChunkPrefills::Item& item : d->prefills.items()) EXPECT_FALSE(item.result);
}

TEST_F(ChunkPrefillsTest, AFailureStartsNoMoreAndEndsAfterWhatRuns) {
  const auto d = document(5);
  engine_->fail_at(0, Status::io("the first failure"));
  d->prefills.start(d, 3, {});
  d->run_step();
  EXPECT_EQ(d->ends, 0) << "two of them run";
  EXPECT_FALSE(d->prefills.fail(Status::internal("a later failure"))) << "they will end it";
  d->run_step();
  d->run_step();
  EXPECT_EQ(d->ends, 1);
  EXPECT_EQ(d->requests, 3);
  EXPECT_EQ(d->prefills.failure().code(), Code::kIo);
}

TEST_F(ChunkPrefillsTest, ARequestThatCannotBeMadeIsAFailure) {
  const auto d = document(3);
  d->throws_at = 1;
  d->prefills.start(d, 2, {});
  EXPECT_EQ(d->ends, 0);
  d->run_step();
  EXPECT_EQ(d->ends, 1);
  EXPECT_EQ(d->requests, 2);
  EXPECT_EQ(d->prefills.failure().code(), Code::kInternal);
}

TEST_F(ChunkPrefillsTest, ACancelEndsThemWithoutAFailureOfTheirOwn) {
  const auto d = document(4);
  std::stop_source cancelled;
  engine_->close();
  d->prefills.start(d, 2, cancelled.get_token());
  cancelled.request_stop();
  d->run_step();
  d->run_step();
  EXPECT_EQ(d->ends, 1);
  EXPECT_EQ(d->requests, 2);
}

TEST_F(ChunkPrefillsTest, WhoFailsWhileNothingRunsEndsTheDocument) {
  const auto d = document(2);
  EXPECT_TRUE(d->prefills.fail(Status::internal("before they began")));
  d->prefills.start(d, 2, {});
  EXPECT_EQ(d->requests, 0);
  EXPECT_EQ(d->ends, 0) << "the caller of fail() ends it";
}

}  // namespace
}  // namespace quire
