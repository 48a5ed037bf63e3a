#include "engine/prefill/attention_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "engine/prefill/context_kv.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/kernel_test_support.h"
#include "tests/support/host_compute.h"

namespace quire::testing {
namespace {

RopeTable rope_of(std::int32_t dim, std::int64_t positions) {
  RopeConfig config;
  config.head_dim = config.rotary_dim = dim;
  return *RopeTable::build(config, positions);
}

/// Returns the least-squares slope of ln y on ln x over y(1), y(2), ...
template <class F>
double fit(int n, F&& y) {
  PowerLawSums s;
  for (int x = 1; x <= n; ++x) {
    const double lx = std::log(x), ly = std::log(y(x));
    s.count += 1;
    s.sum_log_x += lx;
    s.sum_log_x_squared += lx * lx;
    s.sum_log_y += ly;
    s.sum_log_xy += lx * ly;
  }
  return power_law_alpha(s);
}

TEST(PowerLawTest, GoldenVector) {
  EXPECT_NEAR(fit(200, [](int x) { return 0.5 * std::pow(x, -0.7); }), 0.7, 1e-12);
}

TEST(PowerLawTest, AlphaIsRecoveredFromNoisyColumns) {
  std::mt19937 rng(3);
  std::normal_distribution<double> noise(0.0, 0.03);
  for (const int n : {400, 2000, 8000}) {
    for (const double alpha : {0.5, 0.7, 1.3, 2.0}) {
      EXPECT_NEAR(fit(n, [&](int x) { return 0.3 * std::pow(x, -alpha) * std::exp(noise(rng)); }),
                  alpha, 0.02 * alpha)
          << n;
    }
  }
}

TEST(PowerLawTest, TooFewSamplesOrNoSpreadIsInvalid) {
  const auto y = [](int x) { return 1.0 / x; };
  EXPECT_TRUE(std::isnan(fit(15, y)));
  EXPECT_NEAR(fit(16, y), 1.0, 1e-9);
  EXPECT_TRUE(std::isnan(power_law_alpha({})));
  EXPECT_TRUE(std::isnan(power_law_alpha({20, 20, 20, -5, -5})));  // twenty samples at one distance
}

/// Queries, keys and log-sum-exps of one layer, as given.
struct Layer {
  Layer(std::int64_t num_tokens, std::int64_t num_prefix, std::int32_t kv_heads, std::int32_t group,
        std::int32_t head_dim, std::int32_t block)
      : tokens(num_tokens),
        prefix(num_prefix),
        heads(kv_heads * group),
        dim(head_dim),
        layout({1, kv_heads, head_dim, DType::kF32}, num_tokens, block),
        rope(rope_of(head_dim, num_tokens + num_prefix)),
        kv(num_tokens + num_prefix, kv_heads, head_dim, DType::kF32, TestLayout::kHeadMajor, 3),
        q(random_floats(tokens * heads * dim, 4)),
        lse(static_cast<std::size_t>(tokens * heads)) {}

  std::vector<BlockStats> run(std::int64_t chunk_tokens) {
    AttentionStatistics statistics(layout, heads);
    for (std::int64_t first = 0; first < tokens; first += chunk_tokens) {
      AttentionStatistics::Chunk chunk;
      chunk.compute = &host_compute();
      chunk.q = q.data() + first * heads * dim;
      chunk.lse = lse.data() + first * heads;
      chunk.rows = std::min(chunk_tokens, tokens - first);
      chunk.ldq = std::int64_t{heads} * dim;
      chunk.first_token = first;
      chunk.prefix_rows = prefix;
      chunk.kv = kv.view(prefix + first + chunk.rows, true);
      const Status s = statistics.add(rope, chunk);
      EXPECT_TRUE(s.ok()) << s.to_string();
    }
    return statistics.finish();
  }

  /// Returns q of a token's head, rotated to its position.
  std::vector<double> rotated(std::int64_t token, std::int32_t head) const {
    std::vector<double> out(static_cast<std::size_t>(dim));
    const float* x = q.data() + (token * heads + head) * dim;
    for (std::int32_t c = 0; c < dim / 2; ++c) {
      const double cos = rope.cos_row(prefix + token)[c], sin = rope.sin_row(prefix + token)[c];
      out[static_cast<std::size_t>(c)] = x[c] * cos - x[c + dim / 2] * sin;
      out[static_cast<std::size_t>(c + dim / 2)] = x[c + dim / 2] * cos + x[c] * sin;
    }
    return out;
  }

