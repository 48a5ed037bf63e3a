#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <string>

#include "engine/plan/plan_builder.h"

namespace quire {
namespace {

Digest model_digest() {
  Digest digest;
  digest.bytes[0] = std::byte{9};
  return digest;
}

EngineFacts facts_of(std::int64_t window = 2000) {
  EngineFacts f;
  f.shape = {4, 2, 8, DType::kF16};
  f.num_heads = 4;
  f.vocab_size = 1000;
  f.window = window;
  f.ingest_prefix = {1};
  f.names = ContextNames(model_digest());
  f.small_context_tokens = 300;
  return f;
}

std::vector<std::int32_t> ids(std::size_t n, std::int32_t first) {
  std::vector<std::int32_t> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = (first + static_cast<std::int32_t>(i)) % 1000;
  return v;
}

PlugOptions options(std::map<std::string, std::string, std::less<>> given) {
  return PlugOptions(std::move(given));
}

CertifiedStrategy certified(const std::string& strategy) {
  CertifiedStrategy c;
  c.cache.strategy = strategy;
  c.evidence = "was shown to be good";
  return c;
}

class PlanTest : public ::testing::Test {
 protected:
  PlanTest() {
    request.id = "qry_1";
    request.prefix_ids = {1};
    request.suffix_ids = {7, 8, 9};
    request.tenant = "t";
  }
  void add(std::vector<std::int32_t> tokens, bool stored) {
    const ContextKey key = facts.names.context_key(tokens, "t", {});
    request.contexts.push_back({"d" + std::to_string(request.contexts.size()), "", 0, tokens, key});
    if (stored) stored_.insert(key);
  }
  Result<QueryPlan> build(const std::string& strategy, const Speeds& speeds = {}) {
    request.cache.strategy = strategy;
    if (strategy == "samkv") {  // in its published form unless the options name a score
      PlugOptions::Values values = request.cache.options.given();
      values.try_emplace("score", "keys");
      request.cache.options = PlugOptions(std::move(values));
    }
    return build_plan(
        facts, request,
        [this](const ContextKey& key, const KvLayout& layout) {
          ContextLookup found;
          if (!stored_.contains(key)) return found;
          auto info = std::make_shared<SegmentInfo>();
          info->key = key;
          info->layout = layout.segment();
          found.segment = SegmentHandle(std::move(info));
          found.block_tiers.assign(static_cast<std::size_t>(layout.num_blocks()), Tier::kDisk);
          return found;
        },
        speeds);
  }
  Plan plan(const std::string& strategy) {
    auto p = build(strategy);
    EXPECT_TRUE(p.ok()) << p.status().to_string();
    if (!p.ok()) return {};
    EXPECT_EQ(p->plan.fates.total(), p->plan.prompt_tokens);
    return p->plan;
  }
  EngineFacts facts = facts_of();
  QueryRequest request;
  std::set<ContextKey> stored_;
};

TEST_F(PlanTest, ReuseOfCachedDocumentsGolden) {
  add(ids(40, 10), true);
  add(ids(20, 100), true);
  const Plan p = plan("reuse");
  EXPECT_EQ(p.strategy, "reuse");
  EXPECT_EQ(p.selector, "all");
  EXPECT_EQ(p.recomputer, "none");
  EXPECT_EQ(p.compress, "none");
  EXPECT_EQ(p.decode, "dense");
  EXPECT_EQ(p.prompt_tokens, 64);
  EXPECT_EQ(p.contexts[0].offset, 1);
  EXPECT_EQ(p.contexts[1].offset, 41);
  ASSERT_EQ(p.contexts[0].blocks.size(), 3u);
  EXPECT_EQ(p.contexts[0].blocks[2].first_token, 32);
  EXPECT_EQ(p.contexts[0].blocks[2].num_tokens, 8);
  EXPECT_EQ(p.contexts[0].blocks[0].kept_layers, 4);
  EXPECT_NE(p.contexts[0].blocks[0].id, p.contexts[0].blocks[1].id);
  EXPECT_EQ(p.fates.reused, 60);
  EXPECT_EQ(p.fates.computed, 4);
  EXPECT_DOUBLE_EQ(p.keep_ratio, 1);
  EXPECT_DOUBLE_EQ(p.hit_ratio(), 60.0 / 64);
  EXPECT_EQ(p.contexts[0].miss, MissReason::kNone);
}

TEST_F(PlanTest, RecomputeCountsCachedDocumentsAsRecomputed) {
  add(ids(40, 10), true);
  add(ids(20, 100), false);
  const Plan p = plan("recompute");
  EXPECT_EQ(p.fates.recomputed, 40);
  EXPECT_EQ(p.fates.computed, 24);
  EXPECT_EQ(p.contexts[0].miss, MissReason::kPolicyOff);
  EXPECT_EQ(p.contexts[1].miss, MissReason::kEvicted);
  EXPECT_DOUBLE_EQ(p.recompute_ratio, 40.0 / 60);
}

TEST_F(PlanTest, ExactReusesOnlyTheFirstContextBehindTheIngestPrefix) {
  add({}, false);
  add(ids(40, 10), true);
  add(ids(20, 100), true);
  Plan p = plan("exact");
  EXPECT_EQ(p.fates.reused, 40);
  EXPECT_EQ(p.fates.recomputed, 20);
  request.prefix_ids = {1, 5};
  p = plan("exact");
  EXPECT_EQ(p.fates.reused, 0);
  EXPECT_EQ(p.fates.recomputed, 60);
}

TEST_F(PlanTest, DuplicatesAreDroppedWithoutAGap) {
  add(ids(40, 10), true);
  add(ids(40, 10), true);
  add(ids(20, 100), true);
  Plan p = plan("reuse");
  EXPECT_TRUE(p.contexts[1].duplicate);
  EXPECT_EQ(p.contexts[2].offset, 41);
  EXPECT_EQ(p.fates.dropped, 40);
  EXPECT_EQ(p.fates.reused, 60);
  EXPECT_EQ(p.contexts[1].blocks[0].action, Fate::kDropped);
  request.cache.dedupe = false;
  p = plan("reuse");
  EXPECT_FALSE(p.contexts[1].duplicate);
  EXPECT_EQ(p.contexts[2].offset, 81);
  EXPECT_EQ(p.fates.reused, 100);
}

TEST_F(PlanTest, EmptyDocumentsTakeNoRoom) {
  add({}, false);
  add(ids(20, 100), true);
  const Plan p = plan("reuse");
  EXPECT_EQ(p.contexts[0].num_tokens, 0);
  EXPECT_TRUE(p.contexts[0].blocks.empty());
  EXPECT_EQ(p.contexts[1].offset, 1);
}

TEST_F(PlanTest, AnchorsDropTheMiddle) {
  add(ids(160, 10), true);
  const Plan p = plan("anchors");
  EXPECT_EQ(p.fates.dropped, 7 * 16);
  EXPECT_EQ(p.fates.reused, 3 * 16);
  EXPECT_DOUBLE_EQ(p.keep_ratio, 0.3);
  EXPECT_EQ(p.positions, PositionMode::kGlobal);
  EXPECT_EQ(p.fates.cached(), 160);
}

TEST_F(PlanTest, SparseStrategiesNumberCompactlyPastTheWindow) {
  facts.window = 150;
  add(ids(100, 10), true);
  add(ids(100, 300), true);
  EXPECT_EQ(build("reuse").status().field(), "document_ids");
  EXPECT_EQ(check_request(facts, request).field(), "document_ids");
  auto window = parse_window_exceeded(build("reuse").status());
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->limit, 150);
  EXPECT_EQ(window->actual, 1 + 200 + 3 + 1);
  auto p = build("anchors");
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->plan.positions, PositionMode::kCompact);
  EXPECT_TRUE(p->plan.fallback.has_value());
  // The anchors of 7 blocks are 0, 5 and 6 (the last holds 4 tokens).
  EXPECT_EQ(p->execution.work[0].block_position,
            (std::vector<std::int32_t>{1, -1, -1, -1, -1, 17, 33}));
  EXPECT_EQ(p->execution.work[1].block_position[0], 37);
  EXPECT_EQ(p->execution.suffix_position, 73);
}

