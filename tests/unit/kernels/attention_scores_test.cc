#include "kernels/attention/attention_scores.h"

#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/attention/attention.h"
#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

/// The last `queries` of `rows` tokens attend to all of them.
struct Window {
  Window(std::int64_t num_rows, std::int64_t num_queries, std::int32_t num_kv_heads,
         std::int32_t group, std::int32_t head_dim, DType dtype)
      : rows(num_rows),
        queries(num_queries),
        kv_heads(num_kv_heads),
        heads(num_kv_heads * group),
        dim(head_dim),
        kv(rows, kv_heads, dim, dtype, TestLayout::kHeadMajor, 15),
        q(random_floats(queries * heads * dim, 16, 2.0f)),
        positions(kv.positions().end() - queries, kv.positions().end()),
        lse(static_cast<std::size_t>(queries * heads)) {
    std::vector<float> out(q.size());
    AttentionArgs a{q.data(), positions.data(), queries,    std::int64_t{heads} * dim, heads,
                    scale(),  kv.view(true),    out.data(), std::int64_t{heads} * dim, lse.data()};
    EXPECT_TRUE(attention_reference(a).ok());
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim)); }
  /// Returns the arguments for rows [first, first + count) of the window.
  AttentionScoresArgs arguments(ScoreReduction reduction, std::vector<float>& scores,
                                std::int64_t first, std::int64_t count) const {
    AttentionScoresArgs a{};
    a.q = q.data() + first * heads * dim;
    a.query_positions = positions.data() + first;
    a.lse = lse.data() + first * heads;
    a.rows = count;
    a.ldq = std::int64_t{heads} * dim;
    a.ld_lse = heads;
    a.num_heads = heads;
    a.scale = scale();
    a.kv = kv.view(true);
    a.reduction = reduction;
    a.scores = scores.data();
    a.ld_scores = ld_scores();
    return a;
  }
  std::int64_t ld_scores() const { return rows + 3; }
  /// Returns zeros for scores, and -1 where nothing may be written.
  std::vector<float> zeros() const {
    std::vector<float> scores(static_cast<std::size_t>(kv_heads * ld_scores()), -1.0f);
    for (std::int64_t m = 0; m < kv_heads; ++m)
      std::fill_n(scores.begin() + m * ld_scores(), rows, 0.0f);
    return scores;
  }

  std::int64_t rows, queries;
  std::int32_t kv_heads, heads, dim;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
  std::vector<float> lse;
};

using Shape =
    std::tuple<std::int64_t, std::int64_t, std::int32_t, std::int32_t, std::int32_t, DType>;
class AttentionScoresTest : public ::testing::TestWithParam<Shape> {
 protected:
  Window window() const {
    const auto& [rows, queries, kv_heads, group, dim, dtype] = GetParam();
    return Window(rows, queries, kv_heads, group, dim, dtype);
  }
};

TEST_P(AttentionScoresTest, AgreesWithTheReference) {
  const Window w = window();
  for (const ScoreReduction reduction : {ScoreReduction::kMax, ScoreReduction::kSum}) {
    std::vector<float> expected = w.zeros(), actual = w.zeros();
    ASSERT_OK(attention_scores_reference(w.arguments(reduction, expected, 0, w.queries)));
    ASSERT_OK(attention_scores(w.arguments(reduction, actual, 0, w.queries)));
    expect_close(actual, expected, 2e-6, 3e-5, "scores");
  }
}

TEST_P(AttentionScoresTest, DoNotDependOnHowTheWindowIsCutNorOnThreads) {
  const Window w = window();
  for (const ScoreReduction reduction : {ScoreReduction::kMax, ScoreReduction::kSum}) {
    std::vector<float> whole = w.zeros(), cut = w.zeros();
    set_num_threads(1);
    ASSERT_OK(attention_scores(w.arguments(reduction, whole, 0, w.queries)));
    set_num_threads(3);
    const std::int64_t first = w.queries / 3;
    for (const auto& [at, count] : {std::pair{std::int64_t{0}, first},
                                    {first, std::int64_t{1}},
                                    {first + 1, w.queries - first - 1}}) {
      ASSERT_OK(attention_scores(w.arguments(reduction, cut, at, count)));
    }
    set_num_threads(0);
    EXPECT_EQ(cut, whole);
  }
}

TEST_P(AttentionScoresTest, SumsAddUpToTheNumberOfWeights) {
  const Window w = window();
  std::vector<float> scores = w.zeros();
  ASSERT_OK(attention_scores(w.arguments(ScoreReduction::kSum, scores, 0, w.queries)));
  const double each = static_cast<double>(w.queries * w.heads / w.kv_heads);
  for (std::int64_t m = 0; m < w.kv_heads; ++m) {
    const auto begin = scores.begin() + m * w.ld_scores();
    EXPECT_NEAR(std::accumulate(begin, begin + w.rows, 0.0), each, 2e-4 * each);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionScoresTest,
    ::testing::Values(Shape{1, 1, 1, 1, 8, DType::kF32}, Shape{33, 5, 2, 3, 24, DType::kF16},
                      Shape{130, 17, 1, 16, 64, DType::kBF16}, Shape{97, 9, 3, 2, 128, DType::kF32},
                      Shape{64, 64, 2, 1, 256, DType::kF16}, Shape{75, 33, 2, 7, 64, DType::kF16}));

TEST(AttentionScores, KeysBehindTheQueryAndRowsThatSeeNothingAddNothing) {
  Window w(40, 4, 2, 2, 16, DType::kF32);
  w.positions = {10, 10, -1, 12};
  std::fill(w.lse.begin() + 2 * w.heads, w.lse.begin() + 3 * w.heads,
            -std::numeric_limits<float>::infinity());
  std::vector<float> scores = w.zeros();
  ASSERT_OK(attention_scores(w.arguments(ScoreReduction::kMax, scores, 0, 4)));
  for (std::int64_t m = 0; m < 2; ++m) {
    for (std::int64_t j = 0; j < w.rows; ++j)
      EXPECT_EQ(scores[static_cast<std::size_t>(m * w.ld_scores() + j)] > 0, j <= 12) << j;
  }
  std::vector<float> seeing_nothing = w.zeros();
  ASSERT_OK(attention_scores(w.arguments(ScoreReduction::kSum, seeing_nothing, 2, 1)));
  EXPECT_EQ(seeing_nothing, w.zeros());
}

TEST(AttentionScores, RefusesShapesThatDoNotFit) {
  const Window w(20, 2, 1, 2, 16, DType::kF32);
  std::vector<float> scores = w.zeros();
  AttentionScoresArgs a = w.arguments(ScoreReduction::kMax, scores, 0, 2);
  a.ld_scores = 19;
  EXPECT_EQ(attention_scores(a).code(), Code::kInvalidArgument);
  a = w.arguments(ScoreReduction::kMax, scores, 0, 2);
  a.num_heads = 17;
  EXPECT_EQ(attention_scores(a).code(), Code::kInvalidArgument);
  a = w.arguments(ScoreReduction::kMax, scores, 0, 2);
  a.scores = nullptr;
  EXPECT_EQ(attention_scores(a).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace quire
