// Sampling by hash codes: which rows are sampled, and that the sample represents all rows.
#include "engine/retrieve/rows/sim_hash.h"
#include "tests/support/harness/row_harness.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kDim = RowSequence::kDim, kSink = 10, kHostEnd = 288;

/// Returns keys [kSink, kHostEnd) of a head minus their mean, in plain loops.
std::vector<std::vector<double>> centred_keys(const KvView& kv, std::int32_t head,
                                              std::vector<double>& mean) {
  std::vector<std::vector<double>> keys;
  mean.assign(kDim, 0.0);
  for (std::int64_t row = kSink; row < kHostEnd; ++row) {
    const auto* key = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                      head * kv.head_stride + row % kPageTokens * kv.token_stride;
    keys.emplace_back();
    for (std::int32_t c = 0; c < kDim; ++c) keys.back().push_back(load_f32(key, kv.dtype, c));
    for (std::size_t c = 0; c < kDim; ++c) mean[c] += keys.back()[c] / (kHostEnd - kSink);
  }
  for (auto& key : keys) {
    for (std::size_t c = 0; c < kDim; ++c) key[c] -= mean[c];
  }
  return keys;
}

std::vector<std::int32_t> device_rows(std::int32_t num_rows) {
  std::vector<std::int32_t> out = rows_between(0, kSink);
  const auto local = rows_between(kHostEnd, num_rows);
  out.insert(out.end(), local.begin(), local.end());
  return out;
}

