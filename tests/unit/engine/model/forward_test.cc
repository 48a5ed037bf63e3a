#include "engine/model/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/model/benchmark_model.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;

std::unique_ptr<Model> random_model(DType kv = DType::kF16,
                                    WeightFormat weights = WeightFormat::kF32, int layers = 3) {
  const auto config = parse_model_config(
      tiny_config_json("\"num_hidden_layers\": " + std::to_string(layers), {"num_hidden_layers"}));
  auto model = make_random_model(*config, {.weights = weights, .kv_dtype = kv}, 11);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return std::move(*model);
}

std::vector<std::int32_t> random_ids(std::size_t n, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> ids(n);
  for (auto& id : ids) id = static_cast<std::int32_t>(rng() % 40);
  return ids;
}

std::vector<std::int32_t> range(std::int32_t n) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// Returns the bytes of every row of a layer.
std::vector<float> dump(const WorkingCache& cache, int layer) {
  const KvView v = cache.view(layer);
  std::vector<float> out;
  for (std::int64_t row = 0; row < v.num_rows; ++row) {
    for (int kv = 0; kv < 2; ++kv) {
      for (int head = 0; head < v.num_kv_heads; ++head) {
        const auto* base = static_cast<const char*>(v.pages[row / kPageTokens]) + kv * v.kv_stride +
                           head * v.head_stride + (row % kPageTokens) * v.token_stride;
        for (int c = 0; c < v.head_dim; ++c) out.push_back(load_f32(base, v.dtype, c));
      }
    }
  }
  return out;
}

TEST(ForwardTest, OnlyWantedRowsGetLogitsAndHiddenStates) {
  Runner run(random_model());
  const auto ids = random_ids(37, 1);
  const std::vector<float> all = run.append(ids, 37);
  const auto vocab = static_cast<std::size_t>(run.vocab());
  run.clear();
  const std::vector<std::int32_t> wanted = {0, 5, 6, 36}, positions = range(37);
  std::vector<float> some(wanted.size() * vocab), hidden(wanted.size() * 32, NAN);
  ForwardRequest request;
  request.token_ids = ids;
  request.positions = positions;
  request.cache = &run.cache();
  request.logit_rows = wanted;
  request.logits = some.data();
  request.hidden = hidden.data();
  ASSERT_TRUE(forward(run.model(), request, run.workspace()).ok());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    for (std::size_t v = 0; v < vocab; ++v)
      EXPECT_EQ(some[i * vocab + v], all[static_cast<std::size_t>(wanted[i]) * vocab + v]);
  }
  for (float x : hidden) EXPECT_FALSE(std::isnan(x));
  std::vector<float> again(some.size());
  ASSERT_TRUE(run.model().logits(hidden.data(), 4, again.data()).ok());
  EXPECT_EQ(again, some);
  EXPECT_EQ(run.cache().num_rows(2), 37) << "every layer keeps every row";
}

TEST(ForwardTest, ARowDoesNotDependOnItsBatch) {
  for (WeightFormat weights : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
    Runner run(random_model(DType::kF16, weights));
    const auto ids = random_ids(61, 2);
    const std::vector<float> whole = run.append(ids, 61);
    for (std::size_t chunk : {1, 5, 17, 32}) {
      run.clear();
      EXPECT_EQ(run.append_chunked(ids, chunk, 61), whole)
          << chunk << " weights " << static_cast<int>(weights);
    }
  }
}

TEST(ForwardTest, NothingToDoIsFine) {
  Runner run(random_model());
  EXPECT_TRUE(run.append({}, 0).empty());
  EXPECT_EQ(run.size(), 0);
}