// The query pass over the anchors of a long document has nothing of its middle chunks, whose blocks
// are scored at their distance to the question nevertheless.
TEST_F(PlanTest, PastTheWindowAContextWithoutKeptTokensStandsWhereTheyWould) {
  facts.window = 150;
  for (std::int32_t i = 0; i < 4; ++i) {
    add(ids(100, 10 + 100 * i), true);
    request.contexts.back().document_id = "one";
    request.contexts.back().chunk = i;
  }
  const auto p = build("samkv");
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  ASSERT_EQ(p->plan.positions, PositionMode::kCompact);
  const auto& work = p->execution.work;
  EXPECT_EQ(work[0].block_position[0], 1);
  EXPECT_EQ(work[1].block_position, std::vector<std::int32_t>(7, -1));
  EXPECT_EQ(work[2].block_position, std::vector<std::int32_t>(7, -1));
  EXPECT_EQ(work[0].first_position, 1);
  EXPECT_EQ(work[1].first_position, 17);
  EXPECT_EQ(work[2].first_position, 17);
  EXPECT_EQ(work[3].first_position, 17);
  EXPECT_EQ(work[3].block_position[5], 17);
  EXPECT_EQ(p->execution.suffix_position, 17 + 16 + 4);
}

TEST_F(PlanTest, NaivePositionsStartWhereIngestHadThem) {
  add(ids(40, 10), true);
  add(ids(20, 100), true);
  request.cache.positions = PositionMode::kLocalNaive;
  auto p = build("reuse");
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->execution.work[1].block_position, (std::vector<std::int32_t>{1, 17}));
  EXPECT_EQ(p->execution.suffix_position, 61);
  EXPECT_EQ(build("exact").status().field(), "cache.positions");
}

