#include "engine/record/sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "engine/model/config.h"
#include "engine/record/kv_layout.h"

namespace quire {
namespace {

TEST(KvLayoutTest, FoldsLayersUpToAMebibyte) {
  // Llama-3.2-1B with 16 tokens has 32 KiB per layer and 512 KiB for all sixteen.
  const KvLayout small({16, 8, 64, DType::kF16}, 400, 16);
  EXPECT_EQ(small.num_blocks(), 25);
  EXPECT_EQ(small.num_groups(), 1);
  EXPECT_EQ(small.value_bytes(0, 0), 512 << 10);
  // Llama-3.1-8B with 64 tokens has 256 KiB per layer and four layers per value.
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
    for (std::int32_t l = 0; l < kLayers; ++l) {
      for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
        stats.push_back({0.25f + normal(rng), 0.01f * static_cast<float>(l + b),
                         static_cast<std::int32_t>(layout.first_token(b)) + (l + b) % 5});
      }
    }
  }

  std::vector<std::byte> build(std::uint16_t parts = kSketchAll) {
    SketchInput input;
    input.layout = &layout;
    input.num_heads = kHeads;
    input.values = values;
    input.local_query = local_query;
    input.stats = stats;
    input.rope = &rope;
    input.parts = parts;
    auto record = build_sketch(input);
    EXPECT_TRUE(record.ok()) << record.status().to_string();
    return *record;
  }

  /// Returns key channel c of `token` (of the context), rotated to its own position, in f64.
  double rotated(std::int32_t layer, std::int64_t token, std::int32_t head, std::int32_t c) const {
    const auto block = static_cast<std::int32_t>(token / layout.block_tokens());
    const RawKvView v = layout.view(
        values[static_cast<std::size_t>(block * layout.num_groups() + layout.group_of(layer))],
        block, layer);
    const auto* k = reinterpret_cast<const float*>(
        static_cast<const std::byte*>(v.data) + head * v.head_stride +
        (token - layout.first_token(block)) * v.row_stride);
    const std::int32_t half = kDim / 2, pair = c % half;
    const double cos = rope.cos_row(token)[pair], sin = rope.sin_row(token)[pair];
    return c < half ? k[c] * cos - k[c + half] * sin : k[c] * cos + k[c - half] * sin;
  }

  KvLayout layout;
  RopeTable rope;
  std::vector<std::vector<std::byte>> values;
  std::vector<float> local_query;
  std::vector<BlockStats> stats;
};

TEST_F(SketchTest, HoldsMeansBoundsLocalQueryAndStatistics) {
  const auto record = build();
  EXPECT_EQ(static_cast<std::int64_t>(record.size()), sketch_bytes(layout, kHeads, kSketchAll));
  auto view = SketchView::parse(record);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->num_tokens(), 37);
  EXPECT_EQ(view->num_blocks(), 3);
  constexpr std::size_t kWidth = kKvHeads * kDim;
  std::vector<float> mean(kWidth), all(3 * kWidth), lo(kWidth), hi(kWidth), query(kHeads * kDim);
  const double steps = view->mean_bits() == 8 ? 127 : 31;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    view->local_query(layer, query);
    for (std::size_t h = 0; h < kHeads; ++h) {
      const float* want = local_query.data() +
                          (static_cast<std::size_t>(layer) * kHeads + h) * kDim;
      const float largest = std::fabs(*std::max_element(
          want, want + kDim, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
      // The tolerance is half a step, with bf16 scales rounded up by at most 2^-7.
      for (std::size_t c = 0; c < kDim; ++c)
        EXPECT_NEAR(query[h * kDim + c], want[c], 0.51 * 1.008 * largest / 127);
    }
    std::vector<double> want(3 * kWidth), largest(kWidth);
    for (std::int32_t b = 0; b < 3; ++b) {
      view->min(layer, b, lo);
      view->max(layer, b, hi);
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        for (std::int32_t c = 0; c < kDim; ++c) {
          const auto at = static_cast<std::size_t>(m * kDim + c);
          double sum = 0;
          for (std::int32_t t = 0; t < layout.tokens_in(b); ++t) {
            const double x = rotated(layer, layout.first_token(b) + t, m, c);
            sum += x;
            EXPECT_LE(lo[at], x + 1e-5);
            EXPECT_GE(hi[at], x - 1e-5);
          }
          want[static_cast<std::size_t>(b) * kWidth + at] = sum / layout.tokens_in(b);
          largest[at] = std::max(largest[at], std::fabs(sum / layout.tokens_in(b)));
        }
      }
    }
    view->means(layer, all);
    for (std::int32_t b = 0; b < 3; ++b) {
      view->mean(layer, b, mean);
      for (std::size_t c = 0; c < kWidth; ++c) {
        EXPECT_EQ(mean[c], all[static_cast<std::size_t>(b) * kWidth + c]);
        EXPECT_NEAR(mean[c], want[static_cast<std::size_t>(b) * kWidth + c],
                    0.51 * 1.008 * largest[c] / steps);
      }
      const BlockStats got = view->stats(layer, b),
                       put = stats[static_cast<std::size_t>(layer * 3 + b)];
      EXPECT_EQ(got.alpha, put.alpha);
      EXPECT_EQ(got.sustained, put.sustained);
      EXPECT_EQ(got.representative, put.representative);
    }
  }
}

