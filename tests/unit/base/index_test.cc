#include "base/index.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace quire {
namespace {

enum class Color : unsigned char { kRed, kGreen };

TEST(Index, IndicesAndSizesKeepTheirValues) {
  const std::vector<int> rows = {7, 8, 9};
  EXPECT_EQ(rows[at(std::int64_t{2})], 9);
  EXPECT_EQ(rows[at(std::int32_t{0})], 7);
  EXPECT_EQ(rows[at(Color::kGreen)], 8);
  EXPECT_EQ(std::vector<int>(to_size(std::int64_t{4})).size(), 4u);
  EXPECT_EQ(at(std::numeric_limits<std::int64_t>::max()), std::size_t{0x7fffffffffffffff});
  static_assert(at(3) == 3 && to_size(std::uint8_t{255}) == 255);
}

TEST(Index, CountsAreSigned) {
  EXPECT_EQ(count_of(std::vector<int>{}) - 1, -1);
  EXPECT_EQ(count_of(std::string("four")), 4);
  EXPECT_EQ(count_of(std::array<int, 2>{}), 2);
  static_assert(std::is_same_v<decltype(count_of(std::vector<int>{})), std::int64_t>);
}

TEST(Index, NarrowKeepsWhatFits) {
  EXPECT_EQ(narrow<std::int8_t>(std::int64_t{-128}), -128);
  EXPECT_EQ(narrow<std::uint8_t>(std::int64_t{255}), 255);
  EXPECT_EQ(narrow<std::int64_t>(std::uint64_t{1} << 62), std::int64_t{1} << 62);
  static_assert(narrow<std::uint32_t>(std::int64_t{5}) == 5u);
}

TEST(IndexDeathTest, NarrowAbortsOnWhatDoesNotFit) {
  EXPECT_DEATH((void)narrow<std::int8_t>(std::int64_t{128}), "does not fit");
  EXPECT_DEATH((void)narrow<std::uint32_t>(std::int32_t{-1}), "does not fit");
  EXPECT_DEATH((void)narrow<std::int64_t>(~std::uint64_t{0}), "does not fit");
}

}  // namespace
}  // namespace quire
