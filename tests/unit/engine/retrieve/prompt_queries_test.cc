// Queries of prompt rows, as retrievers receive them.
#include "engine/retrieve/prompt_queries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/model/hook_chain.h"
#include "kernels/attention/attention.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/host_compute.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;
using Rows = WantedQueries::Rows;

constexpr std::int32_t kHeads = 4, kDim = 8, kPrompt = 40;

class PromptQueriesTest : public ::testing::Test {
 protected:
  PromptQueriesTest() {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kDim;
    rope_ = std::move(*RopeTable::build(config, 64));
  }
  PromptQueries make(WantedQueries wanted) const {
    return PromptQueries(rope_, {1, kHeads, kDim}, wanted, kPrompt);
  }
  /// Shows rows at these positions. Every element of a row's raw query is `value`, and rows in
  /// `silent` did not attend.
  static void show(PromptQueries& queries, std::vector<std::int32_t> positions, float value,
                   std::vector<std::int32_t> silent = {}) {
    std::vector<float> q(positions.size() * kHeads * kDim, value), lse;
    for (const std::int32_t p : positions) {
      const bool saw = std::find(silent.begin(), silent.end(), p) == silent.end();
      lse.insert(lse.end(), kHeads, saw ? static_cast<float>(p) + value : NAN);
    }
    LayerPass pass{};
    pass.compute = &host_compute();
    pass.positions = positions;
    pass.qkv.q = q.data();
    pass.qkv.rows = static_cast<std::int64_t>(positions.size());
    pass.qkv.ld = kHeads * kDim;
    pass.lse = lse.data();
    ASSERT_TRUE(queries.after_attention(pass).ok());
  }
  static std::vector<std::int32_t> positions(const PromptQueries& queries) {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < queries.num_rows(0); ++i) out.push_back(queries.position(0, i));
    return out;
  }
  static std::vector<std::int32_t> range(std::int32_t begin, std::int32_t end) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(end - begin));
    std::iota(out.begin(), out.end(), begin);
    return out;
  }
  RopeTable rope_;
};

TEST_F(PromptQueriesTest, StoredRowsFillUpBesideThoseThatRan) {
  PromptQueries queries = make({6, Rows::kLast, true});
  show(queries, {20, 36, 37}, 1);
  const std::vector<float> raw(kHeads * kDim, 5.0f);
  // The rows nearest to the question are offered first. Rows that ran, and rows without room, are
  // skipped.
  for (const std::int32_t position : {30, 20, 29, 28, 27, 26})
    ASSERT_TRUE(queries.add_stored(0, position, raw).ok());
  EXPECT_FALSE(queries.has_room(0));
  EXPECT_EQ(positions(queries), (std::vector<std::int32_t>{20, 28, 29, 30, 36, 37}));
  for (std::int64_t i = 0; i < 6; ++i) {
    const bool stored = i >= 1 && i <= 3;
    EXPECT_EQ(std::isnan(queries.lse(0, i)[0]), stored) << i;
    // Rotation keeps lengths.
    double length = 0;
    for (const std::uint16_t x : queries.query(0, i))
      length += double{bf16_to_f32(x)} * bf16_to_f32(x);
    const double exact = kHeads * kDim * (stored ? 25.0 : 1.0);
    EXPECT_NEAR(length, exact, exact * 2 * 0.00391) << i << ": twice what bf16 rounds";
  }
  // A token that runs later takes the place of the first row.
  show(queries, {38}, 2);
  EXPECT_EQ(positions(queries), (std::vector<std::int32_t>{28, 29, 30, 36, 37, 38}));
}

TEST_F(PromptQueriesTest, TheLastRowsStayHoweverTheyCome) {
  PromptQueries whole = make({6, Rows::kLast}), pieces = make({6, Rows::kLast});
  show(whole, range(0, 40), 1);
  // Recomputed rows come before rows in front of them have run, and some run twice.
  show(pieces, range(36, 40), 1);
  show(pieces, range(0, 35), 1);
  show(pieces, {34, 35}, 1);
  EXPECT_EQ(positions(whole), range(34, 40));
  EXPECT_EQ(positions(pieces), range(34, 40));
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(std::vector(whole.query(0, i).begin(), whole.query(0, i).end()),
              std::vector(pieces.query(0, i).begin(), pieces.query(0, i).end()));
    EXPECT_FLOAT_EQ(whole.lse(0, i)[0], static_cast<float>(35 + i));
    EXPECT_FLOAT_EQ(pieces.lse(0, i)[3], static_cast<float>(35 + i));
  }
}

