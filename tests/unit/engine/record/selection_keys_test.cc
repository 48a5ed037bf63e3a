// Stored keys of the selection heads: they read back, and damaged bytes are refused.
#include "engine/record/selection_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace quire::testing {
namespace {

SelectionKeysShape shape() { return {{{1, 0}, {1, 2}, {3, 1}}, 6, 11}; }

std::vector<float> key_of(std::size_t pair, std::int64_t token) {
  std::mt19937 random(static_cast<std::uint32_t>(pair * 100 + static_cast<std::size_t>(token)));
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> out(6);
  for (float& x : out) x = normal(random);
  return out;
}

std::vector<std::byte> full_record() {
  auto record = begin_selection_keys(shape());
  for (std::size_t p = 0; p < 3; ++p) {
    for (std::int64_t t = 0; t < 11; ++t)
      put_selection_key(record, shape(), p, t, key_of(p, t).data());
  }
  return record;
}

TEST(SelectionKeys, KeysComeBackToAHundredthOfTheirLargestChannel) {
  const auto record = full_record();
  const auto view = SelectionKeysView::parse(record);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->shape(), shape());
  std::vector<float> got(3 * 6);
  for (std::size_t p = 0; p < 3; ++p) {
    view->keys(p, 4, 3, got);
    for (std::int64_t t = 0; t < 3; ++t) {
      const auto expected = key_of(p, 4 + t);
      float largest = 0;
      for (const float x : expected) largest = std::max(largest, std::abs(x));
      for (std::size_t c = 0; c < 6; ++c)
        EXPECT_NEAR(got[static_cast<std::size_t>(t) * 6 + c], expected[c], largest / 100);
    }
  }
}

TEST(SelectionKeys, WhatIsNotFiniteCountsAsZero) {
  auto record = begin_selection_keys(shape());
  const float bad[6] = {std::numeric_limits<float>::infinity(), 1, std::nanf(""), -2, 0, 0.5f};
  put_selection_key(record, shape(), 0, 0, bad);
  std::vector<float> got(6);
  SelectionKeysView::parse(record)->keys(0, 0, 1, got);
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[2], 0);
  EXPECT_NEAR(got[3], -2, 0.02);
}

TEST(SelectionKeys, EveryWrongHeaderOrLengthIsRefused) {
  const auto record = full_record();
  for (std::size_t size = 0; size < record.size(); size += 7)
    EXPECT_EQ(SelectionKeysView::parse(std::span(record).first(size)).status().code(),
              Code::kCorruption)
        << size;
  for (const std::size_t byte : {0u, 4u, 8u, 12u, 16u, 23u}) {
    auto bad = record;
    bad[byte] ^= std::byte{0x41};
    EXPECT_EQ(SelectionKeysView::parse(bad).status().code(), Code::kCorruption) << byte;
  }
  auto unordered = record;
  unordered[32 + 4] = std::byte{2};  // the first pair equals the second
  EXPECT_EQ(SelectionKeysView::parse(unordered).status().code(), Code::kCorruption);
}

TEST(SelectionHeads, PairsAreOrderedAndUnique) {
  SelectionHeads heads;
  heads.heads = {{5, 7}, {2, 3}, {5, 6}, {2, 0}};
  EXPECT_EQ(heads.last_layer(), 5);
  const std::vector<SelectionHeads::Pair> expected = {{2, 0}, {2, 1}, {5, 2}};
  EXPECT_EQ(heads.pairs(3), expected);
  EXPECT_EQ(SelectionHeads().last_layer(), -1);
}

}  // namespace
}  // namespace quire::testing