  /// Computes the statistics by their definition, from a whole attention matrix of mean
  /// probabilities over heads. Each softmax covers all cache rows up to its own. It also fills in
  /// lse.
  std::vector<BlockStats> brute_force(std::int64_t step) {
    const std::int32_t group = heads / layout.shape().num_kv_heads;
    std::vector<std::vector<double>> a(static_cast<std::size_t>(tokens),
                                       std::vector<double>(static_cast<std::size_t>(tokens), 0.0));
    for (std::int64_t t = tokens - 1; t >= 0; --t) {
      for (std::int32_t h = 0; h < heads; ++h) {
        const auto query = rotated(t, h);
        std::vector<double> p(static_cast<std::size_t>(prefix + t + 1));
        double total = 0;
        for (std::size_t row = 0; row < p.size(); ++row) {
          double dot = 0;
          for (std::int32_t c = 0; c < dim; ++c)
            dot += query[static_cast<std::size_t>(c)] *
                   load_f32(kv.row(static_cast<std::int64_t>(row), 0, h / group), DType::kF32, c);
          total += p[row] = std::exp(dot / std::sqrt(dim));
        }
        lse[static_cast<std::size_t>(t * heads + h)] = static_cast<float>(std::log(total));
        for (std::int64_t j = 0; j <= t; ++j)
          a[static_cast<std::size_t>(t)][static_cast<std::size_t>(j)] +=
              p[static_cast<std::size_t>(prefix + j)] / total / heads;
      }
    }
    std::vector<BlockStats> out;
    for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
      BlockStats best{std::numeric_limits<float>::quiet_NaN(), -1, 0};
      for (std::int64_t j = layout.first_token(b); j < layout.first_token(b) + layout.tokens_in(b);
           ++j) {
        PowerLawSums s;
        double late[2] = {0, 0}, count[2] = {0, 0};
        for (std::int64_t t = tokens - 1; t > j; t -= step) {
          const double y = a[static_cast<std::size_t>(t)][static_cast<std::size_t>(j)],
                       lx = std::log(t - j), ly = std::log(std::max(y, 1e-7));
          s.count += 1;
          s.sum_log_x += lx;
          s.sum_log_x_squared += lx * lx;
          s.sum_log_y += ly;
          s.sum_log_xy += lx * ly;
          for (int far = 0; far < 2; ++far) {
            if (far == 1 && t - j < 64) continue;
            late[far] += y;
            count[far] += 1;
          }
        }
        const int far = count[1] >= 32 ? 1 : 0;
        const double sustained = count[far] > 0 ? late[far] / count[far] : 0;
        if (sustained > best.sustained)
          best = {static_cast<float>(power_law_alpha(s)), static_cast<float>(sustained),
                  static_cast<std::int32_t>(j)};
      }
      out.push_back(best);
    }
    return out;
  }

  std::int64_t tokens, prefix;
  std::int32_t heads, dim;
  KvLayout layout;
  RopeTable rope;
  PagedKv kv;
  std::vector<float> q, lse;
};

void expect_same(const std::vector<BlockStats>& actual, const std::vector<BlockStats>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t b = 0; b < actual.size(); ++b) {
    EXPECT_EQ(actual[b].representative, expected[b].representative) << b;
    EXPECT_NEAR(actual[b].sustained, expected[b].sustained, 1e-5 * expected[b].sustained) << b;
    EXPECT_EQ(std::isnan(actual[b].alpha), std::isnan(expected[b].alpha)) << b;
    if (!std::isnan(expected[b].alpha)) {
      EXPECT_NEAR(actual[b].alpha, expected[b].alpha, 1e-4) << b;
    }
  }
}

TEST(AttentionStatisticsTest, EqualsTheDefinitionOverAWholeMatrix) {
  for (const auto& [tokens, prefix, kv_heads, group, block] :
       {std::tuple<int, int, int, int, int>{230, 1, 2, 3, 16},
        {97, 0, 1, 7, 16},
        {96, 1, 1, 2, 32},
        {300, 1, 1, 1, 64}}) {
    Layer layer(tokens, prefix, kv_heads, group, 32, block);
    const auto expected = layer.brute_force(1);
    expect_same(layer.run(64), expected);
  }
}

TEST(AttentionStatisticsTest, LongContextsCountEveryNthRow) {
  Layer layer(8200, 1, 1, 1, 8, 64);
  EXPECT_EQ(AttentionStatistics(layer.layout, 1).row_step(), 2);
  const auto expected = layer.brute_force(2);
  expect_same(layer.run(512), expected);
  EXPECT_EQ(AttentionStatistics(KvLayout({1, 1, 8, DType::kF32}, 8192, 64), 1).row_step(), 1);
}

