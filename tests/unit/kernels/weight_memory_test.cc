#include "kernels/cpu/weight_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace quire::cpu {
namespace {

TEST(WeightBuffer, BuffersOfAnySizeLieApartAndAligned) {
  std::vector<WeightBuffer> all;
  std::uint8_t mark = 0;
  // Beyond one shared mapping, and with some that have their own.
  for (int round = 0; round < 6; ++round)
    for (const std::size_t bytes : {1u, 63u, 64u, 65u, 3'000'001u, 7u << 20, 8u << 20, 9'000'000u})
      all.emplace_back(bytes);
  for (const WeightBuffer& b : all) {
    ASSERT_NE(b.as<std::byte>(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.as<std::byte>()) % 64, 0u);
    std::memset(b.as<std::byte>(), ++mark, b.size_bytes());
  }
  mark = 0;
  for (const WeightBuffer& b : all) {
    ++mark;
    const auto* bytes = b.as<const std::uint8_t>();
    EXPECT_TRUE(bytes[0] == mark && bytes[b.size_bytes() / 2] == mark &&
                bytes[b.size_bytes() - 1] == mark);
  }
}

TEST(WeightBuffer, ABufferOutlivesThoseBesideIt) {
  std::vector<WeightBuffer> all;
  for (int i = 0; i < 40; ++i) all.emplace_back(std::size_t{1} << 20);
  WeightBuffer kept = all[7];
  std::memset(kept.as<std::byte>(), 7, kept.size_bytes());
  all.clear();
  EXPECT_EQ(kept.as<std::uint8_t>()[kept.size_bytes() - 1], 7);
  kept = WeightBuffer();
  EXPECT_EQ(kept.as<std::byte>(), nullptr);
  EXPECT_EQ(WeightBuffer(0).size_bytes(), 0u);
  WeightBuffer again(100);
  EXPECT_NE(again.as<std::byte>(), nullptr);
}

TEST(WeightBuffer, ThreadsTakeAndGiveBackAtOnce) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        WeightBuffer b(static_cast<std::size_t>(1 + i * 1000));
        std::memset(b.as<std::byte>(), t, b.size_bytes());
        EXPECT_EQ(b.as<std::uint8_t>()[b.size_bytes() - 1], t);
      }
    });
}

}  // namespace
}  // namespace quire::cpu
