#include "cachestore/dram_tier.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

using record::Part;
using record::ValueName;

std::shared_ptr<ValueBuffer> buffer(std::size_t n) { return std::make_shared<ValueBuffer>(n); }
ValueName name(SegmentId s, std::uint32_t b) { return {s, Part::kValue, b, 0}; }
constexpr std::size_t kOne = 1024 - ValueBuffer::kLead -
                             ValueBuffer::kAlign;  // 1 KiB with its header

class DramTierTest : public ::testing::TestWithParam<StorePolicy> {
 protected:
  std::set<SegmentId> pinned;
  DramTier tier{10 * 1024, GetParam(), [this](SegmentId s) { return pinned.contains(s); }};
};

TEST_P(DramTierTest, NeverHoldsMoreThanItsBudget) {
  for (std::uint32_t i = 0; i < 100; ++i) {
    EXPECT_TRUE(tier.insert(name(1 + i % 7, i), buffer(1 + (i * 397) % 3000)));
    EXPECT_LE(tier.stats().used_bytes, tier.stats().capacity_bytes);
  }
  EXPECT_GT(tier.stats().evictions, 0u);
  EXPECT_FALSE(tier.insert(name(9, 1), buffer(20000))) << "larger than the tier";
}

TEST_P(DramTierTest, ValuesInUseAndOfPinnedSegmentsStay) {
  auto held = buffer(kOne);
  pinned.insert(2);
  ASSERT_TRUE(tier.insert(name(1, 0), held));
  ASSERT_TRUE(tier.insert(name(2, 0), buffer(kOne)));
  for (std::uint32_t i = 0; i < 50; ++i) tier.insert(name(3, i), buffer(kOne));
  EXPECT_TRUE(tier.contains(name(1, 0)));
  EXPECT_TRUE(tier.contains(name(2, 0)));
  held.reset();
  pinned.clear();
  for (std::uint32_t i = 0; i < 50; ++i) tier.insert(name(4, i), buffer(kOne));
  EXPECT_FALSE(tier.contains(name(1, 0)));
  EXPECT_FALSE(tier.contains(name(2, 0)));
}

TEST_P(DramTierTest, RefusesWhenPinsLeaveNoRoom) {
  pinned.insert(1);
  for (std::uint32_t i = 0; i < 10; ++i) ASSERT_TRUE(tier.insert(name(1, i), buffer(kOne)));
  EXPECT_FALSE(tier.insert(name(2, 0), buffer(kOne)));
  EXPECT_EQ(tier.stats().used_bytes, 10u * 1024);
}

TEST_P(DramTierTest, ErasingASegmentFreesItsValuesOnly) {
  for (std::uint32_t i = 0; i < 4; ++i) {
    tier.insert(name(1, i), buffer(kOne));
    tier.insert(name(2, i), buffer(kOne));
  }
  tier.erase_segment(1);
  tier.erase_segment(77);
  EXPECT_EQ(tier.stats().num_values, 4u);
  EXPECT_EQ(tier.stats().used_bytes, 4u * 1024);
  EXPECT_FALSE(tier.contains(name(1, 2)));
  EXPECT_TRUE(tier.contains(name(2, 2)));
}

TEST_P(DramTierTest, CountsHitsAndMisses) {
  tier.insert(name(1, 0), buffer(100));
  EXPECT_NE(tier.find(name(1, 0)), nullptr);
  EXPECT_EQ(tier.find(name(1, 1)), nullptr);
  EXPECT_EQ(tier.find({1, Part::kSketch, 0, 0}), nullptr)
      << "a sketch is not the value of the same number";
  EXPECT_EQ(tier.stats().hits, 1u);
  EXPECT_EQ(tier.stats().misses, 2u);
}

TenantQuotas quotas(std::uint64_t a_bytes, double a_share = 1) {
  TenantQuotas q;
  q.enabled = true;
  q.named["a"].dram_bytes = a_bytes;
  q.named["a"].share = a_share;
  return q;
}

TEST_P(DramTierTest, ATenantNeverHoldsMoreThanItsQuota) {
  DramTier shared(
      10 * 1024, GetParam(), [](SegmentId) { return false; }, quotas(3 * 1024));
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(shared.insert(name(1, i), buffer(kOne), "b"));
  for (std::uint32_t i = 0; i < 20; ++i) {
    EXPECT_TRUE(shared.insert(name(2, i), buffer(kOne), "a"));
    EXPECT_LE(shared.bytes_of("a"), 3u * 1024);
  }
  EXPECT_EQ(shared.bytes_of("a"), 3u * 1024);
  EXPECT_EQ(shared.bytes_of("b"), 4u * 1024) << "there was room, so nothing of it had to go";
  EXPECT_EQ(shared.bytes_of("unknown"), 0u);
  EXPECT_FALSE(shared.insert(name(3, 0), buffer(4 * 1024), "a")) << "larger than the quota";
  shared.erase_segment(2);
  EXPECT_EQ(shared.bytes_of("a"), 0u);
}

TEST_P(DramTierTest, WhatATenantHoldsLeavesNoRoomInItsQuota) {
  std::set<SegmentId> held{1};
  DramTier shared(
      10 * 1024, GetParam(), [&](SegmentId s) { return held.contains(s); }, quotas(2 * 1024));
  for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(shared.insert(name(1, i), buffer(kOne), "a"));
  EXPECT_FALSE(shared.insert(name(2, 0), buffer(kOne), "a"));
  EXPECT_TRUE(shared.insert(name(3, 0), buffer(kOne), "b"));
  held.clear();
  EXPECT_TRUE(shared.insert(name(2, 0), buffer(kOne), "a"));
}

TEST_P(DramTierTest, AFullTierIsSharedByWeight) {
  // Tenant `a` has three shares of four, and `b` one.
  DramTier shared(
      8 * 1024, GetParam(), [](SegmentId) { return false; }, quotas(0, 3));
  for (std::uint32_t i = 0; i < 8; ++i) ASSERT_TRUE(shared.insert(name(1, i), buffer(kOne), "b"));
  EXPECT_EQ(shared.bytes_of("b"), 8u * 1024) << "nobody else wants it";
  for (std::uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(shared.insert(name(2, i), buffer(kOne), "a"));
    ASSERT_TRUE(shared.insert(name(3, i), buffer(kOne), "b"));
  }
  EXPECT_EQ(shared.bytes_of("a") + shared.bytes_of("b"), 8u * 1024);
  EXPECT_GE(shared.bytes_of("a"), 5u * 1024);
  EXPECT_GE(shared.bytes_of("b"), 1u * 1024);
}

TEST_P(DramTierTest, UsesCountWithinATenant) {
  DramTier shared(
      100 * 1024, GetParam(), [](SegmentId) { return false; }, quotas(4 * 1024));
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(shared.insert(name(1, i), buffer(kOne), "a"));
  for (int use = 0; use < 3; ++use) EXPECT_NE(shared.find(name(1, 0)), nullptr);
  ASSERT_TRUE(shared.insert(name(1, 4), buffer(kOne), "a"));
  EXPECT_TRUE(shared.contains(name(1, 0)));
  EXPECT_FALSE(shared.contains(name(1, 1)));
}

INSTANTIATE_TEST_SUITE_P(Policies, DramTierTest,
                         ::testing::Values(StorePolicy::kLru, StorePolicy::kS3Fifo));

}  // namespace
}  // namespace quire