TEST(ForwardTest, BadRequestsAreNamed) {
  Runner run(random_model());
  const std::vector<std::int32_t> ids = {1, 2, 3}, positions = range(3), wanted = {2};
  ForwardRequest good;
  good.token_ids = ids;
  good.positions = positions;
  good.cache = &run.cache();
  good.logit_rows = wanted;
  const auto field = [&](const ForwardRequest& r) {
    const Status s = forward(run.model(), r, run.workspace());
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    run.clear();
    return s.field();
  };
  ForwardRequest bad = good;
  const std::vector<std::int32_t> foreign = {1, 40, 3}, negative = {1, -1, 3};
  bad.token_ids = foreign;
  EXPECT_EQ(field(bad), "token_ids");
  bad.token_ids = negative;
  EXPECT_EQ(field(bad), "token_ids");
  bad = good;
  const std::vector<std::int32_t> past = {0, 1, 256}, before = {-1, 0, 1}, two = {0, 1};
  bad.positions = past;
  EXPECT_EQ(field(bad), "positions");
  bad.positions = before;
  EXPECT_EQ(field(bad), "positions");
  bad.positions = two;
  EXPECT_EQ(field(bad), "positions");
  bad = good;
  const std::vector<std::int32_t> twice = {1, 1}, outside = {3};
  bad.logit_rows = twice;
  EXPECT_EQ(field(bad), "logit_rows");
  bad.logit_rows = outside;
  EXPECT_EQ(field(bad), "logit_rows");
  bad = good;
  WorkingCache other(run.pool(), 2);
  bad.cache = &other;
  EXPECT_EQ(field(bad), "cache");
  bad = good;
  const std::vector<std::int64_t> rows = {0, 1, 2};
  bad.cache_rows = rows;
  EXPECT_EQ(field(bad), "cache_rows") << "the cache has no such rows yet";
  EXPECT_TRUE(forward(run.model(), good, run.workspace()).ok());
}

TEST(ForwardTest, OverwritingRowsNeedsTheirPositions) {
  Runner run(random_model());
  const auto ids = random_ids(5, 3);
  run.append(ids, 0);
  const std::vector<std::int32_t> positions = {2};
  const std::vector<std::int64_t> rows = {3};
  ForwardRequest request;
  request.token_ids = std::span(ids).first(1);
  request.positions = positions;
  request.cache_rows = rows;
  request.cache = &run.cache();
  EXPECT_EQ(forward(run.model(), request, run.workspace()).field(), "cache_rows");
}