TEST_F(PlanTest, ParallelPositionsBeginEachDocumentBehindThePrefix) {
  add(ids(40, 10), true);
  add(ids(20, 100), true);
  add(ids(30, 200), true);
  // The last two contexts are chunks of one document.
  request.contexts[1].document_id = request.contexts[2].document_id = "long";
  request.contexts[1].chunk = 3;
  request.contexts[2].chunk = 4;
  request.cache.positions = PositionMode::kParallel;
  auto p = build("reuse");
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->execution.work[0].block_position, (std::vector<std::int32_t>{1, 17, 33}));
  EXPECT_EQ(p->execution.work[1].block_position, (std::vector<std::int32_t>{1, 17}));
  EXPECT_EQ(p->execution.work[2].block_position, (std::vector<std::int32_t>{21, 37}));
  EXPECT_EQ(p->execution.suffix_position, 51) << "behind the longest document";

  request.contexts[2].chunk = 3;
  p = build("reuse");
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->execution.work[2].block_position, (std::vector<std::int32_t>{1, 17}))
      << "another document of the same name";
  EXPECT_EQ(p->execution.suffix_position, 41);

  facts.window = 50;
  EXPECT_TRUE(build("reuse").ok()) << "the longest document has to fit, not all together";
  facts.window = 44;
  EXPECT_EQ(build("reuse").status().field(), "document_ids");
  facts.window = 2000;
  EXPECT_EQ(build("exact").status().field(), "cache.positions");
}

TEST_F(PlanTest, AutoSaysWhy) {
  add(ids(100, 10), true);
  // A short prompt is answered exactly, also where an approximation is certified.
  request.certified = certified("reuse");
  Plan p = plan("auto");
  EXPECT_EQ(p.strategy, "exact");
  EXPECT_NE(p.reason.find("300"), std::string::npos);
  request.certified.reset();
  add(ids(400, 200), false);
  p = plan("auto");
  EXPECT_EQ(p.strategy, "exact");
  EXPECT_EQ(p.strategy_asked, "auto");
  EXPECT_FALSE(p.reason.empty());
  stored_.clear();
  p = plan("auto");
  EXPECT_EQ(p.strategy, "recompute");
}

