#include "kernels/choice/row_votes.h"

#include <limits>
#include <tuple>

#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Shape = std::tuple<std::int64_t, std::int32_t, std::int64_t, std::int32_t, std::int32_t,
                         DType, TestLayout>;

class RowVotesTest : public ::testing::TestWithParam<Shape> {
 protected:
  RowVotesTest()
      : rows_(std::get<0>(GetParam())),
        heads_(std::get<1>(GetParam())),
        groups_(std::get<2>(GetParam())),
        group_(std::get<3>(GetParam())),
        dim_(std::get<4>(GetParam())),
        kv_(rows_, heads_, dim_, std::get<5>(GetParam()), std::get<6>(GetParam()), 51),
        q_(random_floats(groups_ * group_ * dim_, 52)),
        lse_(random_floats(groups_ * group_, 53, 4.0f)) {
    for (std::int64_t i = 0; i < groups_; ++i)
      limits_.push_back(static_cast<std::int32_t>(i == 0 ? -1 : i * rows_ / groups_));
    // Positions are not in the order of the rows.
    for (std::size_t r = 0; r + 3 < kv_.positions().size(); r += 4)
      std::swap(kv_.positions()[r], kv_.positions()[r + 2]);
  }
  RowVotesArgs args(std::vector<float>& votes, std::int64_t first) const {
    const std::int64_t n = rows_ - first;
    votes.assign(static_cast<std::size_t>(groups_ * (n + 3)), 7.0f);
    return {q_.data(),       lse_.data(), limits_.data(), groups_, group_,       0.25f,
            kv_.view(false), heads_ - 1,  first,          n,       votes.data(), n + 3};
  }

  const std::int64_t rows_;
  const std::int32_t heads_;
  const std::int64_t groups_;
  const std::int32_t group_, dim_;
  PagedKv kv_;
  const std::vector<float> q_, lse_;
  std::vector<std::int32_t> limits_;
};

TEST_P(RowVotesTest, AgreesWithTheReferenceWhateverTheThreads) {
  for (const std::int64_t first : {std::int64_t{0}, rows_ / 3, rows_}) {
    std::vector<float> expected, votes, one;
    ASSERT_OK(row_votes_reference(args(expected, first)));
    ASSERT_OK(row_votes(args(votes, first)));
    expect_close(votes, expected, 1e-4, 1e-5, "votes");
    set_num_threads(1);
    const Status alone = row_votes(args(one, first));
    set_num_threads(0);
    ASSERT_OK(alone);
    EXPECT_EQ(one, votes);
  }
}

TEST_P(RowVotesTest, AVoteDependsOnItsGroupAndRowAlone) {
  std::vector<float> all;
  const RowVotesArgs many = args(all, 0);
  ASSERT_OK(row_votes(many));
  for (std::int64_t j = 0; j < rows_; j += 7) {
    const std::int64_t i = j % groups_;
    float vote = 7.0f;
    RowVotesArgs single = many;
    single.q += i * group_ * dim_;
    single.lse += i * group_;
    single.limits += i;
    single.num_groups = single.num_rows = single.ld_votes = 1;
    single.first_row = j;
    single.votes = &vote;
    ASSERT_OK(row_votes(single));
    EXPECT_EQ(vote, all[static_cast<std::size_t>(i * many.ld_votes + j)])
        << "group " << i << " row " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RowVotesTest,
    ::testing::Values(Shape{1, 1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
                      Shape{37, 2, 3, 5, 24, DType::kF16, TestLayout::kTokenMajor},
                      Shape{131, 3, 16, 4, 64, DType::kBF16, TestLayout::kHeadMajor},
                      Shape{700, 2, 9, 7, 128, DType::kF16, TestLayout::kHeadMajor},
                      Shape{65, 1, 2, 16, 256, DType::kF32, TestLayout::kTokenMajor},
                      Shape{96, 2, 33, 3, 80, DType::kF16, TestLayout::kHeadMajor},
                      Shape{131, 2, 9, 4, 80, DType::kF8, TestLayout::kTokenMajor}));

TEST(RowVotes, AQueryThatGivesNothingLeavesTheVoteToOthers) {
  PagedKv kv(40, 1, 16, DType::kF32, TestLayout::kHeadMajor, 54);
  const auto q = random_floats(2 * 16, 55);
  const std::int32_t limit = 100;
  std::vector<float> both(40), second(40);
  const float lse[2] = {kInfinity, 1.5f};
  ASSERT_OK(
      row_votes({q.data(), lse, &limit, 1, 2, 1.0f, kv.view(true), 0, 0, 40, both.data(), 40}));
  ASSERT_OK(row_votes(
      {q.data() + 16, lse + 1, &limit, 1, 1, 1.0f, kv.view(true), 0, 0, 40, second.data(), 40}));
  EXPECT_EQ(both, second);
}

TEST(RowVotes, BadArgumentsAreNamed) {
  PagedKv kv(20, 2, 16, DType::kF16, TestLayout::kHeadMajor, 3);
  std::vector<float> q(32), votes(40), lse(2);
  const std::vector<std::int32_t> limits = {5, 6};
  const RowVotesArgs good{q.data(), lse.data(), limits.data(), 2, 1, 1.0f, kv.view(true), 1,
                          0,        20,         votes.data(),  20};
  EXPECT_TRUE(row_votes(good).ok());
  const auto field = [&](auto&& change) {
    RowVotesArgs bad = good;
    change(bad);
    return std::string(row_votes(bad).field());
  };
  EXPECT_EQ(field([](RowVotesArgs& a) { a.kv_head = 2; }), "kv_head");
  EXPECT_EQ(field([](RowVotesArgs& a) { a.first_row = 1; }), "rows");
  EXPECT_EQ(field([](RowVotesArgs& a) { a.group = 0; }), "group");
  EXPECT_EQ(field([](RowVotesArgs& a) { a.ld_votes = 19; }), "ld_votes");
  EXPECT_EQ(field([](RowVotesArgs& a) { a.lse = nullptr; }), "q");
  EXPECT_EQ(field([](RowVotesArgs& a) { a.kv.dtype = DType::kI8; }), "kv.dtype");
}

}  // namespace
}  // namespace quire
