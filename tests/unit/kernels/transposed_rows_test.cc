#include "kernels/choice/transposed_rows.h"

#include <tuple>

#include "kernels/choice/page_bounds.h"
#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

// Order: rows, KV heads, group, pairs.
using Shape = std::tuple<std::int64_t, std::int32_t, std::int32_t, std::int32_t>;

class TransposedRowsTest : public ::testing::TestWithParam<Shape> {
 protected:
  TransposedRowsTest()
      : rows_(std::get<0>(GetParam())),
        kv_heads_(std::get<1>(GetParam())),
        heads_(kv_heads_ * std::get<2>(GetParam())),
        pairs_(std::get<3>(GetParam())),
        q_(random_floats(std::int64_t{heads_} * pairs_ * 2, 61)) {
    const std::int64_t blocks = (rows_ + kTransposeRows - 1) / kTransposeRows,
                       values = view().block_values();
    for (const float x : random_floats(blocks * values, 62)) values_.push_back(f32_to_bf16(x));
    for (std::int64_t b = 0; b < blocks; ++b) blocks_.push_back(values_.data() + b * values);
  }
  TransposedRows view() const { return {blocks_.data(), rows_, kv_heads_, pairs_}; }
  TransposedScoresArgs args(std::vector<float>& scores, std::int64_t first, std::int64_t n) const {
    scores.assign(static_cast<std::size_t>(heads_ * (n + 3)), 7.0f);
    return {q_.data(),          view(), first,         n,    0, kv_heads_,
            heads_ / kv_heads_, 0.25f,  scores.data(), n + 3};
  }

  const std::int64_t rows_;
  const std::int32_t kv_heads_, heads_, pairs_;
  const std::vector<float> q_;
  std::vector<std::uint16_t> values_;
  std::vector<const std::uint16_t*> blocks_;
};

TEST_P(TransposedRowsTest, AgreesWithTheReferenceWhateverTheThreads) {
  for (const std::int64_t first : {std::int64_t{0}, rows_ / 3, rows_ - 1, rows_}) {
    for (const std::int64_t n : {rows_ - first, (rows_ - first) / 2}) {
      std::vector<float> expected, scores, one;
      ASSERT_OK(transposed_scores_reference(args(expected, first, n)));
      ASSERT_OK(transposed_scores(args(scores, first, n)));
      expect_close(scores, expected, 1e-4, 1e-5, "scores");
      set_num_threads(1);
      const Status alone = transposed_scores(args(one, first, n));
      set_num_threads(0);
      ASSERT_OK(alone);
      EXPECT_EQ(one, scores);
    }
  }
}

TEST_P(TransposedRowsTest, AScoreDependsOnItsQueryAndRowAlone) {
  std::vector<float> all;
  ASSERT_OK(transposed_scores(args(all, 0, rows_)));
  for (std::int64_t j = 0; j < rows_; j += 5) {
    std::vector<float> single;
    ASSERT_OK(transposed_scores(args(single, j, 1)));
    for (std::int32_t h = 0; h < heads_; ++h)
      EXPECT_EQ(single[static_cast<std::size_t>(h * 4)],
                all[static_cast<std::size_t>(h * (rows_ + 3) + j)])
          << "row " << j << " head " << h;
  }
}

TEST_P(TransposedRowsTest, AKvHeadAloneScoresAsAmongAll) {
  const std::int32_t group = heads_ / kv_heads_, m = kv_heads_ - 1;
  std::vector<float> all, one(static_cast<std::size_t>(group * rows_));
  ASSERT_OK(transposed_scores(args(all, 0, rows_)));
  ASSERT_OK(transposed_scores({q_.data() + std::int64_t{m} * group * pairs_ * 2, view(), 0, rows_,
                               m, 1, group, 0.25f, one.data(), rows_}));
  for (std::int32_t g = 0; g < group; ++g) {
    for (std::int64_t j = 0; j < rows_; ++j)
      ASSERT_EQ(one[static_cast<std::size_t>(g * rows_ + j)],
                all[static_cast<std::size_t>((m * group + g) * (rows_ + 3) + j)]);
  }
}

