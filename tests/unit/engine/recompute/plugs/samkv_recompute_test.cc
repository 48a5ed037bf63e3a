// The two SamKV recomputers as plugs: their invariants, and degenerate and hostile inputs.
#include "engine/record/kv_layout.h"
#include "engine/record/sketch.h"
#include "tests/support/harness/recompute_harness.h"

namespace quire::testing {
namespace {

const char* const kBoth[] = {"samkv_overwrite", "samkv_fusion"};

std::unique_ptr<Recomputer> plug(std::string_view name) {
  return std::move(*recomputers().make(name));
}
/// Makes the plug with every kept token recomputed.
std::unique_ptr<Recomputer> every_kept(std::string_view name) {
  return std::move(*recomputers().make(name, options({{"rows", "kept"}})));
}

class SamkvFamilyTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Family& family() const { return families()[GetParam()]; }
  std::mt19937 rng_{static_cast<std::uint32_t>(7 + GetParam())};
};

// If everything is kept and recomputed, also in the first document, the result is a full prefill.
TEST_P(SamkvFamilyTest, EverythingKeptAndRecomputedEqualsFullPrefill) {
  for (const std::int64_t chunk : {1000, 13}) {
    Bed bed(family_model(family()), random_docs(rng_, {33, 0, 18, 50}));
    bed.contexts()[0].exact = false;
    const auto report = bed.recompute(*every_kept("samkv_overwrite"), bed.everything(), chunk);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->replaced, 101 * bed.num_layers());
    EXPECT_LE(difference(content(bed.cache()), bed.full()), 1e-5);
    const Ids question = {5, 9, 4, 31};
    const std::vector<float> got = bed.ask(bed.cache(), question), want = bed.ask_full(question);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * 20);
  }
}

// The same holds if the first document's exact KV is not recomputed.
TEST_P(SamkvFamilyTest, AnExactFirstDocumentNeedsNoRecomputation) {
  Bed bed(family_model(family()), random_docs(rng_, {40, 21, 30}));
  const auto report = bed.recompute(*every_kept("samkv_overwrite"), bed.everything(), 17);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->tokens[0].empty());
  EXPECT_LE(difference(content(bed.cache()), bed.full()), 1e-5);
}

// If one document's KV is exact but not marked so, new KV equals old and fusion changes nothing.
TEST_P(SamkvFamilyTest, FusionWithIdenticalKvChangesNothing) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Bed bed(family_model(family(), dtype), random_docs(rng_, {45}));
    bed.contexts()[0].exact = false;
    bed.place(bed.everything());
    const CacheContent before = content(bed.cache());
    ASSERT_TRUE(bed.recompute(*every_kept("samkv_fusion"), bed.everything(), 11));
    EXPECT_EQ(content(bed.cache()), before) << dtype_name(dtype);
  }
}

