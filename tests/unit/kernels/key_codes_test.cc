#include "kernels/choice/key_codes.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

// Order: rows, KV heads, queries, head_dim, type, layout.
using Shape = std::tuple<std::int64_t, std::int32_t, std::int64_t, std::int32_t, DType, TestLayout>;

/// Aligned blocks of codes in one allocation.
struct Blocks {
  Blocks(std::int64_t rows, std::int32_t heads, std::int32_t dim)
      : bytes(static_cast<std::size_t>(
                  (rows + kCodeRows - 1) / kCodeRows * kCodeRows * heads * dim + 64),
              std::uint8_t{9}) {
    auto* at = reinterpret_cast<std::uint8_t*>(
        (reinterpret_cast<std::uintptr_t>(bytes.data()) + 63) / 64 * 64);
    for (std::int64_t b = 0; b < (rows + kCodeRows - 1) / kCodeRows; ++b)
      list.push_back(at + b * kCodeRows * heads * dim);
  }
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint8_t*> list;
};

class KeyCodesTest : public ::testing::TestWithParam<Shape> {
 protected:
  KeyCodesTest()
      : rows_(std::get<0>(GetParam())),
        heads_(std::get<1>(GetParam())),
        queries_(std::get<2>(GetParam())),
        dim_(std::get<3>(GetParam())),
        kv_(rows_, heads_, dim_, std::get<4>(GetParam()), std::get<5>(GetParam()), 71),
        q_(random_floats(queries_ * (dim_ + 3), 72)),
        codes_(rows_, heads_, dim_) {
    // The ranges are narrower than the keys, so that some keys are clamped. One channel has no
    // width.
    for (const float x : random_floats(std::int64_t{heads_} * dim_, 73)) {
      lows_.push_back(-2 + 0.1f * x);
      steps_.push_back((4 + 0.2f * x) / 255);
    }
    steps_[3] = 0;
    for (std::int64_t r = rows_ - 1; r >= 0; r -= 1 + r % 3)
      listed_.push_back(static_cast<std::int32_t>(r));
    listed_.push_back(static_cast<std::int32_t>(rows_ / 2));  // one row twice and out of order
  }
  KeyCodesArgs codes_args(const Blocks& to) const {
    return {kv_.view(false), 0, rows_, lows_.data(), steps_.data(), to.list.data()};
  }
  CodedKeys keys() const { return {codes_.list.data(), steps_.data(), rows_, heads_, dim_}; }
  CodeScoresArgs scores_args(std::vector<float>& out) const {
    out.assign(static_cast<std::size_t>(queries_) * (listed_.size() + 2), 7.0f);
    return {q_.data(),      queries_,
            dim_ + 3,       0.3f,
            keys(),         heads_ - 1,
            listed_.data(), static_cast<std::int64_t>(listed_.size()),
            out.data(),     static_cast<std::int64_t>(listed_.size()) + 2};
  }

  const std::int64_t rows_;
  const std::int32_t heads_;
  const std::int64_t queries_;
  const std::int32_t dim_;
  PagedKv kv_;
  std::vector<float> q_, lows_, steps_;
  std::vector<std::int32_t> listed_;
  Blocks codes_;
};

TEST_P(KeyCodesTest, CodesAreTheNearestWholeNumbers) {
  Blocks expected(rows_, heads_, dim_);
  ASSERT_OK(key_codes_reference(codes_args(expected)));
  ASSERT_OK(key_codes(codes_args(codes_)));
  for (std::size_t b = 0; b < expected.list.size(); ++b) {
    for (std::int64_t i = 0; i < kCodeRows * heads_ * dim_; ++i) {
      // Half-way between two codes, f32 and f64 may round differently.
      ASSERT_LE(std::abs(int{codes_.list[b][i]} - int{expected.list[b][i]}), 1)
          << "block " << b << " at " << i;
    }
  }
  // Two pieces give the same codes.
  Blocks pieces(rows_, heads_, dim_);
  KeyCodesArgs args = codes_args(pieces);
  args.end = rows_ / 3;
  ASSERT_OK(key_codes(args));
  args.begin = args.end;
  args.end = rows_;
  ASSERT_OK(key_codes(args));
  for (std::size_t b = 0; b < pieces.list.size(); ++b)
    EXPECT_TRUE(
        std::equal(pieces.list[b], pieces.list[b] + kCodeRows * heads_ * dim_, codes_.list[b]))
        << "block " << b;
}

