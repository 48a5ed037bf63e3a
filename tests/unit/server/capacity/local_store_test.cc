#include "server/capacity/local_store.h"

#include <gtest/gtest.h>

namespace quire::capacity {
namespace {

LocalStore make(std::uint64_t dram, std::uint64_t disk, std::uint32_t parts = 1) {
  return LocalStore({dram, disk, StorePolicy::kLru, {1, 1, 0}, parts});
}

TEST(LocalStore, WhatMemoryLosesIsStillOnDisk) {
  LocalStore s = make(200, 0);
  EXPECT_FALSE(s.read(1, 100).any());
  EXPECT_EQ(s.write(1, 100), 100u);
  s.write(2, 100);
  s.write(3, 100);  // memory has 2 and 3
  EXPECT_EQ(s.read(3, 100).dram, 100);
  EXPECT_EQ(s.read(1, 100).disk, 100);  // comes back for 2, which was used longest ago
  EXPECT_EQ(s.read(1, 100).dram, 100);
  EXPECT_EQ(s.read(2, 100).disk, 100);
}

TEST(LocalStore, WhatTheDiskLosesMemoryLosesToo) {
  LocalStore s = make(1000, 200);
  s.write(1, 100);
  s.write(2, 100);
  s.write(3, 100);
  EXPECT_FALSE(s.read(1, 100).any());
  EXPECT_EQ(s.dram().used_bytes(), 200u);
  EXPECT_EQ(s.disk().evictions(), 1u);
}

TEST(LocalStore, AContextLeavesMemoryByParts) {
  LocalStore s = make(150, 0, 4);
  s.write(1, 100);
  s.write(2, 100);  // half of the first has to go
  const auto found = s.read(1, 100);
  EXPECT_EQ(found.dram, 50);
  EXPECT_EQ(found.disk, 50);
}

TEST(LocalStore, SketchesTakeRoomUntilTheyAreEvicted) {
  LocalStore s({200, 0, StorePolicy::kLru, {1, 1.2, 10}, 1});
  EXPECT_EQ(s.write(1, 100), 130u);
  EXPECT_EQ(s.dram().used_bytes(), 130u);
  s.write(2, 50);  // 50 of KV and 20 of sketches
  EXPECT_EQ(s.dram().used_bytes(), 200u);
  s.read(1, 100);
  s.write(3, 1);  // 1 and 10: the sketches of the first go, unused for longest
  EXPECT_EQ(s.read(1, 100).dram, 100);
  EXPECT_EQ(s.read(2, 50).dram, 50);
}

TEST(LocalStore, AContextAboveTheBudgetIsNotKept) {
  LocalStore s = make(1000, 50);
  EXPECT_EQ(s.write(1, 100), 0u);
  EXPECT_FALSE(s.read(1, 100).any());
}

TEST(LocalStore, WritingTwiceWritesOnce) {
  LocalStore s = make(1000, 0);
  EXPECT_EQ(s.write(1, 100), 100u);
  EXPECT_EQ(s.write(1, 100), 0u);
  EXPECT_EQ(s.disk().used_bytes(), 100u);
}

}  // namespace
}  // namespace quire::capacity
