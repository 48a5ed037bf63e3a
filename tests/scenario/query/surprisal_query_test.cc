/// Queries whose uncached text is cut by how hard its tokens are to predict.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

class SurprisalQueryTest : public ::testing::Test {
 protected:
  SurprisalQueryTest() : store_(open_test_store(folder_.path() / "store")) {
    engine_ = make_test_engine(model_.path(), *store_, [&](EngineOptions& o) {
      o.kv_dtype = "f32";
      o.draft_path = draft_.path().string();
    });
  }
  ~SurprisalQueryTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  QueryRequest request(const std::vector<std::int32_t>& ids, const Options& options) const {
    QueryRequest r = make_request(*engine_, {}, ids, "auto");
    r.prefix_ids.clear();
    r.cache.prompt_compression = "surprisal";
    r.cache.prompt_options = PlugOptions(options);
    return r;
  }
  static std::vector<std::int32_t> kept_of(const Plan& plan) {
    std::vector<std::int32_t> out;
    for (const auto& k : plan.prompt_cut->parts) {
      if (k.part != PromptCut::Part::kQuestion) continue;
      for (const TokenRange& r : k.tokens.kept) {
        for (std::int32_t t = r.begin; t < r.end; ++t) out.push_back(t);
      }
    }
    return out;
  }

  std::mt19937 rng_{41};
  TempFolder folder_;
  RandomModelFolder model_, draft_{13, 2048};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
};

/// Returns the negative log likelihood of every token but the first, each from a pass over the
/// tokens before it.
std::vector<double> surprisals(const fs::path& folder, const std::vector<std::int32_t>& ids) {
  ModelOptions options;
  options.weights = WeightFormat::kF32;
  options.kv_dtype = DType::kF32;
  auto model = load_model(folder, options);
  EXPECT_TRUE(model.ok());
  const ModelConfig& c = (*model)->config();
  std::vector<double> out = {std::log(static_cast<double>(c.vocab_size))};
  PagePool pool(PageFormat{c.num_kv_heads, c.head_dim, DType::kF32}, 0);
  WorkingCache cache(pool, c.num_layers);
  ForwardWorkspace workspace;
  std::vector<float> logits(static_cast<std::size_t>(c.vocab_size));
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    const auto position = static_cast<std::int32_t>(i), row = 0;
    ForwardRequest r{};
    r.token_ids = std::span(ids).subspan(i, 1);
    r.positions = std::span(&position, 1);
    r.cache = &cache;
    r.logit_rows = std::span(&row, 1);
    r.logits = logits.data();
    EXPECT_TRUE(forward(**model, r, workspace).ok());
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x));
    out.push_back(std::log(sum) -
                  static_cast<double>(logits[static_cast<std::size_t>(ids[i + 1])]));
  }
  return out;
}

TEST_F(SurprisalQueryTest, TheTokensTheDraftExpectsLeastStayBesideTheWindow) {
  const auto ids = random_ids(rng_, 230);
  const std::vector<double> scores = surprisals(draft_.path(), ids);
  std::vector<std::int32_t> expected(220);
  for (std::int32_t t = 0; t < 220; ++t) expected[static_cast<std::size_t>(t)] = t;
  std::stable_sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  expected.resize(70);
  for (std::int32_t t = 220; t < 230; ++t) expected.push_back(t);
  std::sort(expected.begin(), expected.end());
  const Outcome o = run_query(*engine_, request(ids, {{"capacity", "80"}, {"window", "10"}}));
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(kept_of(o.plan), expected);
  EXPECT_EQ(o.plan.fates.dropped, 150);
}

TEST_F(SurprisalQueryTest, TheQuestionChangesNothingOfWhatStaysBeforeIt) {
  auto ids = random_ids(rng_, 200);
  const Options options = {{"capacity", "90"}, {"window", "20"}};
  const Outcome one = run_query(*engine_, request(ids, options));
  std::reverse(ids.end() - 20, ids.end());
  const Outcome other = run_query(*engine_, request(ids, options));
  ASSERT_TRUE(one.status.ok() && other.status.ok());
  EXPECT_EQ(kept_of(one.plan), kept_of(other.plan));
}

TEST_F(SurprisalQueryTest, ItServesTheLookAheadOfSpecKvToo) {
  QueryRequest r = request(random_ids(rng_, 200), {{"capacity", "90"}, {"window", "20"}});
  r.cache.compress = "speckv";
  r.cache.options = PlugOptions(Options{{"capacity", "40"}, {"window", "5"}, {"lookahead", "6"}});
  const Outcome o = run_query(*engine_, std::move(r));
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.plan.prompt_cut->kept_tokens, 90);
  EXPECT_GT(o.stats.lookahead_tokens, 0);
}

TEST_F(SurprisalQueryTest, SettingsOfOtherMethodsAreRefused) {
  const Outcome o = run_query(*engine_, request(random_ids(rng_, 200), {{"kernel", "3"}}));
  EXPECT_EQ(o.status.field(), "cache.prompt_compression.kernel");
}

}  // namespace
}  // namespace quire::testing