TEST_F(SketchTest, MeansOfSixBitsReadBack) {
  // With 16-bit KV and many query heads per KV head, eight bits would exceed the share.
  layout = KvLayout({kLayers, kKvHeads, 64, DType::kF16}, 400, 16);
  RopeConfig config;
  config.head_dim = config.rotary_dim = 64;
  rope = *RopeTable::build(config, 400);
  values.clear();
  std::mt19937 rng(6);
  std::normal_distribution<float> normal;
  for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
    for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
      values.emplace_back(static_cast<std::size_t>(layout.value_bytes(b, g)));
      for (std::size_t i = 0; i < values.back().size(); i += 2) {
        const std::uint16_t x = f32_to_f16(normal(rng) + 1.0f);
        std::memcpy(values.back().data() + i, &x, 2);
      }
    }
  }
  SketchInput input{.layout = &layout,
                    .num_heads = 16,
                    .values = values,
                    .local_query = {},
                    .stats = {},
                    .rope = &rope,
                    .parts = kSketchMeans};
  const auto six = build_sketch(input);
  ASSERT_TRUE(six.ok()) << six.status().to_string();
  input.num_heads = 2;
  const auto eight = build_sketch(input);
  ASSERT_TRUE(eight.ok());
  const auto coarse = SketchView::parse(*six), fine = SketchView::parse(*eight);
  ASSERT_TRUE(coarse.ok() && fine.ok());
  EXPECT_EQ(coarse->mean_bits(), 6);
  EXPECT_EQ(fine->mean_bits(), 8);
  const std::size_t width = kKvHeads * 64, blocks = 25;
  std::vector<float> a(blocks * width), b(a.size());
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    coarse->means(layer, a);
    fine->means(layer, b);
    for (std::size_t c = 0; c < width; ++c) {
      float largest = 0;
      for (std::size_t i = c; i < b.size(); i += width)
        largest = std::max(largest, std::fabs(b[i]));
      for (std::size_t i = c; i < b.size(); i += width)
        EXPECT_NEAR(a[i], b[i], 0.51f * 1.008f * largest * (1.0f / 31 + 1.0f / 127));
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
  EXPECT_FALSE(view->has(kSketchDefault));
  EXPECT_TRUE(SketchView::parse(build())->has(kSketchAll));
}

TEST_F(SketchTest, WrongShapesAreRefused) {
  SketchInput input{.layout = &layout,
                    .num_heads = kHeads,
                    .values = values,
                    .local_query = local_query,
                    .stats = stats,
                    .rope = &rope};
  input.stats = std::span(stats).first(2);
  EXPECT_EQ(build_sketch(input).code(), Code::kInvalidArgument);
  input.stats = stats;
  input.local_query = std::span(local_query).first(7);
  EXPECT_EQ(build_sketch(input).code(), Code::kInvalidArgument);
  input.local_query = local_query;
  stats[4].representative = 0;  // lies in block 1
  EXPECT_EQ(build_sketch(input).code(), Code::kInvalidArgument);
}

TEST_F(SketchTest, ValuesThatAreNotFiniteStillGiveAReadableRecord) {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  local_query[0] = inf;
  local_query[1] = nan;
  stats[0].alpha = -inf;
  stats[1].sustained = nan;
  std::memcpy(values[0].data(), &nan, 4);
  const auto record = build();
  const auto view = SketchView::parse(record);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_TRUE(std::isnan(view->stats(0, 0).alpha));
  EXPECT_EQ(view->stats(0, 1).sustained, 0.0f);
  std::vector<float> query(kHeads * kDim), mean(kKvHeads * kDim);
  view->local_query(0, query);
  view->mean(0, 0, mean);
  for (float x : query) EXPECT_TRUE(std::isfinite(x));
  for (float x : mean) EXPECT_TRUE(std::isfinite(x));
}