TEST_F(PromptQueriesTest, ARowThatRunsAgainCountsWithItsLaterQuery) {
  PromptQueries queries = make({4, Rows::kLast});
  show(queries, {1, 5}, 1);
  show(queries, {5, 9}, 2);
  EXPECT_EQ(positions(queries), (std::vector<std::int32_t>{1, 5, 9}));
  EXPECT_FLOAT_EQ(queries.lse(0, 0)[0], 2);
  EXPECT_FLOAT_EQ(queries.lse(0, 1)[0], 7);
  queries.release(0);
  EXPECT_EQ(queries.num_rows(0), 0);
}

TEST_F(PromptQueriesTest, RowsThatDidNotAttendHaveAQueryAllTheSame) {
  PromptQueries queries = make({8, Rows::kLast});
  show(queries, range(0, 6), 1, {0, 3, 5});
  EXPECT_EQ(positions(queries), range(0, 6));
  for (const std::int64_t i : {0, 3, 5}) EXPECT_TRUE(std::isnan(queries.lse(0, i)[0])) << i;
  for (const std::int64_t i : {1, 2, 4}) EXPECT_FALSE(std::isnan(queries.lse(0, i)[0])) << i;
}

TEST_F(PromptQueriesTest, OtherRowsOfThePromptCanBeWishedFor) {
  const auto seen = [&](WantedQueries wanted) {
    PromptQueries queries = make(wanted);
    // The last four positions are a look-ahead.
    for (std::int32_t p = 0; p < 44; p += 11) show(queries, range(p, p + 11), 1);
    EXPECT_EQ(queries.needs_whole_prompt(), wanted.rows != Rows::kLast);
    return positions(queries);
  };
  EXPECT_EQ(seen({3, Rows::kLast}), range(41, 44));
  EXPECT_EQ(seen({3, Rows::kFirst}), range(0, 3));
  EXPECT_EQ(seen({4, Rows::kSpread}), (std::vector<std::int32_t>{9, 19, 29, 39}));
  EXPECT_EQ(seen({100, Rows::kSpread}), range(0, 40));
  const auto random = seen({10, Rows::kRandom});
  EXPECT_EQ(random.size(), 10u);
  EXPECT_EQ(seen({10, Rows::kRandom}), random);
  EXPECT_LT(random.back(), 40);
  EXPECT_GT(random.back() - random.front(), 15) << "all over the prompt";
  EXPECT_EQ(seen({100, Rows::kRandom}), range(0, 40));
}

/// The queries of a real pass, rotated and rounded, give the attention of that pass.
TEST_F(PromptQueriesTest, OfAModelTheyAreWhatItsAttentionUsed) {
  const auto config = parse_model_config(
      tiny_config_json("\"num_hidden_layers\": 3", {"num_hidden_layers"}));
  Runner run(std::move(
      *make_random_model(*config, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32}, 21)));
  const ModelConfig& c = run.model().config();
  PromptQueries queries(run.model().rope(), {c.num_layers, c.num_heads, c.head_dim},
                        {9, Rows::kLast}, 30);
  HookChain hooks(nullptr, &queries);
  std::mt19937 random(3);
  std::vector<std::int32_t> ids(30);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % 40);
  (void)run.append(std::span(ids).first(17), 1, &hooks);
  (void)run.append(std::span(ids).subspan(17), 1, &hooks);
  for (std::int32_t layer = 0; layer < c.num_layers; ++layer) {
    ASSERT_EQ(queries.num_rows(layer), 9);
    for (std::int64_t i = 0; i < 9; ++i) {
      const std::int32_t position = queries.position(layer, i);
      EXPECT_EQ(position, 21 + i);
      std::vector<float> q, out(static_cast<std::size_t>(c.num_heads * c.head_dim)),
          lse(static_cast<std::size_t>(c.num_heads));
      for (const std::uint16_t x : queries.query(layer, i)) q.push_back(bf16_to_f32(x));
      AttentionArgs args{};
      args.q = q.data();
      args.query_positions = &position;
      args.rows = 1;
      args.ldq = args.ldo = static_cast<std::int64_t>(q.size());
      args.num_heads = c.num_heads;
      args.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
      args.kv = run.cache().view(layer);
      args.out = out.data();
      args.lse = lse.data();
      ASSERT_TRUE(attention_reference(args).ok());
      for (std::size_t h = 0; h < lse.size(); ++h)
        EXPECT_NEAR(queries.lse(layer, i)[h], lse[h], 0.02)
            << "layer " << layer << " row " << i << " head " << h;
    }
  }
}

}  // namespace
}  // namespace quire