/// A block holds each value at transposed_at(). Signed queries over pairs of bounds give the scores
/// of page_scores().
TEST_P(TransposedRowsTest, BoundsOfPagesScoreAsPageScores) {
  std::vector<std::uint16_t> bounds;  // [row][KV head][2][pairs]
  for (std::int64_t row = 0; row < rows_; ++row) {
    for (std::int32_t m = 0; m < kv_heads_; ++m) {
      for (const int part : {0, 1}) {
        for (std::int32_t p = 0; p < pairs_; ++p) {
          const std::uint16_t* x = blocks_[static_cast<std::size_t>(row / kTransposeRows)] +
                                   transposed_at(pairs_, m, p, row);
          const float low = std::min(bf16_to_f32(x[0]), bf16_to_f32(x[1])),
                      high = std::max(bf16_to_f32(x[0]), bf16_to_f32(x[1]));
          bounds.push_back(f32_to_bf16(part == 0 ? low : high));
        }
      }
    }
  }
  std::vector<std::uint16_t> sorted = values_;
  for (std::size_t i = 0; i < sorted.size(); i += 2) {
    if (bf16_to_f32(sorted[i]) > bf16_to_f32(sorted[i + 1])) std::swap(sorted[i], sorted[i + 1]);
  }
  std::vector<const std::uint16_t*> blocks;
  for (const std::uint16_t* block : blocks_)
    blocks.push_back(sorted.data() + (block - values_.data()));
  const std::vector<float> q = random_floats(std::int64_t{heads_} * pairs_, 63);
  std::vector<float> pairs, expected(static_cast<std::size_t>(heads_ * rows_)), scores(expected);
  for (const float x : q) pairs.insert(pairs.end(), {std::min(x, 0.0f), std::max(x, 0.0f)});
  ASSERT_OK(page_scores_reference(
      {q.data(), bounds.data(), rows_, rows_, heads_, kv_heads_, pairs_, 0.5f, expected.data()}));
  ASSERT_OK(transposed_scores({pairs.data(),
                               {blocks.data(), rows_, kv_heads_, pairs_},
                               0,
                               rows_,
                               0,
                               kv_heads_,
                               heads_ / kv_heads_,
                               0.5f,
                               scores.data(),
                               rows_}));
  expect_close(scores, expected, 1e-4, 1e-5, "scores");
}

INSTANTIATE_TEST_SUITE_P(Shapes, TransposedRowsTest,
                         ::testing::Values(Shape{1, 1, 1, 1}, Shape{16, 1, 4, 4},
                                           Shape{33, 2, 3, 12}, Shape{130, 3, 7, 32},
                                           Shape{257, 2, 16, 64}, Shape{1000, 8, 4, 64}));

TEST(TransposedRows, RefusesRowsThatAreNotThere) {
  const std::uint16_t block[64] = {};
  const std::uint16_t* const blocks[] = {block};
  const float q[8] = {};
  float scores[16];
  const TransposedRows rows{blocks, 16, 1, 2};
  EXPECT_EQ(transposed_scores({q, rows, 10, 7, 0, 1, 1, 1.0f, scores, 7}).field(), "num_rows");
  EXPECT_EQ(transposed_scores({q, rows, -1, 7, 0, 1, 1, 1.0f, scores, 7}).field(), "num_rows");
  EXPECT_EQ(transposed_scores({q, rows, 0, 7, 0, 1, 1, 1.0f, scores, 6}).field(), "ld_scores");
  EXPECT_EQ(transposed_scores({q, rows, 0, 7, 1, 1, 1, 1.0f, scores, 7}).field(), "num_kv_heads");
  EXPECT_EQ(transposed_scores({q, rows, 0, 7, 0, 1, 0, 1.0f, scores, 7}).field(), "group");
  EXPECT_EQ(transposed_scores({nullptr, rows, 0, 7, 0, 1, 1, 1.0f, scores, 7}).field(), "q");
  ASSERT_OK(transposed_scores({nullptr, rows, 16, 0, 0, 1, 1, 1.0f, nullptr, 0}));
}

}  // namespace
}  // namespace quire
