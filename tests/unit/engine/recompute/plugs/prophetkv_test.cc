// ProphetKV: the tokens that the question attends to most are computed again.
#include <cmath>

#include "tests/support/harness/recompute_harness.h"

namespace quire::testing {
namespace {

std::unique_ptr<Recomputer> plug(std::map<std::string, std::string, std::less<>> given) {
  return std::move(*recomputers().make("prophetkv", options(std::move(given))));
}

/// Attention of the question's rows to every position, summed over rows and heads of the first
/// layers, from probabilities in double.
class Watch final : public ForwardHook {
 public:
  Watch(const RopeTable& rope, const ModelConfig& config, std::int32_t layers)
      : rope_(rope), config_(config), layers_(layers) {}
  Status after_attention(LayerPass& pass) override {
    if (pass.layer >= layers_) return {};
    const KvView kv = pass.cache->view(pass.layer);
    const std::int32_t dim = config_.head_dim, group = config_.num_heads / config_.num_kv_heads;
    std::vector<float> q(static_cast<std::size_t>(config_.num_heads * dim));
    for (std::size_t r = 0; r < pass.rows.size(); ++r) {
      QUIRE_RETURN_IF_ERROR(
          rope_rotate(rope_, {.x = pass.qkv.q + static_cast<std::int64_t>(r) * pass.qkv.ld,
                              .out = q.data(),
                              .positions = &pass.positions[r],
                              .rows = 1,
                              .num_heads = config_.num_heads,
                              .ldx = pass.qkv.ld,
                              .ldo = static_cast<std::int64_t>(q.size())}));
      for (std::int32_t h = 0; h < config_.num_heads; ++h) {
        std::map<std::int32_t, double> weight;
        double sum = 0;
        for (std::int64_t row = 0; row < kv.num_rows; ++row) {
          if (kv.positions[row] > pass.positions[r]) continue;
          const auto* key = static_cast<const char*>(kv.pages[row / kPageTokens]) +
                            h / group * kv.head_stride + row % kPageTokens * kv.token_stride;
          double dot = 0;
          for (std::int32_t c = 0; c < dim; ++c)
            dot += double{q[static_cast<std::size_t>(h * dim + c)]} * load_f32(key, kv.dtype, c);
          sum += weight[kv.positions[row]] = std::exp(dot / std::sqrt(double(dim)));
        }
        for (const auto& [position, w] : weight) attention[position] += w / sum;
      }
    }
    return {};
  }
  std::map<std::int32_t, double> attention;

 private:
  const RopeTable& rope_;
  const ModelConfig& config_;
  const std::int32_t layers_;
};

class ProphetKvTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  std::unique_ptr<Model> model() { return family_model(families()[GetParam()]); }
  std::mt19937 rng_{static_cast<std::uint32_t>(21 + GetParam())};
};

TEST_P(ProphetKvTest, AShareOfOneEqualsFullPrefill) {
  Bed bed(model(), random_docs(rng_, {30, 25, 41}));
  const auto report = bed.recompute(*plug({{"r", "1"}}), bed.everything(), 19);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->replaced, 66 * 4);
  EXPECT_LE(difference(content(bed.cache()), bed.full()), 1e-5);
}

TEST_P(ProphetKvTest, TheTokensThatTheQuestionAttendsToMostAreComputedAgain) {
  Bed bed(model(), random_docs(rng_, {30, 0, 45, 25}));
  for (const std::int32_t layers : {1, 3, 0}) {
    SCOPED_TRACE(layers);
    bed.place(bed.everything());
    const RecomputeInput input = bed.input(bed.everything());
    const ModelConfig& config = bed.model().config();
    Watch watch(bed.model().rope(), config, layers > 0 ? layers : config.num_layers);
    Ids question(input.question.begin(), input.question.end()), positions(question.size());
    std::iota(positions.begin(), positions.end(), input.question_position);
    bed.run(bed.cache(), question, positions, &watch);
    std::vector<std::pair<double, std::pair<std::int32_t, std::int32_t>>> ranked;
    for (const std::int32_t c : {2, 3}) {
      for (std::int32_t t = 0;
           t < static_cast<std::int32_t>(bed.docs()[static_cast<std::size_t>(c)].size()); ++t)
        ranked.push_back({-watch.attention.at(bed.position(c, t)), {c, t}});
    }
    std::sort(ranked.begin(), ranked.end());
    std::vector<Ids> want(4);
    for (std::size_t i = 0; i < 20; ++i)
      want[static_cast<std::size_t>(ranked[i].second.first)].push_back(ranked[i].second.second);
    for (Ids& ids : want) std::sort(ids.begin(), ids.end());
    for (const std::int64_t chunk : {1000, 2}) {
      const auto report = bed.recompute(*plug({{"r", "0.2"}, {"layers", std::to_string(layers)}}),
                                        bed.everything(), chunk,
                                        [](RecomputeInput& in) { in.recompute_ratio = 0.9; });
      ASSERT_TRUE(report);
      EXPECT_EQ(report->tokens, want) << "the named option decides";
      EXPECT_EQ(report->replaced, 20 * 4);
      const std::int64_t scored = layers > 0 ? layers : config.num_layers;
      EXPECT_EQ(report->projected, 20 * 4 + static_cast<std::int64_t>(question.size()) * scored);
    }
  }
}

TEST_P(ProphetKvTest, ARequestedRatioIsTheShareAndADefaultHoldsElse) {
  Bed bed(model(), random_docs(rng_, {30, 45, 25}));
  const auto chosen = [&](std::optional<double> ratio) {
    const auto report = bed.recompute(*plug({}), bed.everything(), 50,
                                      [&](RecomputeInput& in) { in.recompute_ratio = ratio; });
    std::size_t n = 0;
    for (const Ids& ids : report ? report->tokens : std::vector<Ids>()) n += ids.size();
    return n;
  };
  EXPECT_EQ(chosen({}), 20u);
  EXPECT_EQ(chosen(0.333), 34u);
  EXPECT_EQ(chosen(0.0), 0u);
}

TEST_P(ProphetKvTest, WithoutAQuestionStoredKvIsUsedAsItIs) {
  Bed bed(model(), random_docs(rng_, {30, 45}));
  EXPECT_FALSE(
      bed.recompute(*plug({}), bed.everything(), 50, [](RecomputeInput& in) { in.question = {}; }));
}

INSTANTIATE_TEST_SUITE_P(Families, ProphetKvTest,
                         ::testing::Range<std::size_t>(0, families().size()),
                         [](const auto& i) { return families()[i.param].name; });

}  // namespace
}  // namespace quire::testing
