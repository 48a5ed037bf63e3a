#include "engine/sample/automata/decimal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace quire {
namespace {

TEST(Decimal, HasTheDigitsThatATextHas) {
  const std::pair<double, const char*> cases[] = {{0, "0"},
                                                  {-0.0, "0"},
                                                  {1, "1"},
                                                  {-2.5, "-2.5"},
                                                  {0.01, "0.01"},
                                                  {1e-7, "0.0000001"},
                                                  {1200, "1200"},
                                                  {123456.75, "123456.75"},
                                                  {0.30000000000000004, "0.30000000000000004"},
                                                  {1e21, "1000000000000000000000"},
                                                  {1.5e17, "150000000000000000"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(Decimal(value).text(), text);
  EXPECT_EQ(Decimal(std::numeric_limits<std::int64_t>::min()).text(), "-9223372036854775808");
  EXPECT_EQ(Decimal(std::numeric_limits<std::uint64_t>::max()).text(), "18446744073709551615");
  EXPECT_EQ(Decimal(1e300).whole().size(), 301u);
  EXPECT_EQ(Decimal(5e-324).fraction().size(), 324u);
  EXPECT_EQ(Decimal(3.0), Decimal(std::int64_t{3}));
  EXPECT_TRUE(Decimal(-0.0).zero());
  EXPECT_FALSE(Decimal(-0.0).negative());
}

TEST(Decimal, OrdersAsNumbersDo) {
  const std::vector<double> ascending = {-1e300, -12.5, -12, -2.75, -2.5,  -0.1, 0,
                                         1e-300, 0.01,  0.1, 0.11,  0.999, 1,    9,
                                         9.5,    10,    99,  100.5, 1e300};
  for (const double a : ascending)
    for (const double b : ascending)
      EXPECT_EQ(Decimal(a) <=> Decimal(b), std::strong_order(a, b)) << a << " and " << b;
}

}  // namespace
}  // namespace quire
