/// One conformance suite per socket, run over every plug of this build.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "engine/compress/compressor.h"
#include "engine/model/model.h"
#include "engine/plan/strategy.h"
#include "engine/recompute/recomputer.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/retriever.h"
#include "engine/select/selector.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_rows.h"
#include "tests/support/host_compute.h"
#include "tests/support/model_files.h"

namespace quire {

using testing::host_compute;

namespace {

class SelectorConformance : public ::testing::TestWithParam<std::string> {};

std::vector<SelectableContext> contexts_of(const std::vector<int>& blocks) {
  std::vector<SelectableContext> contexts;
  std::int64_t at = 1;
  for (int n : blocks) {
    contexts.push_back({n * 16 - (n > 0 ? 3 : 0), at, 16, n, false});
    at += contexts.back().num_tokens;
  }
  return contexts;
}

TEST_P(SelectorConformance, IsDeterministicAscendingAndInRange) {
  const auto selector = std::move(*selectors().make(GetParam()));
  EXPECT_EQ(selector->name(), GetParam());
  const auto contexts = contexts_of({0, 1, 2, 3, 4, 9});
  SelectionInput input;
  input.contexts = contexts;
  input.num_layers = 5;
  auto a = selector->select(input), b = selector->select(input);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->num_layers(), 5);
  for (std::int32_t layer = 0; layer < 5; ++layer) {
    for (std::int32_t c = 0; c < static_cast<std::int32_t>(contexts.size()); ++c) {
      const auto kept = a->kept(layer, c);
      EXPECT_TRUE(
          std::equal(kept.begin(), kept.end(), b->kept(layer, c).begin(), b->kept(layer, c).end()));
      for (std::size_t i = 0; i < kept.size(); ++i) {
        EXPECT_GE(kept[i], i == 0 ? 0 : kept[i - 1] + 1);
        EXPECT_LT(kept[i], contexts[static_cast<std::size_t>(c)].num_blocks);
      }
    }
  }
}

TEST_P(SelectorConformance, KeepsAnchorsAndWholeSmallContexts) {
  const auto selector = std::move(*selectors().make(GetParam()));
  const auto contexts = contexts_of({1, 2, 3, 12});
  SelectionInput input;
  input.contexts = contexts;
  input.num_layers = 2;
  auto s = selector->select(input);
  ASSERT_TRUE(s.ok());
  for (std::int32_t c = 0; c < 4; ++c) {
    for (std::int32_t anchor : anchor_blocks(contexts[static_cast<std::size_t>(c)].num_blocks))
      EXPECT_EQ(s->kept_layers(c, anchor), 2);
    if (contexts[static_cast<std::size_t>(c)].num_blocks <= 3) {
      EXPECT_EQ(s->kept(0, c).size(),
                static_cast<std::size_t>(contexts[static_cast<std::size_t>(c)].num_blocks));
    }
  }
}

class SelectorWithBudget : public ::testing::TestWithParam<std::string> {};

TEST_P(SelectorWithBudget, AFullBudgetKeepsEverything) {
  const std::vector<std::int32_t> question = {5, 6, 7};
  // Counts that no proportion divides evenly.
  const std::vector<std::vector<int>> counts = {{1, 2, 3, 12}, {7}, {0, 41, 5}, {100, 3}};
  for (const std::vector<int>& blocks : counts) {
    const auto contexts = contexts_of(blocks);
    for (const std::span<const std::int32_t> asked :
         {std::span<const std::int32_t>(question), std::span<const std::int32_t>()}) {
      SelectionInput input;
      input.contexts = contexts;
      input.num_layers = 2;
      input.question = asked;
      input.keep_ratio = 1;
      const auto s = (*selectors().make(GetParam()))->select(input);
      ASSERT_TRUE(s.ok()) << s.status().to_string();
      for (std::int32_t c = 0; c < static_cast<std::int32_t>(contexts.size()); ++c)
        for (std::int32_t b = 0; b < contexts[static_cast<std::size_t>(c)].num_blocks; ++b)
          EXPECT_EQ(s->kept_layers(c, b), 2) << c << ", " << b;
    }
  }
}

TEST_P(SelectorConformance, AcceptsNoContexts) {
  SelectionInput input;
  input.num_layers = 1;
  EXPECT_TRUE((*selectors().make(GetParam()))->select(input).ok());
}

std::vector<std::string> selectors_with_budget() {
  std::vector<std::string> names = selectors().names();
  std::erase(names, "anchors");  // it keeps the ends of documents, whatever is asked for
  return names;
}
INSTANTIATE_TEST_SUITE_P(Plugs, SelectorWithBudget, ::testing::ValuesIn(selectors_with_budget()),
                         [](const auto& plug) { return plug.param; });
INSTANTIATE_TEST_SUITE_P(Plugs, SelectorConformance, ::testing::ValuesIn(selectors().names()),
                         [](const auto& plug) { return plug.param; });

class RecomputerConformance : public ::testing::TestWithParam<std::string> {};

TEST_P(RecomputerConformance, DecidesTheSameTwiceAndPreparesOnlyWithAPass) {
  const auto recomputer = std::move(*recomputers().make(GetParam()));
  EXPECT_EQ(recomputer->name(), GetParam());
  const std::vector<std::int32_t> ids(40, 5);
  std::vector<RecomputableContext> contexts = {{ids, 1, 16, 3, true}, {ids, 41, 16, 3, false}};
  RecomputeInput input;
  input.contexts = contexts;
  input.num_layers = 2;
  for (std::int32_t c : {0, 1})
    EXPECT_EQ(recomputer->computes_in_place(input, c), recomputer->computes_in_place(input, c));
  if (!recomputer->has_pass()) {
    auto pass = recomputer->prepare(input);
    ASSERT_TRUE(pass.ok());
    EXPECT_EQ(*pass, nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Plugs, RecomputerConformance, ::testing::ValuesIn(recomputers().names()),
                         [](const auto& plug) { return plug.param; });

/// A small cache with random contents in every layer.
class FilledCache {
 public:
  FilledCache() : pool_(PageFormat{kKvHeads, kDim, DType::kF32}, 0), cache_(pool_, 2) {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kDim;
    const RopeTable rope = *RopeTable::build(config, 64);
    std::vector<std::int32_t> positions(37);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<float> raw(kKvHeads * 2 * positions.size() * kDim);
    for (std::size_t i = 0; i < raw.size(); ++i)
      raw[i] = std::sin(0.37f * static_cast<float>(i * i % 1009));
    const auto n = static_cast<std::int64_t>(positions.size());
    for (std::int32_t layer : {0, 1}) {
      EXPECT_TRUE(cache_.add_rows(layer, positions).ok());
      EXPECT_TRUE(cache_
                      .place(layer, rope,
                             {raw.data(), n, DType::kF32, 2 * n * kDim * 4, n * kDim * 4, kDim * 4},
                             0)
                      .ok());
    }
  }
  static constexpr std::int32_t kHeads = 4, kKvHeads = 2, kDim = 16;
  WorkingCache& cache() { return cache_; }

 private:
  PagePool pool_;
  WorkingCache cache_;
};

/// Inputs of retrievers that choose by a retrieval head: one with random weights, over the tokens
/// of a FilledCache.
struct HeadParts {
  HeadParts() {
    const auto config = parse_model_config(testing::tiny_config_json());
    EXPECT_TRUE(config.ok()) << config.status().to_string();
    model = std::move(*make_random_model(*config, {.weights = WeightFormat::kF32}, 1));
    RetrievalHeadConfig shape;
    shape.hidden_size = config->hidden_size;
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.head_dim = 8;
    head = std::move(*RetrievalHead::random(shape, *model, 2));
    track.emplace(*head, HeadInput::kEmbedding);
    std::vector<std::int32_t> ids(37), positions(37);
    std::iota(ids.begin(), ids.end(), 1);
    std::iota(positions.begin(), positions.end(), 0);
    EXPECT_TRUE(track->add_embedded(ids, positions).ok());
  }
  std::unique_ptr<Model> model;
  std::unique_ptr<RetrievalHead> head;
  std::optional<HeadTrack> track;
};

class RetrieverConformance : public ::testing::TestWithParam<std::string> {};

TEST_P(RetrieverConformance, BudgetOverTheContextEqualsDenseAttention) {
  FilledCache filled;
  DevicePool device(0);
  const HeadParts parts;
  const auto retriever = std::move(*retrievers().make(GetParam()));
  EXPECT_EQ(retriever->name(), GetParam());
  const RetainedRows retained;
  SequenceContext context;
  context.compute = &host_compute();
  AssembledPrompt assembled;
  context.cache = &filled.cache();
  assembled.retained = &retained;
  context.device = &device;
  context.head = parts.head.get();
  assembled.head_track = &*parts.track;
  assembled.num_tokens = 37;
  context.num_layers = 2;
  context.num_heads = FilledCache::kHeads;
  context.num_kv_heads = FilledCache::kKvHeads;
  context.head_dim = FilledCache::kDim;
  ASSERT_TRUE(prepare_whole(*retriever, context, assembled).ok());
  std::vector<float> query(FilledCache::kHeads * FilledCache::kDim), out(query.size()),
      want(query.size());
  for (std::size_t i = 0; i < query.size(); ++i) query[i] = std::cos(0.7f * static_cast<float>(i));
  const std::int32_t position = 36;
  ASSERT_TRUE(retriever->begin_step(5, position).ok());
  for (std::int32_t layer : {0, 1}) {
    RetrieveStep step;
    step.compute = &host_compute();
    step.layer = layer;
    step.query = query.data();
    step.position = position;
    step.cache = &filled.cache();
    step.num_heads = FilledCache::kHeads;
    step.head_dim = FilledCache::kDim;
    step.out = out.data();
    ASSERT_TRUE(retriever->attend(step).ok());
    AttentionArgs args{};
    args.q = query.data();
    args.query_positions = &position;
    args.rows = 1;
    args.ldq = args.ldo = static_cast<std::int64_t>(query.size());
    args.num_heads = FilledCache::kHeads;
    args.scale = 0.25f;
    args.kv = filled.cache().view(layer);
    args.out = want.data();
    ASSERT_TRUE(attention_reference(args).ok());
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(out[i], want[i], 1e-4) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Plugs, RetrieverConformance, ::testing::ValuesIn(retrievers().names()),
                         [](const auto& plug) { return plug.param; });

/// Dense attends to the rows that each head still holds. Other retrievers need the dropped rows, so
/// a request that drops rows may not name them.
TEST(DenseRetrieverTest, AttendsToWhatEachHeadStillHolds) {
  FilledCache intact, reduced;
  const std::vector<std::vector<std::int32_t>> kept = {{0, 5, 6, 7, 30, 36}, {3, 36}};
  ASSERT_TRUE(reduced.cache().keep_rows(1, kept).ok());
  const auto retriever = std::move(*retrievers().make("dense"));
  const RetainedRows retained;
  SequenceContext context;
  context.compute = &host_compute();
  AssembledPrompt assembled;
  context.cache = &reduced.cache();
  assembled.retained = &retained;
  assembled.num_tokens = 37;
  context.num_layers = 2;
  context.num_heads = FilledCache::kHeads;
  context.num_kv_heads = FilledCache::kKvHeads;
  context.head_dim = FilledCache::kDim;
  ASSERT_TRUE(retriever->prepare(context, assembled).ok());
  std::vector<float> query(FilledCache::kHeads * FilledCache::kDim), out(query.size()),
      want(query.size());
  for (std::size_t i = 0; i < query.size(); ++i) query[i] = std::cos(0.4f * static_cast<float>(i));
  const std::int32_t position = 37;
  ASSERT_TRUE(retriever->begin_step(5, position).ok());
  RetrieveStep step;
  step.compute = &host_compute();
  step.layer = 1;
  step.query = query.data();
  step.position = position;
  step.cache = &reduced.cache();
  step.num_heads = FilledCache::kHeads;
  step.head_dim = FilledCache::kDim;
  step.out = out.data();
  ASSERT_TRUE(retriever->attend(step).ok());
  AttentionRowsArgs args{};
  args.attention.q = query.data();
  args.attention.query_positions = &position;
  args.attention.rows = 1;
  args.attention.ldq = args.attention.ldo = static_cast<std::int64_t>(query.size());
  args.attention.num_heads = FilledCache::kHeads;
  args.attention.scale = 0.25f;
  args.attention.kv = intact.cache().view(1);
  args.attention.out = want.data();
  std::vector<RowList> lists;
  for (const auto& rows : kept)
    lists.push_back({rows.data(), static_cast<std::int64_t>(rows.size())});
  args.lists = lists.data();
  ASSERT_TRUE(attention_rows_reference(args).ok());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(out[i], want[i], 1e-4) << i;
}

class CompressorConformance : public ::testing::TestWithParam<std::string> {
 protected:
  CompressorConformance() : compressor_(std::move(*compressors().make(GetParam()))) {
    RopeConfig config;
    config.head_dim = config.rotary_dim = FilledCache::kDim;
    rope_ = *RopeTable::build(config, 64);
    // The rows are a prefix, two contexts and the question.
    rows_.num_rows = 37;
    rows_.prefix = {0, 2};
    rows_.contexts = {{2, 19}, {19, 31}};
    rows_.question = {31, 37};
  }

  /// Shows the question's rows to the compressor, with different queries in each layer, and lets it
  /// rank.
  Result<RetainedRows> retained(const std::string& capacity, std::int32_t first_seen = 31) {
    PlugOptions options;
    if (!compressor_->keeps_everything())
      options = PlugOptions({{"capacity", capacity}, {"window", "4"}});
    QUIRE_ASSIGN_OR_RETURN(compressor_, compressors().make(GetParam(), options));
    CompressSetup setup;
    setup.rope = &rope_;
    setup.num_layers = 2;
    setup.num_heads = FilledCache::kHeads;
    setup.num_kv_heads = FilledCache::kKvHeads;
    setup.head_dim = FilledCache::kDim;
    setup.question_begin = 31;
    setup.question_end = 37;
    QUIRE_RETURN_IF_ERROR(compressor_->begin(setup));
    for (std::int32_t layer = 0; layer < 2 && compressor_->observer() != nullptr; ++layer)
      show(layer, first_seen);
    const std::vector<LayerRows> layers(2, rows_);
    return compressor_->compress({&filled_.cache(), layers});
  }

  void show(std::int32_t layer, std::int32_t first) {
    const std::int64_t n = 37 - first, width = FilledCache::kHeads * FilledCache::kDim;
    std::vector<float> q(static_cast<std::size_t>(n * width)),
        lse(static_cast<std::size_t>(n * FilledCache::kHeads), 1.5f);
    for (std::size_t i = 0; i < q.size(); ++i)
      q[i] = std::sin(static_cast<float>(layer + 1) * 1.3f * static_cast<float>(i));
    std::vector<std::int32_t> rows(static_cast<std::size_t>(n)), positions(rows.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::iota(positions.begin(), positions.end(), first);
    std::vector<std::uint8_t> write(rows.size(), 1), carry_on = write;
    std::vector<std::int64_t> cache_rows(rows.size(), 0);
    LayerPass pass{.layer = layer,
                   .rows = rows,
                   .positions = positions,
                   .qkv = {},
                   .lse = lse.data(),
                   .cache = &filled_.cache(),
                   .write = &write,
                   .carry_on = &carry_on,
                   .cache_rows = &cache_rows,
                   .compute = &host_compute()};
    pass.qkv.q = q.data();
    pass.qkv.rows = n;
    pass.qkv.ld = width;
    ASSERT_TRUE(compressor_->observer()->after_attention(pass).ok());
  }

  FilledCache filled_;
  RopeTable rope_;
  LayerRows rows_;
  std::unique_ptr<Compressor> compressor_;
};

TEST_P(CompressorConformance, ACapacityThatCoversTheContextLeavesEverythingHot) {
  EXPECT_EQ(compressor_->name(), GetParam());
  for (const char* capacity : {"37", "1000"}) {
    auto h = retained(capacity);
    ASSERT_TRUE(h.ok()) << h.status().to_string();
    EXPECT_TRUE(h->hot.empty());
  }
}

TEST_P(CompressorConformance, KeepsExactlyTheCapacityAndWhatAlwaysStays) {
  if (compressor_->keeps_everything()) return;
  for (const std::int64_t capacity : {9, 20, 36}) {
    auto h = retained(std::to_string(capacity));
    ASSERT_TRUE(h.ok()) << h.status().to_string();
    ASSERT_EQ(h->hot.size(), 2u);
    std::int64_t total = 0;
    for (const auto& layer : h->hot) {
      ASSERT_EQ(layer.size(), 2u);
      for (const auto& head : layer) {
        std::vector<std::int32_t> sorted = head;
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end()) << "a row twice";
        EXPECT_GE(sorted.front(), 0);
        EXPECT_LT(sorted.back(), 37);
        // The question and the prefix fit into every capacity here; the contexts take the rest.
        for (const std::int32_t row : {0, 1, 31, 32, 33, 34, 35, 36})
          EXPECT_TRUE(std::binary_search(sorted.begin(), sorted.end(), row)) << row;
        total += static_cast<std::int64_t>(head.size());
      }
    }
    EXPECT_EQ(total, 2 * 2 * capacity);
  }
}

TEST_P(CompressorConformance, WindowRowsStayUnderTheSmallestCapacity) {
  if (compressor_->keeps_everything()) return;
  auto h = retained("5");
  ASSERT_TRUE(h.ok());
  for (const auto& layer : h->hot) {
    for (const auto& head : layer) {
      for (const std::int32_t row : {33, 34, 35, 36})
        EXPECT_NE(std::find(head.begin(), head.end(), row), head.end());
    }
  }
}

TEST_P(CompressorConformance, RanksTheSameTwice) {
  if (compressor_->keeps_everything()) return;
  auto first = retained("20");
  auto second = retained("20");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->hot, second->hot);
}

TEST_P(CompressorConformance, ACapacityWithinTheWindowIsRefused) {
  if (compressor_->keeps_everything()) return;
  for (const char* capacity : {"4", "3", "7.5"})
    EXPECT_EQ(retained(capacity).status().field(), "cache.options.capacity");
}

INSTANTIATE_TEST_SUITE_P(Plugs, CompressorConformance, ::testing::ValuesIn(compressors().names()),
                         [](const auto& plug) { return plug.param; });

TEST(RegistryTest, EveryStrategyIsMadeOfKnownPlugs) {
  for (const Strategy& s : strategies()) {
    EXPECT_TRUE(selectors().make(s.selector).ok()) << s.name;
    EXPECT_TRUE(recomputers().make(s.recomputer).ok()) << s.name;
    EXPECT_FALSE(s.summary.empty());
  }
}

TEST(RegistryTest, UnknownNamesListWhatThereIs) {
  EXPECT_NE(selectors().make("x").status().message().find("anchors"), std::string::npos);
  EXPECT_NE(recomputers().make("x").status().message().find("full"), std::string::npos);
  EXPECT_EQ(compressors().make("magic").status().field(), "cache.compress");
  EXPECT_EQ(retrievers().make("nobody").status().field(), "cache.decode");
  const Status s = find_strategy("x").status();
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.field(), "cache.strategy");
  for (const char* name : {"auto", "recompute", "exact", "reuse"})
    EXPECT_NE(s.message().find(name), std::string::npos);
}

}  // namespace
}  // namespace quire
