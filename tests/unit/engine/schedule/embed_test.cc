#include <gtest/gtest.h>

#include <cmath>
#include <future>

#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "tests/support/engine_harness.h"

namespace quire {
namespace {

using namespace quire::testing;

class EmbedTest : public ::testing::Test {
 protected:
  EmbedTest()
      : store_(open_test_store(folder_.path())),
        engine_(make_test_engine(model_.path(), *store_)) {}
  ~EmbedTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  std::future<Result<std::vector<float>>> start(std::vector<std::int32_t> ids,
                                                std::shared_ptr<std::atomic<bool>> cancelled = {}) {
    auto promise = std::make_shared<std::promise<Result<std::vector<float>>>>();
    EmbedRequest r;
    r.token_ids = std::move(ids);
    r.cancelled = std::move(cancelled);
    engine_->embed(std::move(r),
                   [promise](Result<std::vector<float>> v) { promise->set_value(std::move(v)); });
    return promise->get_future();
  }
  Result<std::vector<float>> embed(std::vector<std::int32_t> ids) {
    return start(std::move(ids)).get();
  }

  TempFolder folder_;
  RandomModelFolder model_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
};

/// Runs the same tokens through forward() in one pass and averages the states here.
std::vector<double> mean_of_states(const fs::path& folder, const std::vector<std::int32_t>& ids) {
  ModelOptions options;
  options.weights = WeightFormat::kF32;
  auto model = load_model(folder, options);
  EXPECT_TRUE(model.ok());
  const ModelConfig& c = (*model)->config();
  PagePool pool(PageFormat{c.num_kv_heads, c.head_dim, options.kv_dtype}, 0);
  WorkingCache cache(pool, c.num_layers);
  std::vector<std::int32_t> positions(ids.size()), rows(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    positions[i] = rows[i] = static_cast<std::int32_t>(i);
  const auto h = static_cast<std::size_t>(c.hidden_size);
  std::vector<float> hidden(ids.size() * h), normed(hidden.size());
  ForwardRequest request{};
  request.token_ids = ids;
  request.positions = positions;
  request.cache = &cache;
  request.logit_rows = rows;
  request.hidden = hidden.data();
  ForwardWorkspace workspace;
  EXPECT_TRUE(forward(**model, request, workspace).ok());
  EXPECT_TRUE((*model)
                  ->final_norm(hidden.data(), static_cast<std::int64_t>(ids.size()), normed.data())
                  .ok());
  std::vector<double> mean(h);
  for (std::size_t i = 0; i < normed.size(); ++i) mean[i % h] += normed[i];
  double squares = 0;
  for (double x : mean) squares += x * x;
  for (double& x : mean) x /= std::sqrt(squares);
  return mean;
}

TEST_F(EmbedTest, IsTheMeanOfTheLastStatesAtLengthOneHoweverItIsCut) {
  std::mt19937 rng(5);
  const auto ids = random_ids(rng, 150);  // takes three chunks of the engine
  const auto vector = embed(ids);
  ASSERT_TRUE(vector.ok()) << vector.status().to_string();
  const auto expected = mean_of_states(model_.path(), ids);
  ASSERT_EQ(vector->size(), expected.size());
  double squares = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR((*vector)[i], expected[i], 1e-5) << i;
    squares += double{(*vector)[i]} * (*vector)[i];
  }
  EXPECT_NEAR(squares, 1.0, 1e-5);
  EXPECT_EQ(*embed(ids), *vector);
}

TEST_F(EmbedTest, RefusesWhatTheModelCannotTake) {
  EXPECT_EQ(embed({}).status().field(), "input");
  EXPECT_EQ(embed({1, -1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(embed({4096}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(parse_window_exceeded(embed(std::vector<std::int32_t>(513, 5)).status()));
  EXPECT_TRUE(embed(std::vector<std::int32_t>(512, 5)).ok());
}

TEST_F(EmbedTest, ACancelledOneEndsAndTheNextGoesOn) {
  auto cancelled = std::make_shared<std::atomic<bool>>(true);
  auto first = start(std::vector<std::int32_t>(400, 7), cancelled), second = start({7, 8});
  EXPECT_EQ(first.get().code(), Code::kCancelled);
  EXPECT_TRUE(second.get().ok());
}

TEST_F(EmbedTest, WorksBesideQueriesAndIngestAndEndsWithTheEngine) {
  std::mt19937 rng(6);
  Doc doc{"d", random_ids(rng, 90), std::nullopt};
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(
      engine_->query(make_request(*engine_, {doc}, random_ids(rng, 9), "recompute"), sink).ok());
  auto vector = start(random_ids(rng, 200));
  EXPECT_TRUE(prefill_now(*engine_, random_ids(rng, 200)).ok());
  EXPECT_TRUE(vector.get().ok());
  EXPECT_TRUE(sink->wait().status.ok());
  engine_->stop(std::chrono::milliseconds(0));
  EXPECT_EQ(embed({1, 2}).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace quire