TEST(AttentionStatisticsTest, BitsDoNotDependOnChunks) {
  Layer layer(300, 1, 2, 2, 16, 16);
  (void)layer.brute_force(1);
  const auto whole = layer.run(300);
  for (const std::int64_t chunk : {1, 16, 64, 128}) {
    const auto pieces = layer.run(chunk);
    for (std::size_t b = 0; b < whole.size(); ++b) {
      EXPECT_EQ(std::memcmp(&pieces[b].alpha, &whole[b].alpha, 4), 0);
      EXPECT_EQ(pieces[b].sustained, whole[b].sustained);
      EXPECT_EQ(pieces[b].representative, whole[b].representative);
    }
  }
}

TEST(AttentionStatisticsTest, ColumnsThatFollowAPowerLawGiveItsExponent) {
  // With one head and zero keys, attention is exp(-lse) of the row. Column 0 is x = t behind, so y
  // = 0.5 x^-0.7 at x = 1..200.
  Layer layer(201, 0, 1, 1, 8, 64);
  for (std::int64_t r = 0; r < 201; ++r) std::memset(layer.kv.row(r, 0, 0), 0, 8 * sizeof(float));
  for (std::int64_t t = 1; t < 201; ++t)
    layer.lse[static_cast<std::size_t>(t)] = static_cast<float>(0.7 * std::log(t) - std::log(0.5));
  const auto stats = layer.run(64);
  EXPECT_EQ(stats[0].representative, 0);
  EXPECT_NEAR(stats[0].alpha, 0.7, 1e-5);
}

TEST(AttentionStatisticsTest, ShortContextsHaveNoFitAndStillARepresentative) {
  for (const std::int64_t tokens : {1, 2, 5, 16}) {
    Layer layer(tokens, 1, 1, 2, 8, 16);
    const auto expected = layer.brute_force(1);
    const auto stats = layer.run(64);
    ASSERT_EQ(stats.size(), 1u) << tokens;
    EXPECT_TRUE(std::isnan(stats[0].alpha)) << tokens;  // has at most 15 later rows
    EXPECT_GE(stats[0].representative, 0);
    EXPECT_LT(stats[0].representative, tokens);
    expect_same(stats, expected);
  }
  Layer one(1, 1, 1, 1, 8, 16);
  EXPECT_EQ(one.run(64)[0].sustained, 0.0f);
  Layer seventeen(17, 0, 1, 1, 8, 16);
  const auto expected = seventeen.brute_force(1);
  expect_same(seventeen.run(64), expected);
}

/// Returns what a store holds of a context after ingest.
std::vector<std::byte> stored_sketch(const fs::path& model, const std::vector<std::int32_t>& ids,
                                     std::int32_t chunk_tokens) {
  TempFolder folder;
  auto store = open_test_store(folder.path() / "store");
  auto engine = make_test_engine(model, *store,
                                 [&](EngineOptions& o) { o.prefill_chunk_tokens = chunk_tokens; });
  auto result = prefill_now(*engine, ids);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  auto bytes = store->read_sketch(result->segment, 0);
  EXPECT_TRUE(bytes.ok());
  std::vector<std::byte> out(bytes->bytes().begin(), bytes->bytes().end());
  engine->stop(std::chrono::milliseconds(0));
  return out;
}

TEST(IngestStatisticsTest, StoredRecordsHaveThemAndDoNotDependOnChunks) {
  const RandomModelFolder model;
  std::mt19937 rng(8);
  const auto ids = random_ids(rng, 300);
  const auto record = stored_sketch(model.path(), ids, 64);
  const auto view = SketchView::parse(record);
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_TRUE(view->has(kSketchDefault));
  EXPECT_FALSE(view->has(kSketchMinMax));
  for (std::int32_t layer = 0; layer < view->num_layers(); ++layer) {
    for (std::int32_t b = 0; b + 2 < view->num_blocks(); ++b) {
      EXPECT_TRUE(std::isfinite(view->stats(layer, b).alpha));
      EXPECT_GT(view->stats(layer, b).sustained, 0.0f);
      EXPECT_EQ(view->stats(layer, b).representative / view->block_tokens(), b);
    }
  }
  EXPECT_EQ(stored_sketch(model.path(), ids, 256), record);
  EXPECT_EQ(stored_sketch(model.path(), ids, 512), record);
}

}  // namespace
}  // namespace quire::testing