double dot(std::span<const double> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

/// Returns the signs of the products with the directions. `doubtful` is set if a product is so
/// small that its sign may depend on the arithmetic.
std::vector<int> code_bits(const SimHash& hash, std::span<const double> x, bool& doubtful) {
  std::vector<int> bits;
  for (std::size_t i = 0; i < hash.directions().size(); i += kDim) {
    const double product = dot(x, hash.directions().subspan(i, kDim));
    doubtful |= std::abs(product) < 1e-4;
    bits.push_back(product > 0);
  }
  return bits;
}

TEST(SimHashTest, TheSampleSharesTwoCodesWithTheQuery) {
  RowSequence sequence;
  const SimHash hash(kDim, 5, 12);
  std::size_t sampled = 0, checked = 0;
  for (std::int32_t m = 0; m < RowSequence::kKvHeads; ++m) {
    const KvView kv = sequence.cache().view(0);
    const auto keys = HashedKeys::build(hash, kv, m, {kSink, kHostEnd});
    ASSERT_TRUE(keys.ok());
    std::vector<double> mean;
    const auto centred = centred_keys(kv, m, mean);
    for (std::int32_t p = 331; p < 340; ++p) {
      const auto query = sequence.query(0, p);
      std::vector<std::int32_t> rows;
      ASSERT_TRUE(keys->sample(query.data(), rows).ok());
      ASSERT_TRUE(std::is_sorted(rows.begin(), rows.end()));
      bool query_doubtful = false;
      const auto query_bits = code_bits(
          hash, std::vector<double>(query.begin(), query.begin() + kDim), query_doubtful);
      ASSERT_FALSE(query_doubtful);
      for (std::size_t j = 0; j < centred.size(); ++j) {
        bool doubtful = false;
        const auto bits = code_bits(hash, centred[j], doubtful);
        if (doubtful) continue;
        int shared = 0;
        for (int table = 0; table < 12; ++table)
          shared += std::equal(bits.begin() + table * 5, bits.begin() + (table + 1) * 5,
                               query_bits.begin() + table * 5)
                        ? 1
                        : 0;
        ASSERT_EQ(
            std::binary_search(rows.begin(), rows.end(), kSink + static_cast<std::int32_t>(j)),
            shared >= 2)
            << "row " << kSink + j;
        ++checked;
      }
      sampled += rows.size();
    }
  }
  EXPECT_GT(checked, 4000u);
  EXPECT_GT(sampled, 0u);
  EXPECT_LT(sampled, checked / 2);
}

TEST(SimHashTest, ChancesAreThoseOfTheSample) {
  const SimHash hash(kDim, 4, 20);
  EXPECT_NEAR(hash.collision_chance(1), 1, 1e-12);
  EXPECT_NEAR(hash.collision_chance(-1), 0, 1e-12);
  // At right angles a code is shared with probability 1/16. The result is one minus the probability
  // that none or one of twenty is shared.
  EXPECT_NEAR(hash.collision_chance(0),
              1 - std::pow(15.0 / 16, 20) - 20.0 / 16 * std::pow(15.0 / 16, 19), 1e-12);
  // Over many pairs of vectors at that angle, the share of collisions is close to it.
  int collided = 0;
  constexpr int kPairs = 4000;
  for (int n = 0; n < kPairs; ++n) {
    const auto a = random_row(static_cast<std::uint32_t>(2 * n), kDim);
    auto b = random_row(static_cast<std::uint32_t>(2 * n + 1), kDim);
    double ab = 0, aa = 0;
    for (std::size_t c = 0; c < kDim; ++c) {
      ab += double{a[c]} * b[c];
      aa += double{a[c]} * a[c];
    }
    for (std::size_t c = 0; c < kDim; ++c) b[c] -= static_cast<float>(ab / aa) * a[c];
    bool doubtful = false;
    const auto x = code_bits(hash, std::vector<double>(a.begin(), a.end()), doubtful),
               y = code_bits(hash, std::vector<double>(b.begin(), b.end()), doubtful);
    int shared = 0;
    for (int table = 0; table < 20; ++table)
      shared += std::equal(x.begin() + table * 4, x.begin() + (table + 1) * 4,
                           y.begin() + table * 4)
                    ? 1
                    : 0;
    collided += shared >= 2 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(collided) / kPairs, hash.collision_chance(0), 0.04);
}

RetrieverOptions options(const std::string& bits, const std::string& tables) {
  return {{"decode_sink", "10"},
          {"decode_window", "40"},
          {"decode_dense_layers", "0"},
          {"decode_hash_bits", bits},
          {"decode_hash_tables", tables}};
}

TEST(MagicPig, ASampleOfEverythingIsDense) {
  // With one bit, nearly every key agrees in at least two of 256 tables.
  RowDecoding run("magicpig", options("1", "256")), dense("dense", {});
  for (int n = 0; n < 8; ++n) {
    const auto outs = run.token(), expected = dense.token();
    for (std::size_t layer = 0; layer < outs.size(); ++layer)
      expect_near(outs[layer], expected[layer], 1e-4, "token " + std::to_string(n));
  }
  const RetrieveStats s = run.retriever->stats();
  EXPECT_EQ(s.rows_attended, s.sparse_steps * RowSequence::kHeads * (kHostEnd - kSink))
      << "of each query head";
}

TEST(MagicPig, WeighsItsSampleByTheChances) {
  RowDecoding run("magicpig", options("3", "10"));
  const SimHash hash(kDim, 3, 10);
  for (int n = 0; n < 6; ++n) {
    std::vector<std::vector<float>> expected(RowSequence::kLayers,
                                             std::vector<float>(RowSequence::kQuery));
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      const KvView kv = run.sequence.cache().view(layer);
      for (std::int32_t h = 0; h < RowSequence::kHeads; ++h) {
        const std::int32_t m = h / RowSequence::kGroup;
        std::vector<double> mean;
        const auto centred = centred_keys(kv, m, mean);
        const auto keys = HashedKeys::build(hash, kv, m, {kSink, kHostEnd});
        ASSERT_TRUE(keys.ok());
        std::vector<std::int32_t> sample;
        const std::span<const float> query = std::span(q).subspan(
            static_cast<std::size_t>(h * kDim), kDim);
        ASSERT_TRUE(keys->sample(query.data(), sample).ok());
        const auto z = run.sequence.products(layer, h, q);
        std::map<std::int32_t, double> weights;
        for (const std::int32_t row : device_rows(run.sequence.num_rows()))
          weights[row] = std::exp(z[static_cast<std::size_t>(row)]);
        for (const std::int32_t row : sample) {
          const auto& key = centred[static_cast<std::size_t>(row - kSink)];
          double kk = 0, qq = 0;
          for (std::size_t c = 0; c < kDim; ++c) {
            kk += key[c] * key[c];
            qq += double{query[c]} * query[c];
          }
          weights[row] = std::exp(z[static_cast<std::size_t>(row)]) /
                         hash.collision_chance(dot(key, query) / std::sqrt(kk * qq));
        }
        double sum = 0;
        std::vector<double> out(kDim, 0.0);
        for (const auto& [row, weight] : weights) {
          sum += weight;
          const auto* value = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                              kv.kv_stride + m * kv.head_stride +
                              row % kPageTokens * kv.token_stride;
          for (std::size_t c = 0; c < kDim; ++c)
            out[c] += weight * load_f32(value, kv.dtype, static_cast<std::int64_t>(c));
        }
        for (std::size_t c = 0; c < kDim; ++c)
          expected[static_cast<std::size_t>(layer)][static_cast<std::size_t>(h * kDim) + c] =
              static_cast<float>(out[c] / sum);
      }
    });
    for (std::size_t layer = 0; layer < outs.size(); ++layer)
      expect_near(outs[layer], expected[layer], 2e-3, "token " + std::to_string(n));
  }
}

}  // namespace
}  // namespace quire::testing
