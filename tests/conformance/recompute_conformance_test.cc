// Requirements on every recomputer of this build.
#include <set>

#include "tests/support/harness/recompute_harness.h"

namespace quire::testing {
namespace {

class RecomputePassConformance : public ::testing::TestWithParam<std::string> {
 protected:
  std::mt19937 rng_{12};
  std::unique_ptr<Recomputer> plug_ = std::move(*recomputers().make(GetParam()));
  Bed bed_{family_model(families()[0], DType::kF16), random_docs(rng_, {30, 45, 0, 5, 26})};
};

TEST_P(RecomputePassConformance, IsDeterministicAndDoesNotDependOnChunks) {
  for (const bool sparse : {false, true}) {
    const Selection selection = sparse ? bed_.random_selection(rng_, 0.4) : bed_.everything();
    std::optional<CacheContent> first;
    std::optional<RecomputeReport> first_report;
    for (const std::int64_t chunk : {1000, 1000, 1, 6, 32}) {
      const auto report = bed_.recompute(*plug_, selection, chunk);
      EXPECT_TRUE(!report || plug_->has_pass());
      const CacheContent now = content(bed_.cache());
      EXPECT_TRUE(!first || now == *first) << "chunk " << chunk;
      if (first_report && report) {
        EXPECT_EQ(report->tokens, first_report->tokens);
        EXPECT_EQ(report->replaced, first_report->replaced);
        EXPECT_EQ(report->projected, first_report->projected);
      }
      first = now;
      first_report = report;
    }
  }
}

TEST_P(RecomputePassConformance, KeepsTheRowsOfEveryLayerAndTellsWhatItDid) {
  for (const bool sparse : {false, true}) {
    const Selection selection = sparse ? bed_.random_selection(rng_, 0.4) : bed_.everything();
    bed_.place(selection);
    const CacheContent before = content(bed_.cache());
    const auto report = bed_.recompute(*plug_, selection, 7);
    const CacheContent after = content(bed_.cache());
    if (!report) {
      EXPECT_EQ(after, before);
      continue;
    }
    ASSERT_EQ(report->tokens.size(), 5u);
    EXPECT_EQ(report->wrong_context, -1);
    EXPECT_GE(report->projected, 1);
    for (std::int32_t layer = 0; layer < bed_.num_layers(); ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      ASSERT_EQ(after[l].size(), before[l].size()) << "padding survived in layer " << layer;
      EXPECT_TRUE(bed_.cache().view(layer).sorted);
      EXPECT_EQ(after[l].at(0), before[l].at(0)) << "the system prefix is only read";
    }
    // The first document is exact. Tokens of the last layer that are not reported keep their KV.
    EXPECT_TRUE(report->tokens[0].empty());
    for (std::int32_t c = 0; c < 5; ++c) {
      const Ids& tokens = report->tokens[static_cast<std::size_t>(c)];
      EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
      EXPECT_EQ(std::adjacent_find(tokens.begin(), tokens.end()), tokens.end());
      for (std::int32_t t = 0;
           t < static_cast<std::int32_t>(bed_.docs()[static_cast<std::size_t>(c)].size()); ++t) {
        const auto old = before.back().find(bed_.position(c, t));
        if (old == before.back().end() || std::binary_search(tokens.begin(), tokens.end(), t))
          continue;
        EXPECT_EQ(after.back().at(bed_.position(c, t)), old->second);
      }
    }
  }
}

// A step is bounded, so that decode steps of other requests can run in between.
TEST_P(RecomputePassConformance, AStepRunsNoMoreRowsThanAsked) {
  const Selection selection = bed_.random_selection(rng_, 0.5);
  bed_.place(selection);
  const RecomputeInput input = bed_.input(selection);
  if (const auto more = plug_->blocks_to_load(input))
    bed_.stored().load(*more, bed_.num_contexts());
  auto pass = plug_->prepare(input);
  ASSERT_TRUE(pass.ok());
  if (*pass == nullptr) return;
  std::int64_t before = 0;
  for (const std::int64_t rows : {3, 1, 11, 4}) {
    if ((*pass)->done()) break;
    ASSERT_TRUE(bed_.step(**pass, rows).ok());
    EXPECT_LE((*pass)->report().projected - before, rows * bed_.num_layers());
    before = (*pass)->report().projected;
  }
  EXPECT_FALSE((*pass)->done());
  EXPECT_LE(bed_.finish(**pass, 5).projected, 106 * bed_.num_layers() * 2);
}

/// A gate that a test opens layer by layer, from below.
struct OpenedLayers final : LayerGate {
  explicit OpenedLayers(std::int32_t layers) : num_layers(layers) {}
  bool placed(std::int32_t layer) const override { return layer < open; }
  bool all_placed() const override { return open >= num_layers; }
  Status bring(std::int32_t layer) override {
    EXPECT_LT(layer, open) << "a layer was brought before it counted as placed";
    brought.insert(layer);
    return {};
  }
  const std::int32_t num_layers;
  std::int32_t open = 0;
  std::set<std::int32_t> brought;
};

// Stored rows of a layer may arrive while lower layers run and others use the model.
TEST_P(RecomputePassConformance, WaitsForLayersAndComesToTheSame) {
  const Selection selection = bed_.random_selection(rng_, 0.4);
  const auto want = bed_.recompute(*plug_, selection, 6);
  const CacheContent whole = content(bed_.cache());
  bed_.place(selection);
  const RecomputeInput input = bed_.input(selection);
  if (const auto more = plug_->blocks_to_load(input))
    bed_.stored().load(*more, bed_.num_contexts());
  auto pass = plug_->prepare(input);
  ASSERT_TRUE(pass.ok());
  if (*pass == nullptr) return;
  OpenedLayers gate(bed_.num_layers());
  (*pass)->wait_on(&gate);
  EXPECT_FALSE((*pass)->ready());
  ForwardWorkspace workspace;
  for (; !gate.all_placed(); ++gate.open) {
    while ((*pass)->ready() && !(*pass)->done())
      ASSERT_TRUE((*pass)->step(bed_.model(), bed_.cache(), workspace, 6).ok());
    const CacheContent now = content(bed_.cache());
    for (std::int32_t layer = gate.open; layer < bed_.num_layers(); ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      EXPECT_EQ(now[l].size(), whole[l].size()) << "a layer that is not placed was touched";
    }
    (void)bed_.ask_full({5, 9, 4});
  }
  EXPECT_TRUE((*pass)->ready() || (*pass)->done());
  const RecomputeReport report = bed_.finish(**pass, 6);
  if ((*pass)->brings_layers()) {
    EXPECT_FALSE(gate.brought.empty()) << "a device would have placed nothing";
  }
  EXPECT_EQ(content(bed_.cache()), whole);
  EXPECT_EQ(report.tokens, want->tokens);
  EXPECT_EQ(report.replaced, want->replaced);
  EXPECT_EQ(report.projected, want->projected);
}

TEST_P(RecomputePassConformance, AcceptsNoContextsEmptyOnesAndASingleLayer) {
  for (const std::vector<Ids>& docs : {std::vector<Ids>{}, std::vector<Ids>{{}, {}},
                                       std::vector<Ids>{{7}}, std::vector<Ids>{{7}, {8}}}) {
    Bed bed(family_model(families()[0]), docs);
    bed.recompute(*plug_, bed.everything());
    RecomputeInput planning = bed.input(bed.everything());
    planning.selection = nullptr;
    planning.stored = nullptr;
    planning.cache = nullptr;
    (void)plug_->planned_tokens(planning);
  }
  const auto config = parse_model_config(
      tiny_config_json("\"num_hidden_layers\": 1", {"num_hidden_layers"}));
  ASSERT_TRUE(config.ok());
  Bed bed(std::move(*make_random_model(
              *config, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32}, 3)),
          random_docs(rng_, {20, 30}));
  bed.recompute(*plug_, bed.everything(), 4);
  EXPECT_LE(difference(content(bed.cache()), bed.full()), 1e-5) << "KV of layer 0 is always exact";
}

INSTANTIATE_TEST_SUITE_P(Plugs, RecomputePassConformance,
                         ::testing::ValuesIn(recomputers().names()),
                         [](const auto& plug) { return plug.param; });

}  // namespace
}  // namespace quire::testing