TEST(ForwardTest, RecomputingScatteredRowsUntilAllAreDoneEqualsPrefill) {
  // In order, bits are equal. Out of order, sums differ in their last bits, which may flip a
  // rounded KV value.
  const struct {
    DType kv;
    bool shuffled;
    double tolerance;
  } cases[] = {{DType::kF32, false, 0},
               {DType::kF16, false, 0},
               {DType::kF32, true, 1e-5},
               {DType::kF16, true, 1e-3},
               {DType::kBF16, true, 8e-3}};
  for (const auto& c : cases) {
    Runner right(random_model(c.kv)), run(random_model(c.kv));
    const auto ids = random_ids(29, 4);
    const std::vector<float> expected = right.append(ids, 29);
    // The rows are wrong first: another text at the same positions, in `order`.
    std::vector<std::int32_t> order = range(29);
    if (c.shuffled) std::shuffle(order.begin(), order.end(), std::mt19937(5));
    for (int layer = 0; layer < 3; ++layer) ASSERT_TRUE(run.cache().add_rows(layer, order).ok());
    std::vector<std::int64_t> where(29);
    for (std::size_t i = 0; i < 29; ++i)
      where[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(i);
    const auto pass = [&](std::span<const std::int32_t> tokens, float* logits) {
      const std::vector<std::int32_t> positions = range(29);
      ForwardRequest request;
      request.token_ids = tokens;
      request.positions = positions;
      request.cache_rows = where;
      request.cache = &run.cache();
      if (logits) request.logit_rows = positions;
      request.logits = logits;
      ASSERT_TRUE(forward(run.model(), request, run.workspace()).ok());
    };
    pass(random_ids(29, 6), nullptr);
    std::vector<float> logits(expected.size());
    pass(ids, logits.data());
    EXPECT_LE(max_relative(logits, expected), c.tolerance);
    for (int layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(run.cache().num_rows(layer), 29);
      for (std::int32_t p = 0; p < 29; ++p)
        EXPECT_EQ(run.cache().find_row(layer, p), where[static_cast<std::size_t>(p)]);
    }
  }
}

TEST(ForwardTest, RowsSeeByPositionNotByRank) {
  // Recomputing a middle row must not see the rows after it, though they are in the cache.
  Runner run(random_model(DType::kF32));
  const auto ids = random_ids(20, 7);
  const std::vector<float> all = run.append(ids, 20);
  const std::vector<float> before = dump(run.cache(), 2);
  const std::vector<std::int32_t> token = {ids[9]}, position = {9}, wanted = {0};
  const std::vector<std::int64_t> row = {9};
  std::vector<float> logits(static_cast<std::size_t>(run.vocab()));
  ForwardRequest request;
  request.token_ids = token;
  request.positions = position;
  request.cache_rows = row;
  request.cache = &run.cache();
  request.logit_rows = wanted;
  request.logits = logits.data();
  ASSERT_TRUE(forward(run.model(), request, run.workspace()).ok());
  const auto vocab = static_cast<std::size_t>(run.vocab());
  EXPECT_LE(max_relative(logits, std::span(all).subspan(9 * vocab, vocab)), 1e-5);
  EXPECT_LE(max_relative(dump(run.cache(), 2), before), 1e-5);
}

TEST(ForwardTest, ExhaustionInTheMiddleLeavesACacheToTruncate) {
  const std::int64_t page = 2 * 2 * 16 * 8 * 2;
  Runner run(random_model(), 7 * page);  // two pages for each of 3 layers, and one more
  const auto ids = random_ids(40, 8);
  const std::vector<float> first = run.append(std::span(ids).first(20), 1);
  std::vector<std::int32_t> positions(20);
  std::iota(positions.begin(), positions.end(), 20);
  ForwardRequest request;
  request.token_ids = std::span(ids).subspan(20);
  request.positions = positions;
  request.cache = &run.cache();
  EXPECT_EQ(forward(run.model(), request, run.workspace()).code(), Code::kResourceExhausted);
  EXPECT_EQ(run.cache().num_rows(0), 40);
  EXPECT_EQ(run.cache().num_rows(2), 20);
  run.cache().truncate_all(19);
  EXPECT_EQ(run.append(std::span(ids).subspan(19, 1), 1), first)
      << "decoding the 20th token again gives the same logits";
}

TEST(ForwardTest, RandomModelsAreDeterministicInTheSeed) {
  const auto config = parse_model_config(tiny_config_json());
  const auto digest = [&](std::uint64_t seed) {
    return (*make_random_model(*config, {.weights = WeightFormat::kF32}, seed))->weights_digest();
  };
  EXPECT_EQ(digest(1), digest(1));
  EXPECT_NE(digest(1), digest(2));
}

/// Values for measuring speed are made and hashed in no time, but they are those of a usual model:
/// finite and of its scale.
TEST(ForwardTest, ABenchmarkModelRepeatsItsMatricesAndComputes) {
  const auto config = parse_model_config(tiny_config_json());
  const ModelOptions options{.weights = WeightFormat::kF32, .kv_dtype = DType::kF32};
  auto model = std::move(*make_benchmark_model(*config, options, 1));
  EXPECT_EQ((*make_benchmark_model(*config, options, 2))->weights_digest(),
            model->weights_digest());
  EXPECT_NE((*make_random_model(*config, options, 1))->weights_digest(), model->weights_digest());
  Runner run(std::move(model));
  const std::vector<std::int32_t> ids = {1, 2, 3};
  const std::vector<float> logits = run.append(ids, 1);
  const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
  EXPECT_LT(*low, *high);
  for (const float x : logits) EXPECT_TRUE(std::isfinite(x) && std::abs(x) < 100) << x;
}

}  // namespace
}  // namespace quire