TEST_F(PlanTest, AutoTakesAnApproximationOnlyWhenItIsCertified) {
  add(ids(100, 10), true);
  add(ids(400, 200), true);
  request.certified = certified("reuse");
  const Plan p = plan("auto");
  EXPECT_EQ(p.strategy, "reuse");
  EXPECT_NE(p.reason.find("strategy reuse was shown to be good"), std::string::npos);
  EXPECT_FALSE(p.fallback);
  request.certified.reset();
  EXPECT_EQ(plan("auto").strategy, "exact");
}

TEST_F(PlanTest, AutoTakesACertifiedStrategyWithItsSettings) {
  add(ids(100, 10), true);
  add(ids(400, 200), true);
  request.certified = certified("reuse");
  request.certified->cache.positions = PositionMode::kLocalNaive;
  EXPECT_EQ(plan("auto").positions, PositionMode::kLocalNaive);
  request.certified = certified("epic");
  request.certified->cache.recompute_ratio = 0.5;
  const std::int64_t half = plan("auto").fates.recomputed;
  request.certified->cache.recompute_ratio = 0.1;
  const std::int64_t tenth = plan("auto").fates.recomputed;
  EXPECT_GT(half, 3 * tenth);
  EXPECT_GT(tenth, 0);
  // Where `auto` takes something else, these settings are not taken.
  stored_.clear();
  EXPECT_EQ(plan("auto").strategy, "recompute");
  EXPECT_FALSE(plan("auto").fallback);
}

TEST_F(PlanTest, AutoComparesLoadingWithComputing) {
  request.prefix_ids = {1};
  add(ids(400, 10), true);
  add(ids(400, 500), true);
  request.certified = certified("samkv");
  EXPECT_EQ(plan("auto").strategy, "samkv");
  Speeds speeds;
  speeds.prefill_tokens_per_ms = 1;
  speeds.disk_bytes_per_ms = 1e6;
  auto p = build("auto", speeds);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->plan.strategy, "samkv");
  EXPECT_NE(p->plan.reason.find("full prefill"), std::string::npos);
  // The disk is so slow that computing is faster.
  speeds.disk_bytes_per_ms = 10;
  p = build("auto", speeds);
  EXPECT_EQ(p->plan.strategy, "recompute");
  EXPECT_NE(p->plan.reason.find("loading takes longer"), std::string::npos);
  // An approximation is taken only if it is certified and in this build.
  speeds.disk_bytes_per_ms = 1e6;
  for (const auto& none :
       {std::optional<CertifiedStrategy>(), std::optional(certified("nosuch"))}) {
    request.certified = none;
    EXPECT_EQ(build("auto", speeds)->plan.strategy, "exact");
  }
  request.certified.reset();
  request.not_certified = "nothing has passed for such documents";
  EXPECT_NE(build("auto", speeds)->plan.reason.find("passed for such"), std::string::npos);
  request.certified = certified("reuse");
  EXPECT_EQ(build("auto", speeds)->plan.reason.find("passed for such"), std::string::npos);
}