TEST_P(SamkvFamilyTest, LayerZeroIsReproducedBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const WeightFormat weights :
         {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
      Bed bed(family_model(family(), dtype, weights), random_docs(rng_, {30, 41}));
      bed.place(bed.everything());
      const CacheContent before = content(bed.cache());
      ASSERT_TRUE(bed.recompute(*every_kept("samkv_overwrite"), bed.everything(), 16));
      EXPECT_EQ(content(bed.cache())[0], before[0]);
      EXPECT_NE(content(bed.cache())[1], before[1]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SamkvFamilyTest,
                         ::testing::Range<std::size_t>(0, families().size()),
                         [](const auto& i) { return families()[i.param].name; });

class SamkvRecomputeTest : public ::testing::Test {
 protected:
  std::mt19937 rng_{23};
  std::unique_ptr<Model> model(DType dtype = DType::kF16) {
    return family_model(families()[0], dtype);
  }
};

TEST_F(SamkvRecomputeTest, TheTwoRowRules) {
  Bed bed(model(), random_docs(rng_, {40, 41}));
  const Selection selection = bed.everything();
  for (const char* name : kBoth) {
    const auto published = bed.recompute(*plug(name), selection);
    ASSERT_TRUE(published);
    // These are blocks 0, 9 and 10 of the second document; the last has one token.
    EXPECT_EQ(published->tokens[1], (Ids{0, 1, 2, 3, 36, 37, 38, 39, 40}));
    EXPECT_EQ(published->replaced, 9 * 4);
    EXPECT_EQ(published->projected, 9 * 4);
    const auto kept = bed.recompute(*every_kept(name), selection, 1000);
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->tokens[1].size(), 41u);
    EXPECT_TRUE(kept->tokens[0].empty());
  }
}

TEST_F(SamkvRecomputeTest, OverwriteAndFusionSeeTheSamePassAndDifferInWhatTheyLeave) {
  Bed bed(model(DType::kF32), random_docs(rng_, {40, 41, 30}));
  const Selection selection = bed.random_selection(rng_, 0.5);
  bed.place(selection);
  const CacheContent stored = content(bed.cache());
  ASSERT_TRUE(bed.recompute(*every_kept("samkv_overwrite"), selection, 8));
  const CacheContent fresh = content(bed.cache());
  ASSERT_TRUE(bed.recompute(*every_kept("samkv_fusion"), selection, 8));
  const CacheContent fused = content(bed.cache());
  // Values are not rotated, so each is between stored and new, at a share in [0, 1].
  int between = 0;
  const std::size_t half = stored[3].begin()->second.size() / 2;
  for (const auto& [position, row] : fused[3]) {
    for (std::size_t i = half; i < 2 * half; ++i) {
      const float a = stored[3].at(position)[i], b = fresh[3].at(position)[i];
      EXPECT_GE(row[i], std::min(a, b) - 1e-6f);
      EXPECT_LE(row[i], std::max(a, b) + 1e-6f);
      between += row[i] != a && row[i] != b;
    }
  }
  EXPECT_GT(between, 100);
}

// With no rows to recompute, the result equals plain reuse.
TEST_F(SamkvRecomputeTest, NothingToRecomputeIsNoPass) {
  for (const char* name : kBoth) {
    Bed one(model(), random_docs(rng_, {50}));
    EXPECT_FALSE(one.recompute(*plug(name), one.everything())) << "one exact document";
    Bed none(model(), {});
    EXPECT_FALSE(none.recompute(*plug(name), none.everything())) << "no document";
    Bed empty(model(), {{}, {}});
    EXPECT_FALSE(empty.recompute(*plug(name), empty.everything())) << "empty documents";
    // A dropped duplicate has no tokens and keeps no block.
    Bed copies(model(), random_docs(rng_, {30, 30}));
    copies.contexts()[1] = {{}, 31, Bed::kBlock, 0, true, {}};
    EXPECT_FALSE(copies.recompute(*plug(name), Selection::shared(4, {{0, 6, 7}, {}})));
  }
}

// Contexts of up to three blocks consist of anchors and are recomputed whole.
TEST_F(SamkvRecomputeTest, SmallContextsAreRecomputedWhole) {
  Bed bed(model(), random_docs(rng_, {9, 1, 4, 12, 13}));
  const auto report = bed.recompute(*plug("samkv_fusion"), bed.everything(), 3);
  ASSERT_TRUE(report);
  const std::size_t want[] = {0, 1, 4, 12, 9};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(report->tokens[i].size(), want[i]) << i;
}

TEST_F(SamkvRecomputeTest, CopiesOfOneDocumentShareTheStoredKvAtTwoPlaces) {
  auto docs = random_docs(rng_, {30});
  docs.push_back(docs[0]);
  Bed bed(model(DType::kF32), docs);
  ASSERT_TRUE(bed.recompute(*every_kept("samkv_overwrite"), bed.everything(), 10));
  EXPECT_LE(difference(content(bed.cache()), bed.full()), 1e-5);
}

TEST_F(SamkvRecomputeTest, PlannedTokensAreAnchorsFirstAndEverythingOnceBlocksAreSelected) {
  Bed bed(model(), random_docs(rng_, {40, 41}));
  const auto recomputer = every_kept("samkv_fusion");
  const Selection selection = bed.random_selection(rng_, 0.6);
  RecomputeInput input = bed.input(selection);
  input.selection = nullptr;
  const auto early = recomputer->planned_tokens(input);
  EXPECT_EQ(early[1], (Ids{0, 1, 2, 3, 36, 37, 38, 39, 40}));
  EXPECT_TRUE(early[0].empty());
  input.selection = &selection;
  const auto report = bed.recompute(*recomputer, selection, 1000);
  ASSERT_TRUE(report);
  EXPECT_EQ(recomputer->planned_tokens(input), report->tokens);
  EXPECT_EQ(report->tokens[1].size() > 9, true);
}

/// A sketch with one outlier block per given layer.
class FakeSketch {
 public:
  FakeSketch(Bed& bed, std::int32_t context,
             std::vector<std::pair<std::int32_t, std::int32_t>> outstanding) {
    const ModelConfig& c = bed.model().config();
    const auto tokens = static_cast<std::int64_t>(
        bed.docs()[static_cast<std::size_t>(context)].size());
    const KvLayout layout({c.num_layers, c.num_kv_heads, c.head_dim, DType::kF16}, tokens,
                          Bed::kBlock);
    std::vector<BlockStats> stats;
    for (std::int32_t layer = 0; layer < c.num_layers; ++layer) {
      for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
        const bool low = std::find(outstanding.begin(), outstanding.end(), std::pair(layer, b)) !=
                         outstanding.end();
        stats.push_back({low ? -50.0f : 1.0f + 0.01f * static_cast<float>(b % 3), 0.1f,
                         b * Bed::kBlock + (b + 1 < layout.num_blocks() ? 2 : 0)});
      }
    }
    SketchInput input;
    input.layout = &layout;
    input.num_heads = c.num_heads;
    input.stats = stats;
    input.rope = &bed.model().rope();
    input.parts = kSketchStats;
    auto record = build_sketch(input);
    EXPECT_TRUE(record.ok()) << record.status().to_string();
    record_ = std::move(*record);
    auto view = SketchView::parse(record_);
    EXPECT_TRUE(view.ok()) << view.status().to_string();
    view_ = *view;
  }
  const SketchView& view() const { return view_; }

 private:
  std::vector<std::byte> record_;
  SketchView view_;
};

