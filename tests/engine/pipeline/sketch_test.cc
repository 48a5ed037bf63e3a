#include "engine/pipeline/sketch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "engine/pipeline/kv_layout.h"

namespace quire {
namespace {

TEST(KvLayoutTest, FoldsLayersUpToAMebibyte) {
  // Llama-3.2-1B, 16 tokens: 32 KiB a layer, 512 KiB for all sixteen.
  const KvLayout small({16, 8, 64, DType::kF16}, 400, 16);
  EXPECT_EQ(small.num_blocks(), 25);
  EXPECT_EQ(small.num_groups(), 1);
  EXPECT_EQ(small.value_bytes(0, 0), 512 << 10);
  // Llama-3.1-8B, 64 tokens: 256 KiB a layer, four layers a value.
  const KvLayout large({32, 8, 128, DType::kF16}, 4097, 64);
  EXPECT_EQ(large.num_blocks(), 65);
  EXPECT_EQ(large.layers_per_group(), 4);
  EXPECT_EQ(large.num_groups(), 8);
  EXPECT_EQ(large.value_bytes(0, 7), 1 << 20);
  EXPECT_EQ(large.tokens_in(64), 1);
  EXPECT_EQ(large.value_bytes(64, 0), 16 << 10);
}

TEST(KvLayoutTest, EveryLayerLiesInExactlyOneGroup) {
  for (std::int32_t layers : {1, 3, 7, 28, 80}) {
    for (std::int32_t heads : {1, 2, 8, 40}) {
      const KvLayout layout({layers, heads, 128, DType::kF32}, 130, 64);
      std::int32_t total = 0;
      std::int64_t bytes = 0;
      for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
        EXPECT_GT(layout.layers_in(g), 0);
        total += layout.layers_in(g);
        for (std::int32_t b = 0; b < layout.num_blocks(); ++b) bytes += layout.value_bytes(b, g);
      }
      EXPECT_EQ(total, layers);
      EXPECT_EQ(bytes, layout.total_bytes());
      EXPECT_LT(layout.group_of(layers - 1), layout.num_groups());
    }
  }
}

class SketchTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kLayers = 3, kHeads = 4, kKvHeads = 2, kDim = 8;
  SketchTest() : layout({kLayers, kKvHeads, kDim, DType::kF32}, 37, 16) {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kDim;
    rope = *RopeTable::build(config, 64);
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
      for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
        values.emplace_back(static_cast<std::size_t>(layout.value_bytes(b, g)));
        auto* x = reinterpret_cast<float*>(values.back().data());
        for (std::size_t i = 0; i < values.back().size() / 4; ++i) x[i] = normal(rng);
      }
    }
    local_query.resize(kLayers * kHeads * kDim);
    for (float& x : local_query) x = normal(rng);
  }

  std::vector<std::byte> build(std::uint16_t parts = kSketchAll) {
    SketchInput input;
    input.layout = &layout;
    input.num_heads = kHeads;
    input.values = values;
    input.local_query = local_query;
    input.rope = &rope;
    input.parts = parts;
    auto record = build_sketch(input);
    EXPECT_TRUE(record.ok()) << record.status().to_string();
    return *record;
  }

  /// Key channel c of `token` (of the context), rotated to its own position, in f64.
  double rotated(std::int32_t layer, std::int64_t token, std::int32_t head, std::int32_t c) const {
    const auto block = static_cast<std::int32_t>(token / layout.block_tokens());
    const RawKvView v = layout.view(values[static_cast<std::size_t>(block * layout.num_groups() + layout.group_of(layer))], block, layer);
    const auto* k = reinterpret_cast<const float*>(static_cast<const std::byte*>(v.data) + head * v.head_stride +
                                                   (token - layout.first_token(block)) * v.row_stride);
    const std::int32_t half = kDim / 2, pair = c % half;
    const double cos = rope.cos_row(token)[pair], sin = rope.sin_row(token)[pair];
    return c < half ? k[c] * cos - k[c + half] * sin : k[c] * cos + k[c - half] * sin;
  }

  KvLayout layout;
  RopeTable rope;
  std::vector<std::vector<std::byte>> values;
  std::vector<float> local_query;
};

TEST_F(SketchTest, HoldsMeansBoundsAndLocalQuery) {
  const auto record = build();
  EXPECT_EQ(static_cast<std::int64_t>(record.size()), sketch_bytes(layout, kHeads, kSketchAll));
  auto view = SketchView::parse(record);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->num_tokens(), 37);
  EXPECT_EQ(view->num_blocks(), 3);
  std::vector<float> mean(kKvHeads * kDim), lo(mean.size()), hi(mean.size()), query(kHeads * kDim);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    view->local_query(layer, query);
    EXPECT_EQ(std::memcmp(query.data(), local_query.data() + layer * kHeads * kDim, query.size() * 4), 0);
    for (std::int32_t b = 0; b < 3; ++b) {
      view->mean(layer, b, mean);
      view->min(layer, b, lo);
      view->max(layer, b, hi);
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        for (std::int32_t c = 0; c < kDim; ++c) {
          double sum = 0;
          const std::size_t at = static_cast<std::size_t>(m * kDim + c);
          for (std::int32_t t = 0; t < layout.tokens_in(b); ++t) {
            const double x = rotated(layer, layout.first_token(b) + t, m, c);
            sum += x;
            EXPECT_LE(lo[at], x + 1e-5);
            EXPECT_GE(hi[at], x - 1e-5);
          }
          const double want = sum / layout.tokens_in(b);
          EXPECT_NEAR(mean[at], want, 0.01 * std::fabs(want) + 1e-5);
        }
      }
    }
  }
}

TEST_F(SketchTest, PartsCanBeLeftOut) {
  const auto record = build(kSketchMeans);
  auto view = SketchView::parse(record);
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(view->has(kSketchMeans));
  EXPECT_FALSE(view->has(kSketchMinMax));
  EXPECT_FALSE(view->has(kSketchLocalQuery));
}

TEST_F(SketchTest, MeansOf64TokenBlocksAreUnderOnePercentOfTheKv) {
  const KvLayout big({32, 8, 128, DType::kF16}, 8192, 64);
  EXPECT_LT(sketch_bytes(big, 32, kSketchMeans | kSketchLocalQuery), big.total_bytes() / 100);
  EXPECT_LT(sketch_bytes(big, 32, kSketchAll), big.total_bytes() * 3 / 100);
}

TEST_F(SketchTest, TruncatedAndLyingRecordsAreRefused) {
  const auto good = build();
  for (std::size_t n = 0; n < good.size(); n += n < 64 ? 1 : 97) {
    EXPECT_EQ(SketchView::parse(std::span(good).first(n)).code(), Code::kCorruption) << n;
  }
  auto longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(SketchView::parse(longer).ok());
  std::mt19937 rng(9);
  for (int round = 0; round < 2000; ++round) {
    auto bad = good;
    bad[rng() % 48] ^= static_cast<std::byte>(1u << (rng() % 8));
    auto view = SketchView::parse(bad);
    if (!view.ok()) continue;
    // A flip that still parses (a reserved byte, or block and token counts that still agree) must stay readable in bounds.
    std::vector<float> mean(static_cast<std::size_t>(view->num_kv_heads() * view->head_dim()));
    if (view->has(kSketchMeans)) view->mean(view->num_layers() - 1, view->num_blocks() - 1, mean);
  }
}

}  // namespace
}  // namespace quire
