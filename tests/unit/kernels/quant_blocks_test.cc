// Expanded blocks equal those of the Python package gguf, bit for bit
// (make_quant_blocks_golden.py).
#include "kernels/matmul/quant_blocks.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

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
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kNumBlockTypes));
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

TEST(QuantBlocksTest, SizesAreThoseOfTheFormat) {
  const std::map<BlockType, std::pair<std::int64_t, std::int64_t>> sizes = {
      {BlockType::kQ4_0, {32, 18}},   {BlockType::kQ4_1, {32, 20}},
      {BlockType::kQ5_0, {32, 22}},   {BlockType::kQ5_1, {32, 24}},
      {BlockType::kQ8_0, {32, 34}},   {BlockType::kQ2_K, {256, 84}},
      {BlockType::kQ3_K, {256, 110}}, {BlockType::kQ4_K, {256, 144}},
      {BlockType::kQ5_K, {256, 176}}, {BlockType::kQ6_K, {256, 210}},
      {BlockType::kIQ4_NL, {32, 18}}};
  for (const auto& [type, size] : sizes) {
    EXPECT_EQ(block_weights(type), size.first) << block_type_name(type);
    EXPECT_EQ(block_bytes(type), size.second) << block_type_name(type);
  }
}

}  // namespace
}  // namespace quire