TEST_F(PlanTest, ASelectionThatTheQuestionDecidesIsPending) {
  add(ids(160, 10), true);
  add(ids(160, 300), true);
  auto p = build("samkv");
  ASSERT_TRUE(p.ok());
  EXPECT_TRUE(p->plan.selection_pending);
  EXPECT_TRUE(p->execution.needs_query_pass);
  EXPECT_TRUE(p->execution.needs_sketches);
  EXPECT_EQ(p->plan.fates.total(), p->plan.prompt_tokens);
  EXPECT_EQ(p->execution.selection.kept(0, 0).size(), 3u);
  EXPECT_EQ(p->plan.recomputer, "samkv_fusion");
  Selection::ContextBlocks kept = {{0, 4, 8, 9}, {0, 8, 9}};
  ASSERT_TRUE(complete_plan(facts, request, {}, Selection::shared(4, kept), {}, *p).ok());
  EXPECT_FALSE(p->plan.selection_pending);
  EXPECT_EQ(p->plan.contexts[0].blocks[4].kept_layers, 4);
  EXPECT_EQ(p->execution.work[0].block_position[4], 1 + 64);
  // The first document is exact. All anchors of the second one are recomputed.
  EXPECT_EQ(p->plan.fates.recomputed, 48);
  EXPECT_EQ(p->plan.fates.reused, 64);
  EXPECT_EQ(p->plan.fates.total(), p->plan.prompt_tokens);
  request.cache.options = options({{"recompute", "none"}});
  EXPECT_EQ(build("samkv")->plan.recomputer, "none");
  request.cache.options = options({{"select", "off"}});
  EXPECT_FALSE(build("samkv")->plan.selection_pending);
  // Without a question only the documents' sketches decide.
  request.cache.options = {};
  request.suffix_ids.clear();
  p = build("samkv");
  EXPECT_TRUE(p->plan.selection_pending);
  EXPECT_FALSE(p->execution.needs_query_pass);
}