TEST_F(SamkvRecomputeTest, ImportantTokensOfKeptMiddleBlocksComeFromTheSketch) {
  Bed bed(model(), random_docs(rng_, {20, 60}));
  // The second document has 15 blocks. Block 5 is an outlier in layers 1 and 2, and block 7 in
  // layer 3. Block 7 is kept only in layer 2.
  const FakeSketch sketch(bed, 1, {{1, 5}, {2, 5}, {3, 7}});
  std::vector<Selection::ContextBlocks> kept(4, {{0, 3, 4}, {0, 13, 14}});
  kept[2][1] = {0, 5, 7, 13, 14};
  kept[3][1] = {0, 5, 13, 14};
  const Selection selection = Selection::per_layer(kept);
  const auto with_sketch = [&](RecomputeInput& in) {
    in.sketch = [&](std::int32_t context) { return context == 1 ? &sketch.view() : nullptr; };
  };
  const auto recomputer = plug("samkv_overwrite");
  EXPECT_TRUE(recomputer->needs_sketches());
  const auto report = bed.recompute(*recomputer, selection, 5, with_sketch);
  ASSERT_TRUE(report);
  Ids want = {0, 1, 2, 3, 22};  // adds token 2 of block 5, only in layer 2
  for (std::int32_t t = 52; t < 60; ++t) want.push_back(t);
  EXPECT_EQ(report->tokens[1], want);
  EXPECT_EQ(report->replaced, 12 * 4 + 1);
  EXPECT_EQ(report->projected, 12 * 4 + 3) << "layers 0 and 1 only carry it, over padding";
  for (std::int32_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(bed.cache().find_row(layer, bed.position(1, 22)) >= 0, layer >= 2) << layer;

  // Without statistics only the anchors are recomputed.
  const auto lost = bed.recompute(*recomputer, selection, 5);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->tokens[1].size(), 12u);
}

