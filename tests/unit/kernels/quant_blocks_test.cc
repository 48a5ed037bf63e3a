// Expanded blocks equal those of the Python package gguf, bit for bit
// (make_quant_blocks_golden.py).
#include "kernels/matmul/quant_blocks.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

/// ggml's numbers for these types.
const std::map<std::uint32_t, BlockType> kTypes = {
    {2, BlockType::kQ4_0},  {3, BlockType::kQ4_1},  {6, BlockType::kQ5_0},   {7, BlockType::kQ5_1},
    {8, BlockType::kQ8_0},  {10, BlockType::kQ2_K}, {11, BlockType::kQ3_K},  {12, BlockType::kQ4_K},
    {13, BlockType::kQ5_K}, {14, BlockType::kQ6_K}, {20, BlockType::kIQ4_NL}};

struct GoldenCase {
  BlockType type;
  std::int64_t num_blocks;
  std::string blocks;
  std::vector<float> weights;
};

std::vector<GoldenCase> golden() {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/tests/unit/kernels/quant_blocks_golden.bin",
                   std::ios::binary);
  const auto number = [&in] {
    std::uint32_t n = 0;
    in.read(reinterpret_cast<char*>(&n), sizeof n);
    return n;
  };
  std::vector<GoldenCase> cases(number());
  for (GoldenCase& c : cases) {
    c.type = kTypes.at(number());
    c.num_blocks = number();
    c.blocks.resize(static_cast<std::size_t>(c.num_blocks * block_bytes(c.type)));
    in.read(c.blocks.data(), static_cast<std::streamsize>(c.blocks.size()));
    c.weights.resize(static_cast<std::size_t>(c.num_blocks * block_weights(c.type)));
    in.read(reinterpret_cast<char*>(c.weights.data()),
            static_cast<std::streamsize>(c.weights.size() * sizeof(float)));
  }
  EXPECT_TRUE(in.good());
  return cases;
}

TEST(QuantBlocksTest, EveryTypeExpandsToTheBitsOfTheReference) {
  std::set<BlockType> seen;
  for (const GoldenCase& c : golden()) {
    seen.insert(c.type);
    std::vector<float> out(c.weights.size() + 1, 42.0f);
    dequantise_blocks(c.type, c.blocks.data(), c.num_blocks, out.data());
    for (std::size_t i = 0; i < c.weights.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), std::bit_cast<std::uint32_t>(c.weights[i]))
          << block_type_name(c.type) << " weight " << i << ": " << out[i] << ", not "
          << c.weights[i];
    }
    EXPECT_EQ(out.back(), 42.0f) << "written past the end";
    EXPECT_TRUE(blocks_are_finite(c.type, c.blocks.data(), c.num_blocks));
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kNumGgmlTypes));
}

TEST(QuantBlocksTest, BlocksMayLieAtAnyAddress) {
  for (const GoldenCase& c : golden()) {
    const std::string shifted = "x" + c.blocks;
    std::vector<float> out(c.weights.size());
    dequantise_blocks(c.type, shifted.data() + 1, c.num_blocks, out.data());
    EXPECT_EQ(std::memcmp(out.data(), c.weights.data(), out.size() * sizeof(float)), 0)
        << block_type_name(c.type);
  }
}

TEST(QuantBlocksTest, ZeroBlocksWriteNothing) {
  for (const auto& [number, type] : kTypes) {
    dequantise_blocks(type, nullptr, 0, nullptr);
    EXPECT_TRUE(blocks_are_finite(type, nullptr, 0));
  }
}

TEST(QuantBlocksTest, AScaleThatIsNoNumberIsFoundInAnyBlock) {
  for (const GoldenCase& c : golden()) {
    // In a block of 0xFF bytes every scale is NaN. One such block among good ones must be found.
    for (std::int64_t bad = 0; bad < c.num_blocks; ++bad) {
      std::string blocks = c.blocks;
      const auto size = static_cast<std::size_t>(block_bytes(c.type));
      blocks.replace(static_cast<std::size_t>(bad) * size, size, std::string(size, '\xFF'));
      EXPECT_FALSE(blocks_are_finite(c.type, blocks.data(), c.num_blocks))
          << block_type_name(c.type);
    }
  }
}

TEST(QuantBlocksTest, FloatsOfEightBitsAreTheirValues) {
  EXPECT_EQ(e4m3_to_f32(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(e4m3_to_f32(0x80)));
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_f32(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_f32(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_f32(0xC1), -2.25f);
  EXPECT_EQ(e4m3_to_f32(0x7E), 448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7F)) && std::isnan(e4m3_to_f32(0xFF)));

  const std::int64_t bytes = block_bytes(BlockType::kF8_E4M3);
  std::vector<std::uint8_t> blocks(static_cast<std::size_t>(2 * bytes), 0x38);
  const float scales[] = {0.25f, -3.0f};
  for (std::size_t b = 0; b < 2; ++b)
    std::memcpy(blocks.data() + b * static_cast<std::size_t>(bytes), &scales[b], 4);
  blocks[4] = 0x40;
  std::vector<float> expected(64, 0.25f), out(64);
  std::fill(expected.begin() + 32, expected.end(), -3.0f);
  expected[0] = 0.5f;
  dequantise_blocks(BlockType::kF8_E4M3, blocks.data(), 2, out.data());
  EXPECT_EQ(out, expected);
  EXPECT_TRUE(blocks_are_finite(BlockType::kF8_E4M3, blocks.data(), 2));
  blocks.back() = 0xFF;
  EXPECT_FALSE(blocks_are_finite(BlockType::kF8_E4M3, blocks.data(), 2));
  EXPECT_TRUE(blocks_are_finite(BlockType::kF8_E4M3, blocks.data(), 1));
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(blocks.data(), &infinite, 4);
  EXPECT_FALSE(blocks_are_finite(BlockType::kF8_E4M3, blocks.data(), 1));
}

TEST(QuantBlocksTest, SizesAreThoseOfTheFormat) {
  const std::map<BlockType, std::pair<std::int64_t, std::int64_t>> sizes = {
      {BlockType::kQ4_0, {32, 18}},   {BlockType::kQ4_1, {32, 20}},
      {BlockType::kQ5_0, {32, 22}},   {BlockType::kQ5_1, {32, 24}},
      {BlockType::kQ8_0, {32, 34}},   {BlockType::kQ2_K, {256, 84}},
      {BlockType::kQ3_K, {256, 110}}, {BlockType::kQ4_K, {256, 144}},
      {BlockType::kQ5_K, {256, 176}}, {BlockType::kQ6_K, {256, 210}},
      {BlockType::kIQ4_NL, {32, 18}}, {BlockType::kF8_E4M3, {32, 36}}};
  for (const auto& [type, size] : sizes) {
    EXPECT_EQ(block_weights(type), size.first) << block_type_name(type);
    EXPECT_EQ(block_bytes(type), size.second) << block_type_name(type);
  }
}

}  // namespace
}  // namespace quire
