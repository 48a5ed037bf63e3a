/// Algorithms of products over a library that is made up.
#include "kernels/cuda/backend/product_choice.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::cuda {
namespace {

/// Has an algorithm for each row count, and counts what it is asked.
class ProductChoiceTest : public ::testing::Test {
 protected:
  Result<int> find(std::int64_t rows, std::int64_t ldy = 64) {
    return choice_.find(
        {0, rows, 64, 64, ldy},
        [this](const ProductChoice<int>::Shape& asked) -> Result<int> {
          asked_.push_back(asked.rows);
          if (fails_) return Status::unimplemented("no algorithm");
          return static_cast<int>(asked.rows);
        },
        [this](int) {
          ++checks_;
          return takes_;
        });
  }
  ProductChoice<int> choice_;
  std::vector<std::int64_t> asked_;
  int checks_ = 0;
  bool takes_ = true, fails_ = false;
};

TEST_F(ProductChoiceTest, RowCountsOfABucketShareAnAlgorithm) {
  EXPECT_EQ(*find(1), 16);
  EXPECT_EQ(*find(16), 16);
  EXPECT_EQ(*find(17), 32);
  EXPECT_EQ(*find(100000), 4096);
  EXPECT_EQ(asked_, (std::vector<std::int64_t>{16, 32, 4096}));
}

/// A decode step multiplies hundreds of times: nothing is asked or checked again.
TEST_F(ProductChoiceTest, ARefusedAlgorithmIsRememberedForItsRowCount) {
  takes_ = false;
  for (int step = 0; step < 3; ++step) EXPECT_EQ(*find(1), 1);
  EXPECT_EQ(asked_, (std::vector<std::int64_t>{16, 1}));
  EXPECT_EQ(checks_, 1);
  takes_ = true;
  EXPECT_EQ(*find(2), 16) << "another row count is checked for itself";
  for (int step = 0; step < 3; ++step) EXPECT_EQ(*find(2), 16);
  EXPECT_EQ(checks_, 2);
}

/// Outputs of an odd row stride, as those of an odd vocabulary, cannot be written 16 bytes at once.
TEST_F(ProductChoiceTest, OutputsOfAnotherRowStrideAreAskedForThemselves) {
  EXPECT_EQ(*find(16, 64), 16);
  EXPECT_EQ(*find(16, 32001), 16);
  EXPECT_EQ(asked_.size(), 2u);
  EXPECT_EQ(checks_, 2);
}

/// Whichever part of a matrix is multiplied, the whole matrix chooses as long as the part allows.
TEST_F(ProductChoiceTest, APartOfAMatrixTakesTheAlgorithmOfTheWhole) {
  using Shape = ProductChoice<int>::Shape;
  std::vector<Shape> asked;
  int taken = 0;  // of the answers, those from this one on
  const auto find = [&](const Shape& shape) {
    asked.clear();
    return *choice_.find(
        shape,
        [&](const Shape& one) -> Result<int> {
          asked.push_back(one);
          return static_cast<int>(one.n * 1000 + one.rows);
        },
        [&](int answer) { return answer < taken; });
  };
  taken = 1 << 30;
  EXPECT_EQ(find({0, 5, 64, 32, 64, 192, 200}), 192016);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].ldy, 200);
  EXPECT_EQ(asked[0].whole_n, 0);
  EXPECT_EQ(find({0, 5, 128, 32, 128, 192, 200}), 192016) << "another part";
  EXPECT_EQ(find({0, 9, 192, 32, 200}), 192016) << "the matrix itself";
  EXPECT_TRUE(asked.empty());
  taken = 192016;
  EXPECT_EQ(find({0, 6, 64, 32, 64, 192, 200}), 192006) << "for these rows alone";
  taken = 0;
  EXPECT_EQ(find({0, 7, 64, 32, 64, 192, 200}), 64007) << "for this part alone";
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[1].ldy, 64);
  EXPECT_EQ(find({0, 7, 64, 32, 64, 192, 200}), 64007);
  EXPECT_TRUE(asked.empty());
}

TEST_F(ProductChoiceTest, AFailureIsNotRemembered) {
  fails_ = true;
  EXPECT_EQ(find(1).code(), Code::kUnimplemented);
  fails_ = false;
  EXPECT_EQ(*find(1), 16);
}

TEST(ExecutionFailed, LosesTheDeviceOnlyIfTheDeviceSaysSo) {
  EXPECT_EQ(execution_failed("a product failed", {}).code(), Code::kInternal);
  const Status refused = execution_failed("a product failed", Status::internal("a bad launch"));
  EXPECT_EQ(refused.code(), Code::kInternal);
  EXPECT_NE(refused.message().find("a bad launch"), std::string::npos);
  const Status lost = execution_failed("a product failed",
                                       Status(Code::kDeviceLost, "an illegal address"));
  EXPECT_EQ(lost.code(), Code::kDeviceLost);
  EXPECT_NE(lost.message().find("an illegal address"), std::string::npos);
}

}  // namespace
}  // namespace quire::cuda