TEST_F(PlanTest, AContextSaysWhichLayersKeepItsBlocks) {
  add(ids(48, 10), true);
  add(ids(48, 300), true);
  auto p = build("samkv");
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  Selection chosen = Selection::per_layer(
      {{{0, 2}, {0}}, {{0, 1, 2}, {0}}, {{0, 2}, {0}}, {{0, 1}, {0, 1}}});
  ASSERT_TRUE(complete_plan(facts, request, {}, std::move(chosen), {}, *p).ok());
  const auto layers = [&](std::size_t context, std::size_t block) {
    std::vector<std::size_t> out;
    const auto& kept = p->plan.contexts[context].kept_in;
    EXPECT_EQ(kept.size(), 12u);
    for (std::size_t layer = 0; layer < 4; ++layer)
      if (kept.at(block * 4 + layer)) out.push_back(layer);
    return out;
  };
  EXPECT_EQ(layers(0, 0), (std::vector<std::size_t>{0, 1, 2, 3}));
  EXPECT_EQ(layers(0, 1), (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(layers(0, 2), (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(layers(1, 1), (std::vector<std::size_t>{3}));
  EXPECT_TRUE(layers(1, 2).empty());
  for (const PlannedContext& c : p->plan.contexts)
    for (std::size_t b = 0; b < c.blocks.size(); ++b)
      EXPECT_EQ(to_size(c.blocks[b].kept_layers), layers(&c - p->plan.contexts.data(), b).size());
  // One choice for all layers needs no such table.
  Selection same = Selection::shared(4, {{0, 1}, {0}});
  ASSERT_TRUE(complete_plan(facts, request, {}, std::move(same), {}, *p).ok());
  EXPECT_TRUE(p->plan.contexts[0].kept_in.empty());
}

TEST_F(PlanTest, AChoiceThatExceedsTheWindowLosesItsWorstBlocks) {
  facts.window = 180;
  add(ids(160, 10), true);
  add(ids(160, 300), true);
  auto p = build("samkv");
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->plan.positions, PositionMode::kCompact);
  Selection all = Selection::shared(4, {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 4, 8, 9}});
  all.scores = {{9, 1, 2, 3, 4, 5, 6, 7, 9, 9}, {9, 0, 0, 0, 0.5f, 0, 0, 0, 9, 9}};
  ASSERT_TRUE(complete_plan(facts, request, {}, std::move(all), {}, *p).ok());
  // 14 blocks of 16 and 5 more positions are 229, so four blocks are dropped.
  EXPECT_EQ(p->plan.contexts[1].blocks[4].kept_layers, 0);
  for (std::size_t b = 0; b < 10; ++b)
    EXPECT_EQ(p->plan.contexts[0].blocks[b].kept_layers, b >= 1 && b <= 3 ? 0 : 4) << b;
  EXPECT_NE(p->plan.fallback->find("4 blocks less"), std::string::npos);
  EXPECT_EQ(p->execution.suffix_position, 1 + 160);
}

TEST_F(PlanTest, WithoutAQuestionTheLastDocumentMustKeepSomething) {
  add(ids(160, 10), true);
  add(ids(160, 300), true);
  request.suffix_ids.clear();
  const auto completed = [&](Selection selection) {
    auto p = build("samkv");
    EXPECT_TRUE(p.ok()) << p.status().to_string();
    if (!p.ok()) return p.status();
    EXPECT_TRUE(p->plan.selection_pending);
    return complete_plan(facts, request, {}, std::move(selection), {}, *p);
  };
  EXPECT_TRUE(completed(Selection::shared(4, {{}, {9}})).ok());
  const Status nothing = completed(Selection::shared(4, {{0, 9}, {}}));
  EXPECT_EQ(nothing.code(), Code::kInvalidArgument);
  EXPECT_EQ(nothing.field(), request.question_param);
  const Status in_one_layer = completed(
      Selection::per_layer({{{0}, {9}}, {{0}, {9}}, {{0}, {}}, {{0}, {9}}}));
  EXPECT_EQ(in_one_layer.field(), request.question_param);
}

TEST_F(PlanTest, MissReasonsTellWhy) {
  add(ids(20, 10), false);
  request.contexts.push_back({"", "", 0, ids(20, 40), std::nullopt});
  request.contexts.push_back({"m", "", 0, ids(20, 70), ContextKey{{std::byte{1}}}});
  Plan p = plan("reuse");
  EXPECT_EQ(p.contexts[0].miss, MissReason::kEvicted);
  EXPECT_EQ(p.contexts[1].miss, MissReason::kNotCached);
  EXPECT_EQ(p.contexts[2].miss, MissReason::kModelChanged);
  request.salt_digest[0] = 3;
  p = plan("reuse");
  EXPECT_EQ(p.contexts[0].miss, MissReason::kSaltMismatch);
  EXPECT_EQ(p.fates.computed, p.prompt_tokens);
}

TEST_F(PlanTest, KeysDependOnEverythingThatMatters) {
  const auto tokens = ids(20, 10);
  const ContextKey key = facts.names.context_key(tokens, "t", {});
  EXPECT_EQ(key, facts.names.context_key(tokens, "t", {}));
  EXPECT_NE(key, facts.names.context_key(tokens, "u", {}));
  EXPECT_NE(key, facts.names.context_key(tokens, "t", {1}));
  EXPECT_NE(key, facts.names.context_key(ids(20, 11), "t", {}));
  Digest other = model_digest();
  other.bytes[5] = std::byte{1};
  EXPECT_NE(key, ContextNames(other).context_key(tokens, "t", {}));
  EXPECT_NE(key, ContextNames(model_digest(), 32).context_key(tokens, "t", {}));
  EXPECT_NE(key, ContextNames(model_digest(), 0, 1).context_key(tokens, "t", {}));
}

TEST_F(PlanTest, LayersPerValueDividesTheLayersOfAContext) {
  EXPECT_EQ(kv_layout(facts, 100).num_groups(), 1);
  facts.names = ContextNames(model_digest(), 0, 3);
  const KvLayout layout = kv_layout(facts, 100);
  EXPECT_EQ(layout.num_groups(), 2);
  EXPECT_EQ(layout.layers_per_group(), 2);
  facts.names = ContextNames(model_digest(), 0, 1);
  EXPECT_EQ(kv_layout(facts, 100).num_groups(), 4);
  facts.names = ContextNames(model_digest(), 0, 100);
  EXPECT_EQ(kv_layout(facts, 100).num_groups(), 1);
}

// Chunks that follow one another in the prompt as in their document are one document.
TEST_F(PlanTest, NeighbouringChunksOfADocumentAreOneContextOfSamkv) {
  for (int i = 0; i < 4; ++i) add(ids(320, 100 * i), true);
  const char* of[] = {"a", "a", "a", "b"};
  const std::int32_t chunk[] = {0, 1, 3, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    request.contexts[i].document_id = of[i];
    request.contexts[i].chunk = chunk[i];
  }
  request.cache.options = options({{"select", "off"}, {"score", "keys"}, {"recompute", "none"}});
  const auto anchors_of = [](const Plan& p, std::size_t context) {
    std::vector<std::size_t> kept;
    for (std::size_t b = 0; b < p.contexts[context].blocks.size(); ++b)
      if (p.contexts[context].blocks[b].kept_layers > 0) kept.push_back(b);
    return kept;
  };
  using Blocks = std::vector<std::size_t>;
  const Plan whole = plan("samkv");
  EXPECT_EQ(anchors_of(whole, 0), Blocks{0});
  EXPECT_EQ(anchors_of(whole, 1), (Blocks{18, 19}));
  EXPECT_EQ(anchors_of(whole, 2), (Blocks{0, 18, 19})) << "chunk 2 is not in between";
  EXPECT_EQ(anchors_of(whole, 3), (Blocks{0, 18, 19}));
  request.cache.options = options(
      {{"select", "off"}, {"score", "keys"}, {"recompute", "none"}, {"contexts", "chunks"}});
  EXPECT_EQ(anchors_of(plan("samkv"), 1), (Blocks{0, 18, 19}));
  // What is computed again follows the anchors that were kept.
  request.cache.options = options({{"select", "off"}, {"score", "keys"}});
  EXPECT_EQ(plan("samkv").contexts[1].blocks[18].recomputed_tokens, 16);
  EXPECT_EQ(plan("samkv").contexts[1].blocks[0].recomputed_tokens, 0);
}

TEST_F(PlanTest, BlockSizeFollowsLength) {
  for (const auto& [n, want] :
       {std::pair{1, 16}, {400, 16}, {575, 16}, {576, 32}, {1151, 32}, {1152, 64}, {100000, 64}}) {
    EXPECT_EQ(facts.names.block_tokens_for(n), want) << n;
  }
}

TEST_F(PlanTest, PredictionsComeFromMeasuredSpeeds) {
  add(ids(160, 10), true);
  Speeds speeds;
  speeds.disk_bytes_per_ms = 1000;
  speeds.prefill_tokens_per_ms = 2;
  auto p = build("reuse", speeds);
  ASSERT_TRUE(p.ok());
  EXPECT_DOUBLE_EQ(p->plan.predicted_load_ms, 160.0 * 4 * 2 * 2 * 8 * 2 / 1000);
  EXPECT_DOUBLE_EQ(p->plan.predicted_prefill_ms, 2);
  EXPECT_DOUBLE_EQ(build("recompute", speeds)->plan.predicted_prefill_ms, 82);
}

TEST_F(PlanTest, BadRequestsNameTheField) {
  const auto field = [this](auto edit) {
    const QueryRequest saved = request;
    edit(request);
    const std::string strategy = request.cache.strategy == "auto" ? "reuse"
                                                                  : request.cache.strategy;
    const Status s = build(strategy).status();
    EXPECT_EQ(check_request(facts, request).to_string(), s.to_string());
    request = saved;
    EXPECT_EQ(s.code(), s.ok() ? Code::kOk : Code::kInvalidArgument);
    return s.field();
  };
  EXPECT_EQ(field([](auto&) {}), "");
  EXPECT_EQ(field([](auto& r) { r.cache.strategy = "x"; }), "cache.strategy");
  EXPECT_EQ(field([](auto& r) { r.cache.compress = "magic"; }), "cache.compress");
  EXPECT_EQ(field([](auto& r) { r.cache.decode = "nobody"; }), "cache.decode");
  EXPECT_EQ(field([](auto& r) { r.cache.keep_ratio = 1.5; }), "cache.keep_ratio");
  EXPECT_EQ(field([](auto& r) { r.cache.recompute_ratio = -1; }), "cache.recompute_ratio");
  EXPECT_EQ(field([](auto& r) { r.suffix_ids = {1000}; }), "query");
  EXPECT_EQ(field([](auto& r) { r.prefix_ids = {-1}; }), "system");
  EXPECT_EQ(field([](auto& r) {
              r.contexts.push_back({"", "", 0, {5, 1000}, std::nullopt});
            }),
            "documents[0]");
  EXPECT_EQ(field([](auto& r) {
              r.contexts.push_back({"", "", 0, ids(2000, 0), std::nullopt});
            }),
            "documents[0]");
  EXPECT_EQ(field([](auto& r) { r.suffix_ids.assign(1999, 5); }), "query");
  EXPECT_EQ(field([](auto& r) {
              r.suffix_ids.clear();
              r.prefix_ids.clear();
            }),
            "query");
  EXPECT_EQ(field([](auto& r) { r.sampling.top_p = 0; }), "top_p");
  // Fields have the names that the client's request gives them.
  request.question_param = "prompt[1]";
  request.documents_param = "documents";
  EXPECT_EQ(field([](auto& r) { r.suffix_ids = {1000}; }), "prompt[1]");
  EXPECT_EQ(field([](auto& r) { r.suffix_ids.assign(1999, 5); }), "prompt[1]");
  EXPECT_EQ(field([](auto& r) {
              r.suffix_ids.clear();
              r.prefix_ids.clear();
            }),
            "prompt[1]");
  EXPECT_EQ(field([](auto& r) {
              for (int i = 0; i < 8; ++i)
                r.contexts.push_back({"", "", 0, ids(300, 20 + i), std::nullopt});
            }),
            "documents");
  EXPECT_EQ(field([](auto& r) {
              r.contexts.push_back({"", "", 0, {5, 1000}, std::nullopt});
              r.contexts.back().param = "messages[0].content[1]";
            }),
            "messages[0].content[1]");
  EXPECT_EQ(field([](auto& r) { r.sampling.forced_tokens = {1 << 30}; }), "forced_tokens");
  facts.stop_ids = {2};
  EXPECT_EQ(field([](auto& r) {
              r.sampling.allowed_tokens = {2};
              r.sampling.min_tokens = 4;
            }),
            "min_tokens");
}

TEST_F(PlanTest, RatiosThatAStrategyDoesNotTakeAreSaidSo) {
  add(ids(40, 10), true);
  request.cache.keep_ratio = 0.3;
  EXPECT_EQ(plan("reuse").fallback, "strategy reuse does not take keep_ratio");
}

TEST_F(PlanTest, DecodingIsChosenForTheAnswerThatIsExpected) {
  add(ids(40, 10), true);
  add(ids(20, 100), true);
  request.sampling.max_tokens = 1900;
  request.cache.options = options({{"decode_budget", "512"}});
  const auto fits = [this] {
    return plan("reuse").decode_reason.find("no more than the budget") != std::string::npos;
  };
  EXPECT_FALSE(fits()) << "a length that was asked for is expected";
  request.sampling.max_tokens_asked = false;
  EXPECT_TRUE(fits()) << "of the window few answers take more than their first tokens";
}

TEST_F(PlanTest, AFaultTurnsAContextIntoComputedTokens) {
  add(ids(40, 10), true);
  add(ids(20, 100), true);
  auto p = build("reuse");
  ASSERT_TRUE(p.ok());
  turn_into_miss(*p, 1, MissReason::kCorrupt);
  finish_plan(facts, {}, *p);
  EXPECT_EQ(p->plan.fates.reused, 40);
  EXPECT_EQ(p->plan.fates.computed, 24);
  EXPECT_EQ(p->plan.contexts[1].miss, MissReason::kCorrupt);
  EXPECT_EQ(p->plan.fates.total(), p->plan.prompt_tokens);
}

}  // namespace
}  // namespace quire