TEST_F(SamkvRecomputeTest, KvOfOtherTokensIsFoundOutAndTheRepairedPassIsThatOfARightCache) {
  for (const char* name : kBoth) {
    Bed bed(model(), random_docs(rng_, {20, 35, 29}));
    const Selection selection = bed.random_selection(rng_, 0.6);
    ASSERT_TRUE(bed.recompute(*every_kept(name), selection, 6));
    const CacheContent want = content(bed.cache());

    Ids other = bed.docs()[2];
    std::rotate(other.begin(), other.begin() + 1, other.end());
    bed.store(2, other);
    bed.place(selection);
    RecomputeInput input = bed.input(selection);
    if (const auto more = every_kept(name)->blocks_to_load(input)) bed.stored().load(*more, 3);
    const auto before = content(bed.cache());
    auto pass = every_kept(name)->prepare(input);
    ASSERT_TRUE(pass.ok());
    Status status;
    while (status.ok() && !(*pass)->done()) status = bed.step(**pass, 6);
    EXPECT_EQ(status.code(), Code::kCorruption) << status.to_string();
    EXPECT_EQ((*pass)->report().wrong_context, 2);
    EXPECT_TRUE((*pass)->done());
    for (std::int32_t layer = 0; layer < 4; ++layer) {
      EXPECT_EQ(static_cast<std::size_t>(bed.cache().num_rows(layer)),
                before[static_cast<std::size_t>(layer)].size())
          << "padding is gone";
    }

    bed.store(2, bed.docs()[2]);
    bed.place_again(selection, 2);
    pass = every_kept(name)->prepare(input);
    ASSERT_TRUE(pass.ok());
    bed.finish(**pass, 6);
    EXPECT_EQ(content(bed.cache()), want);
  }
}

TEST_F(SamkvRecomputeTest, FailuresNameTheirCauseAndLeaveNoPadding) {
  // A padding block was not loaded.
  Bed bed(model(), random_docs(rng_, {20, 60}));
  std::vector<Selection::ContextBlocks> kept(4, {{0, 3, 4}, {0, 13, 14}});
  kept[3][1] = {0, 6, 13, 14};
  const Selection selection = Selection::per_layer(kept);
  bed.place(selection);
  RecomputeInput input = bed.input(selection);
  auto pass = every_kept("samkv_overwrite")->prepare(input);
  ASSERT_TRUE(pass.ok());
  const Status missing = bed.step(**pass, 1000);
  EXPECT_EQ(missing.code(), Code::kInternal);
  EXPECT_NE(missing.message().find("block 6 of context 1 is needed in layer 0"), std::string::npos)
      << missing.message();
  EXPECT_TRUE((*pass)->done());
  EXPECT_EQ((*pass)->report().wrong_context, -1);

  // There is no memory for padding, because the kept rows of each layer fill their pages.
  Bed full(model(), random_docs(rng_, {15, 60}), /*max_bytes=*/0);
  const Selection tight = Selection::per_layer({{{0, 1, 2, 3}, {0, 1, 13, 14}},
                                                {{0, 1, 2, 3}, {0, 1, 13, 14}},
                                                {{0, 1, 2, 3}, {0, 1, 13, 14}},
                                                {{0, 1, 2, 3}, {0, 6, 13, 14}}});
  full.place(tight);
  const std::int64_t held = full.cache_pool().bytes_in_use();
  Bed small(model(), full.docs(), held);
  small.place(tight);
  RecomputeInput in = small.input(tight);
  small.stored().load(*every_kept("samkv_fusion")->blocks_to_load(in), 2);
  auto starved = every_kept("samkv_fusion")->prepare(in);
  ASSERT_TRUE(starved.ok());
  Status status;
  while (status.ok() && !(*starved)->done()) status = small.step(**starved, 4);
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.to_string();
  EXPECT_EQ(small.cache_pool().bytes_in_use(), held);
  for (std::int32_t layer = 0; layer < 4; ++layer) EXPECT_EQ(small.cache().num_rows(layer), 32);

  // Rows that do not ascend cannot be found again.
  Bed odd(model(), random_docs(rng_, {8, 8}));
  odd.place(odd.everything());
  ASSERT_TRUE(odd.cache().add_rows(2, Ids{3}).ok());
  EXPECT_EQ(plug("samkv_fusion")->prepare(odd.input(odd.everything())).status().code(),
            Code::kInternal);
}

TEST_F(SamkvRecomputeTest, RowsIsTheOnlyOption) {
  const std::span<const PlugOption> tables[] = {recomputers().options("samkv_fusion")};
  EXPECT_TRUE(check_options(options({{"rows", "kept"}}), tables).ok());
  EXPECT_TRUE(check_options(options({{"rows", "anchors_and_important"}}), tables).ok());
  EXPECT_EQ(check_options(options({{"rows", "all"}}), tables).field(), "cache.options.rows");
  EXPECT_EQ(check_options(options({{"k", "3"}}), tables).field(), "cache.options.k");
}

}  // namespace
}  // namespace quire::testing
