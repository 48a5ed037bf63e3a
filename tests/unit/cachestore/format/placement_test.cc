#include "cachestore/format/placement.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using record::Part;
using record::ValueName;

Placement sample() {
  Placement p;
  p.range = {7, 3 * kExtentPage, 40 * kExtentPage};
  p.num_blocks = 3;
  p.values_per_block = 2;
  p.num_sketches = 2;
  p.slots.add(1000, 4);
  p.slots.add(64, 2);
  p.slots.add(1);
  p.slots.add(50000);
  return p;
}

TEST(ValueSlots, LieOneBehindTheOtherWithPayloadsOnMultiplesOf64) {
  std::mt19937_64 rng(3);
  for (int round = 0; round < 50; ++round) {
    ValueSlots slots;
    std::vector<std::uint32_t> sizes;
    for (int i = 0; i < 40; ++i) {
      const auto size = static_cast<std::uint32_t>(1 + rng() % 300);
      const auto count = static_cast<std::uint32_t>(1 + rng() % 3);
      slots.add(size, count);
      sizes.insert(sizes.end(), count, size);
    }
    ASSERT_EQ(slots.size(), sizes.size());
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto slot = slots.find(i);
      ASSERT_TRUE(slot);
      EXPECT_EQ(slot->payload_bytes, sizes[i]);
      EXPECT_GE(slot->header, end);
      EXPECT_LT(slot->header, end + 64 + 32);
      EXPECT_EQ((slot->header + record::kValueHeaderBytes) % 64, 0u);
      end = slot->header + record::kValueHeaderBytes + sizes[i];
    }
    EXPECT_GE(slots.bytes(), end);
    EXPECT_LT(slots.bytes(), end + 64);
    EXPECT_FALSE(slots.find(sizes.size()));
  }
}

TEST(ValueSlots, EqualLengthsTakeOneEntry) {
  ValueSlots slots;
  for (int i = 0; i < 100'000; ++i) slots.add(4096);
  slots.add(100);
  EXPECT_EQ(slots.runs().size(), 2u);
}

TEST(Placement, FindsValuesAndSketchesByName) {
  const Placement p = sample();
  EXPECT_EQ(p.find({1, Part::kValue, 0, 0})->header, 32u);
  EXPECT_EQ(p.find({1, Part::kValue, 1, 1})->payload_bytes, 1000u);
  EXPECT_EQ(p.find({1, Part::kValue, 2, 0})->payload_bytes, 64u);
  EXPECT_EQ(p.find({1, Part::kSketch, 0, 0})->payload_bytes, 1u);
  EXPECT_EQ(p.find({1, Part::kSketch, 1, 0})->payload_bytes, 50000u);
  EXPECT_FALSE(p.find({1, Part::kValue, 3, 0}));
  EXPECT_FALSE(p.find({1, Part::kValue, 0, 2}));
  EXPECT_FALSE(p.find({1, Part::kSketch, 2, 0}));
  EXPECT_FALSE(p.find({1, Part::kSketch, 0, 1}));
}

TEST(Placement, ComesBackFromItsRecordAndNothingElseDoes) {
  const Placement p = sample();
  const std::string bytes = record::encode_placement(p);
  EXPECT_LT(bytes.size(), 50u) << "a store has one for each context";
  const auto back = record::decode_placement(bytes);
  ASSERT_OK(back);
  EXPECT_EQ(*back, p);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(record::decode_placement(bytes.substr(0, i)).ok());
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 4);
    EXPECT_FALSE(record::decode_placement(flipped).ok()) << i;
  }
}

TEST(Placement, ThatDoesNotAddUpIsRefused) {
  const auto refused = [](Placement p) {
    EXPECT_EQ(record::decode_placement(record::encode_placement(p)).code(), Code::kCorruption);
  };
  Placement p = sample();
  p.range.bytes = kExtentPage;  // less than the slots take
  refused(p);
  p = sample();
  p.num_blocks = 4;  // more values than slots
  refused(p);
  p = sample();
  p.num_sketches = 1;  // fewer
  refused(p);
  p = sample();
  p.range.extent = 0;
  refused(p);
  p = {};
  p.range = {1, 0, kExtentPage};  // no value at all
  refused(p);
}

}  // namespace
}  // namespace quire