/// Returns statistics of blocks of 16 tokens, with alphas around 0.5 except one.
std::vector<BlockStats> stats_with_outlier(std::size_t blocks, std::size_t outlier, float alpha) {
  std::vector<BlockStats> out;
  for (std::size_t b = 0; b < blocks; ++b)
    out.push_back({0.5f + (b % 2 ? 0.001f : -0.001f), 0.1f, static_cast<std::int32_t>(16 * b + 3)});
  out[outlier].alpha = alpha;
  return out;
}

TEST(PautaTest, GoldenVector) {
  // Eleven at 0.5 +- 0.001 and one at 0.2 have mean 0.47492 and deviation 0.08290, so the lowest is
  // 0.2262.
  EXPECT_EQ(pauta_tokens(stats_with_outlier(12, 5, 0.2f)), (std::vector<std::int32_t>{16 * 5 + 3}));
  EXPECT_EQ(pauta_tokens(stats_with_outlier(12, 1, 0.2f)), (std::vector<std::int32_t>{16 + 3}));
  EXPECT_EQ(pauta_tokens(stats_with_outlier(12, 9, 0.2f)), (std::vector<std::int32_t>{16 * 9 + 3}));
}

TEST(PautaTest, OnlyMiddleBlocksAndOnlyTheLowSide) {
  for (std::size_t anchor : {0u, 10u, 11u})
    EXPECT_TRUE(pauta_tokens(stats_with_outlier(12, anchor, 0.2f)).empty()) << anchor;
  EXPECT_TRUE(pauta_tokens(stats_with_outlier(12, 5, 0.8f)).empty());
}

TEST(PautaTest, EmptyBelowElevenBlocksAndWithoutValidFits) {
  for (std::size_t blocks = 1; blocks <= 10; ++blocks)
    EXPECT_TRUE(pauta_tokens(stats_with_outlier(blocks, blocks / 2, -100.0f)).empty()) << blocks;
  auto stats = stats_with_outlier(12, 5, 0.2f);
  // Ten valid ones are left.
  stats[3].alpha = stats[4].alpha = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(pauta_tokens(stats).empty());
  for (BlockStats& b : stats) b.alpha = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(pauta_tokens(stats).empty());
  EXPECT_TRUE(pauta_tokens({}).empty());
}

/// A sketch takes at most two percent of the KV for every available published model shape. Contexts
/// have 400 tokens in blocks of 16, and KV has 16 bits.
TEST(SketchSizeTest, IsAtMostTwoPercentOfTheKv) {
  const std::filesystem::path folder = std::filesystem::path(QUIRE_SHARED_DATA_DIR) / "configs";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto config = parse_model_config(text);
    ASSERT_TRUE(config.ok()) << entry.path() << ": " << config.status().to_string();
    for (const auto& [tokens, block] :
         {std::pair<std::int64_t, std::int32_t>{400, 16}, {800, 32}, {2000, 64}}) {
      const KvLayout layout(
          {config->num_layers, config->num_kv_heads, config->head_dim, DType::kF16}, tokens, block);
      const auto share = static_cast<double>(
                             sketch_bytes(layout, config->num_heads, kSketchDefault)) /
                         static_cast<double>(layout.total_bytes());
      EXPECT_LE(share, kSketchShare)
          << entry.path() << ", " << tokens << " tokens in blocks of " << block;
    }
    ++seen;
  }
  EXPECT_GT(seen, 0);
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
    // Some flips still parse: of a reserved byte, or with consistent block and token counts. Their
    // records must stay readable in bounds.
    std::vector<float> mean(static_cast<std::size_t>(view->num_kv_heads() * view->head_dim()));
    if (view->has(kSketchMeans)) view->mean(view->num_layers() - 1, view->num_blocks() - 1, mean);
    if (view->has(kSketchStats)) {
      EXPECT_LT(view->stats(view->num_layers() - 1, view->num_blocks() - 1).representative,
                view->num_tokens());
    }
  }
}

TEST_F(SketchTest, OtherVersionsAndIndicesOutsideTheirBlockAreCorrupt) {
  for (const std::uint16_t version : {0, 1, 3}) {
    auto other = build();
    std::memcpy(other.data() + 4, &version, sizeof version);
    EXPECT_EQ(SketchView::parse(other).code(), Code::kCorruption);
  }
  auto bad = build();
  const std::uint16_t place = 5;  // the last block has 5 tokens
  std::memcpy(bad.data() + bad.size() - 2, &place, sizeof place);
  EXPECT_EQ(SketchView::parse(bad).code(), Code::kCorruption);
}

}  // namespace
}  // namespace quire
