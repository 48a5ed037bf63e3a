#include "base/nearest_name.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(NearestName, TheNameWithTheFewestEditsWins) {
  const std::vector<std::string> names = {"temperature", "top_k", "top_p"};
  EXPECT_EQ(nearest_name("temprature", names), "temperature");
  EXPECT_EQ(nearest_name("top-p", names), "top_p");
}

TEST(NearestName, WhatIsNotCloseIsNotSuggested) {
  EXPECT_EQ(nearest_name("seed", {"temperature", "stop_token_ids"}), "");
  EXPECT_EQ(nearest_name("seed", {}), "");
  EXPECT_EQ(nearest_name(std::string(65, 'a'), {std::string(64, 'a')}), "");
}

}  // namespace
}  // namespace quire