TEST_P(KeyCodesTest, ScoresAgreeWithTheReferenceButForRoundedQueries) {
  ASSERT_OK(key_codes(codes_args(codes_)));
  std::vector<float> expected, actual, alone;
  ASSERT_OK(code_scores_reference(scores_args(expected)));
  const CodeScoresArgs args = scores_args(actual);
  ASSERT_OK(code_scores(args));
  for (std::int64_t i = 0; i < queries_; ++i) {
    float largest = 0;
    for (std::int32_t c = 0; c < dim_; ++c)
      largest = std::max(largest,
                         std::abs(q_[static_cast<std::size_t>(i * args.ldq + c)] *
                                  steps_[static_cast<std::size_t>((heads_ - 1) * dim_ + c)]));
    for (std::int64_t j = 0; j < args.num_rows; ++j) {
      const std::uint8_t* code =
          codes_.list[static_cast<std::size_t>(listed_[static_cast<std::size_t>(j)] / kCodeRows)] +
          code_at(dim_, heads_ - 1, listed_[static_cast<std::size_t>(j)]);
      const double sum = std::accumulate(code, code + dim_, 0.0),
                   at_most = args.scale * largest / 254 * sum * 1.001 + 1e-5;
      const auto at = static_cast<std::size_t>(i * args.ld_scores + j);
      ASSERT_LE(std::abs(double{actual[at]} - expected[at]), at_most)
          << "query " << i << " row " << j;
    }
    EXPECT_EQ(actual[static_cast<std::size_t>(i * args.ld_scores + args.num_rows)], 7.0f)
        << "written behind the last row";
  }
  set_num_threads(1);
  const Status status = code_scores(scores_args(alone));
  set_num_threads(0);
  ASSERT_OK(status);
  EXPECT_EQ(alone, actual);
  for (std::int64_t j = 0; j < args.num_rows; j += 5) {
    CodeScoresArgs one = scores_args(alone);
    one.rows += j;
    one.num_rows = 1;
    ASSERT_OK(code_scores(one));
    for (std::int64_t i = 0; i < queries_; ++i)
      ASSERT_EQ(alone[static_cast<std::size_t>(i * args.ld_scores)],
                actual[static_cast<std::size_t>(i * args.ld_scores + j)])
          << "row " << j;
  }
}

TEST_P(KeyCodesTest, NeighboursNeedNoListAndRunsOfAListScoreAsSingleRows) {
  ASSERT_OK(key_codes(codes_args(codes_)));
  // Every row gives the same score, wherever a piece begins and ends.
  std::vector<float> singly, expected, together;
  CodeScoresArgs args = scores_args(singly);
  std::vector<std::int32_t> every(static_cast<std::size_t>(rows_));
  std::iota(every.begin(), every.end(), 0);
  std::shuffle(every.begin(), every.end(), std::mt19937(76));
  const auto n = static_cast<std::size_t>(rows_);
  singly.assign(static_cast<std::size_t>(queries_) * n, 7.0f);
  args.rows = every.data();
  args.num_rows = args.ld_scores = rows_;
  args.scores = singly.data();
  ASSERT_OK(code_scores(args));
  for (std::int64_t first = 0; first < rows_; first += 1 + first / 3) {
    const std::int64_t count = rows_ - first;
    expected.assign(static_cast<std::size_t>(queries_ * count), 7.0f);
    together.assign(expected.size(), 7.0f);
    args.rows = nullptr;
    args.first_row = first;
    args.num_rows = args.ld_scores = count;
    args.scores = together.data();
    ASSERT_OK(code_scores(args));
    for (std::size_t j = 0; j < n; ++j) {
      if (every[j] < first) continue;
      for (std::size_t i = 0; i < static_cast<std::size_t>(queries_); ++i)
        ASSERT_EQ(together[i * static_cast<std::size_t>(count) +
                           static_cast<std::size_t>(every[j] - first)],
                  singly[i * n + j])
            << "row " << every[j];
    }
    std::vector<std::int32_t> listed(static_cast<std::size_t>(count));
    std::iota(listed.begin(), listed.end(), static_cast<std::int32_t>(first));
    args.rows = listed.data();
    args.scores = expected.data();
    ASSERT_OK(code_scores(args));
    ASSERT_EQ(expected, together) << "from row " << first;
    ASSERT_OK(code_scores_reference(args));
    args.rows = nullptr;
    args.scores = together.data();
    ASSERT_OK(code_scores_reference(args));
    ASSERT_EQ(expected, together) << "from row " << first;
  }
}

