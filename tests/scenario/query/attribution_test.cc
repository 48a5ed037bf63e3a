#include <gtest/gtest.h>

#include <numeric>

#include "tests/support/engine_harness.h"

namespace quire {
namespace {

using namespace quire::testing;

/// Keeps the attribution, and checks that it comes once, after the tokens and before the end.
class AttributionSink final : public CollectingSink {
 public:
  void on_attribution(const Attribution& a) override {
    EXPECT_FALSE(done());
    ++calls;
    attribution = a;
  }
  int calls = 0;
  Attribution attribution;
};

class AttributionTest : public ::testing::Test {
 protected:
  AttributionTest()
      : store_(open_test_store(store_folder_.path())),
        engine_(make_test_engine(model_.path(), *store_)) {
    std::mt19937 rng(3);
    for (int i = 0; i < 3; ++i) {
      Doc d;
      d.id = "d" + std::to_string(i);
      d.ids = random_ids(rng, 70);
      if (i != 1) d.key = ingest(*engine_, *store_, d.id, d.ids);
      docs_.push_back(d);
    }
    question_ = random_ids(rng, 9);
  }
  ~AttributionTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  QueryRequest request(const std::string& strategy, std::int32_t tokens = 12) const {
    QueryRequest r = make_request(*engine_, docs_, question_, strategy);
    r.sampling.max_tokens = tokens;
    r.attribute = true;
    return r;
  }
  std::shared_ptr<AttributionSink> run(QueryRequest r) {
    auto sink = std::make_shared<AttributionSink>();
    auto handle = engine_->query(std::move(r), sink);
    EXPECT_TRUE(handle.ok()) << handle.status().to_string();
    if (!handle.ok()) return sink;
    EXPECT_TRUE(sink->wait().status.ok()) << sink->wait().status.to_string();
    return sink;
  }

  TempFolder store_folder_;
  RandomModelFolder model_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

class AttributionByStrategy : public AttributionTest,
                              public ::testing::WithParamInterface<std::string> {};

TEST_P(AttributionByStrategy, CoversEveryTokenAndBlockAndChangesNoAnswer) {
  QueryRequest plain = request(GetParam());
  plain.attribute = false;
  const auto without = run(plain), with = run(request(GetParam()));
  EXPECT_EQ(without->calls, 0);
  EXPECT_EQ(without->wait().stats.attribution_ms, 0);
  ASSERT_EQ(with->calls, 1);
  EXPECT_EQ(with->wait().ids, without->wait().ids);
  const Attribution& a = with->attribution;
  EXPECT_EQ(a.num_tokens, static_cast<std::int64_t>(with->wait().ids.size()));
  std::vector<std::int32_t> kept_layers;
  for (const auto& c : with->wait().plan.contexts) {
    for (const auto& b : c.blocks) kept_layers.push_back(b.kept_layers);
  }
  ASSERT_EQ(a.num_blocks, static_cast<std::int64_t>(kept_layers.size()));
  ASSERT_EQ(a.share.size(), static_cast<std::size_t>(a.num_tokens * a.num_blocks));
  for (std::int64_t t = 0; t < a.num_tokens; ++t) {
    const float* row = a.share.data() + t * a.num_blocks;
    for (std::int64_t b = 0; b < a.num_blocks; ++b) {
      EXPECT_GE(row[b], 0.0f);
      if (kept_layers[static_cast<std::size_t>(b)] == 0) {
        EXPECT_EQ(row[b], 0.0f) << b;
      }
    }
    const double sum = std::accumulate(row, row + a.num_blocks, 0.0);
    EXPECT_GT(sum, 0.0);
    EXPECT_LE(sum, 1.0 + 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, AttributionByStrategy, ::testing::ValuesIn(strategy_names()),
                         [](const auto& strategy) { return strategy.param; });

/// Steps of rows do not change the attribution of a token.
TEST_F(AttributionTest, ALongAnswerIsAttributedLikeItsBeginning) {
  const auto whole = run(request("reuse", 150)), begin = run(request("reuse", 30));
  ASSERT_EQ(whole->attribution.num_tokens, 150);
  ASSERT_EQ(begin->attribution.num_tokens, 30);
  const auto n = static_cast<std::ptrdiff_t>(begin->attribution.share.size());
  EXPECT_TRUE(std::equal(begin->attribution.share.begin(), begin->attribution.share.end(),
                         whole->attribution.share.begin(), whole->attribution.share.begin() + n));
}

TEST_F(AttributionTest, NothingIsSaidWithoutDocumentsOrTokens) {
  QueryRequest r = request("recompute");
  r.contexts.clear();
  EXPECT_EQ(run(r)->calls, 0);
  r = request("recompute");
  r.sampling.forced_tokens = {2};  // ends the answer at once
  r.sampling.ignore_eos = false;
  EXPECT_EQ(run(r)->calls, 0);
}

/// Queries with attribution and without it run concurrently, and all complete.
TEST_F(AttributionTest, OtherQueriesGoOnBesideIt) {
  std::vector<std::shared_ptr<AttributionSink>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<AttributionSink>());
    QueryRequest r = request(i % 2 == 0 ? "reuse" : "recompute", 20 + 40 * (i % 3));
    r.attribute = i != 4;
    ASSERT_TRUE(engine_->query(std::move(r), sinks.back()).ok());
  }
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(sinks[static_cast<std::size_t>(i)]->wait().status.ok());
    EXPECT_EQ(sinks[static_cast<std::size_t>(i)]->calls, i != 4);
    EXPECT_EQ(sinks[static_cast<std::size_t>(i)]->wait().ids.size(),
              static_cast<std::size_t>(20 + 40 * (i % 3)));
  }
}

}  // namespace
}  // namespace quire