INSTANTIATE_TEST_SUITE_P(
    OddShapes, KeyCodesTest,
    ::testing::Values(Shape{1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
                      Shape{67, 3, 5, 24, DType::kF16, TestLayout::kTokenMajor},
                      Shape{130, 2, 4, 64, DType::kBF16, TestLayout::kHeadMajor},
                      Shape{301, 2, 11, 128, DType::kBF16, TestLayout::kTokenMajor},
                      Shape{64, 1, 3, 256, DType::kBF16, TestLayout::kHeadMajor}));

TEST(KeyCodes, WithinTheRangeAKeyIsHalfAStepAway) {
  const std::int64_t rows = 90, dim = 64;
  const PagedKv kv(rows, 1, dim, DType::kBF16, TestLayout::kHeadMajor, 74);
  const KvView view = kv.view(false);
  std::vector<float> lows(dim, 1e30f), steps(dim, -1e30f);
  const auto key = [&](std::int64_t row, std::int64_t c) {
    return load_f32(static_cast<const std::byte*>(view.pages[row / kPageTokens]) +
                        row % kPageTokens * view.token_stride,
                    view.dtype, c);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t c = 0; c < static_cast<std::size_t>(dim); ++c) {
      lows[c] = std::min(lows[c], key(row, static_cast<std::int64_t>(c)));
      steps[c] = std::max(steps[c], key(row, static_cast<std::int64_t>(c)));
    }
  }
  for (std::size_t c = 0; c < static_cast<std::size_t>(dim); ++c)
    steps[c] = (steps[c] - lows[c]) / 255;
  Blocks codes(rows, 1, dim);
  ASSERT_OK(key_codes({view, 0, rows, lows.data(), steps.data(), codes.list.data()}));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < dim; ++c) {
      const auto i = static_cast<std::size_t>(c);
      EXPECT_NEAR(
          lows[i] +
              steps[i] *
                  codes.list[static_cast<std::size_t>(row / kCodeRows)][code_at(dim, 0, row) + c],
          key(row, c), steps[i] * 0.501f);
    }
  }
}

TEST(KeyCodes, BadArgumentsAreNamed) {
  const PagedKv kv(40, 2, 64, DType::kBF16, TestLayout::kHeadMajor, 75);
  Blocks codes(40, 2, 64);
  const std::vector<float> zeros(128, 0.0f), q(64, 1.0f);
  std::vector<float> scores(4);
  const std::vector<std::int32_t> rows = {3, 40};
  EXPECT_EQ(
      key_codes({kv.view(false), 0, 41, zeros.data(), zeros.data(), codes.list.data()}).field(),
      "end");
  EXPECT_EQ(key_codes({kv.view(false), 0, 4, zeros.data(), zeros.data(), nullptr}).field(), "kv");
  CodeScoresArgs args{
      q.data(), 1,           64, 1.0f,          {codes.list.data(), zeros.data(), 40, 2, 64},
      1,        rows.data(), 2,  scores.data(), 2};
  EXPECT_EQ(code_scores(args).field(), "rows");
  args.rows = nullptr;
  args.first_row = 39;
  EXPECT_EQ(code_scores(args).field(), "rows");
  args.rows = rows.data();
  args.num_rows = 1;
  ASSERT_OK(code_scores(args));
  EXPECT_EQ(scores[0], 0.0f) << "channels without width";
  // Such inputs give no useful scores, but nothing undefined either.
  const std::vector<float> ones(128, 1.0f), not_finite = {NAN, INFINITY, -INFINITY};
  std::vector<float> broken = q;
  std::copy(not_finite.begin(), not_finite.end(), broken.begin());
  args.keys.steps = ones.data();
  args.q = broken.data();
  ASSERT_OK(code_scores(args));
  args.q = q.data();
  args.kv_head = 2;
  EXPECT_EQ(code_scores(args).field(), "kv_head");
  args.kv_head = 0;
  args.ldq = 63;
  EXPECT_EQ(code_scores(args).field(), "ldq");
  args.num_rows = 0;
  ASSERT_OK(code_scores(args));
}

}  // namespace
}  // namespace quire
