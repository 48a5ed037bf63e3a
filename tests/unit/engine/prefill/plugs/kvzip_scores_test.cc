// KVzip's scores: the most attention that a repetition of the context pays to each token.
#include <cmath>

#include "engine/record/kvzip_scores.h"
#include "engine/schedule/prefill_task.h"
#include "tests/support/harness/ingest_harness.h"

namespace quire::testing {
namespace {

/// The largest attention weight of any row to each position, [layer][kv head][position], in double.
class Watch final : public ForwardHook {
 public:
  explicit Watch(const Model& model) : model_(model) {}
  Status after_attention(LayerPass& pass) override {
    const ModelConfig& c = model_.config();
    const KvView kv = pass.cache->view(pass.layer);
    std::vector<float> q(static_cast<std::size_t>(c.num_heads * c.head_dim));
    for (std::size_t r = 0; r < pass.rows.size(); ++r) {
      QUIRE_RETURN_IF_ERROR(
          rope_rotate(model_.rope(), {.x = pass.qkv.q + static_cast<std::int64_t>(r) * pass.qkv.ld,
                                      .out = q.data(),
                                      .positions = &pass.positions[r],
                                      .rows = 1,
                                      .num_heads = c.num_heads,
                                      .ldx = pass.qkv.ld,
                                      .ldo = static_cast<std::int64_t>(q.size())}));
      for (std::int32_t h = 0; h < c.num_heads; ++h) add(pass, kv, q, r, h);
    }
    return {};
  }
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, double> most;

 private:
  void add(const LayerPass& pass, const KvView& kv, const std::vector<float>& q, std::size_t r,
           std::int32_t h) {
    const ModelConfig& c = model_.config();
    const std::int32_t m = h / (c.num_heads / c.num_kv_heads);
    std::vector<double> weight;
    double sum = 0;
    for (std::int64_t row = 0; row < kv.num_rows && kv.positions[row] <= pass.positions[r]; ++row) {
      const auto* key = static_cast<const char*>(kv.pages[row / kPageTokens]) + m * kv.head_stride +
                        row % kPageTokens * kv.token_stride;
      double dot = 0;
      for (std::int32_t i = 0; i < c.head_dim; ++i)
        dot += double{q[static_cast<std::size_t>(h * c.head_dim + i)]} * load_f32(key, kv.dtype, i);
      weight.push_back(std::exp(dot / std::sqrt(double(c.head_dim))));
      sum += weight.back();
    }
    for (std::size_t row = 0; row < weight.size(); ++row) {
      double& most_here = most[{pass.layer, m, kv.positions[row]}];
      most_here = std::max(most_here, weight[row] / sum);
    }
  }
  const Model& model_;
};

TEST(KvzipScores, AreTheLargestAttentionOfTheRepeatedContext) {
  constexpr std::int32_t kTokens = 103;
  Ingest ingest(nullptr, 3, DType::kF32);
  ingest.core.more_records = {"kvzip_scores"};
  const auto kv = ingest.run(kTokens);
  ASSERT_TRUE(kv != nullptr);
  ASSERT_EQ(kv->records.count(kKvzipScoresIndex), 1u);
  const auto view = KvzipScoresView::parse(kv->records.at(kKvzipScoresIndex));
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->shape(), (KvzipScoresShape{3, ingest.model->config().num_kv_heads, kTokens}));

  // Prefix, context and context again in one sequence; only the repeated rows are watched.
  const auto& prefix = ingest.core.facts.ingest_prefix;
  std::vector<std::int32_t> first = prefix, again = Ingest::tokens(kTokens);
  first.insert(first.end(), again.begin(), again.end());
  WorkingCache cache(*ingest.pool, 3);
  ForwardWorkspace workspace;
  Watch watch(*ingest.model);
  std::int32_t position = 0;
  for (const auto& [ids, hook] :
       {std::pair<std::vector<std::int32_t>&, ForwardHook*>(first, nullptr),
        std::pair<std::vector<std::int32_t>&, ForwardHook*>(again, &watch)}) {
    std::vector<std::int32_t> positions;
    for (std::size_t i = 0; i < ids.size(); ++i) positions.push_back(position++);
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.hook = hook;
    ASSERT_TRUE(forward(*ingest.model, request, workspace).ok());
  }
  const auto begin = static_cast<std::int32_t>(prefix.size());
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    for (std::int32_t m = 0; m < ingest.model->config().num_kv_heads; ++m) {
      for (std::int32_t t = 0; t < kTokens; ++t) {
        const double want = watch.most.at({layer, m, begin + t});
        EXPECT_NEAR(std::log2(view->score(layer, m, t)), std::log2(want), 0.06)
            << layer << " " << m << " " << t;
      }
    }
  }
}

TEST(KvzipScores, AreMadeOnRequestOnly) {
  Ingest ingest(nullptr, 2, DType::kF32);
  EXPECT_EQ(ingest.run(75)->records.count(kKvzipScoresIndex), 0u);
}

/// A context that fills the model's window has no room to be repeated.
TEST(KvzipScores, AreLeftOutWithoutRoomInTheWindow) {
  Ingest ingest(nullptr, 2, DType::kF32);
  ingest.core.more_records = {"kvzip_scores"};
  const auto window = static_cast<std::int32_t>(ingest.model->rope().max_positions());
  const auto kv = ingest.run(window - 3 - 63);
  ASSERT_TRUE(kv != nullptr);
  EXPECT_EQ(kv->records.count(kKvzipScoresIndex), 0u);
}

TEST(KvzipScores, TakeNoMoreRowsThanTheySay) {
  Ingest ingest(nullptr, 2, DType::kF32);
  const auto before = static_cast<std::int64_t>(ingest.core.facts.ingest_prefix.size());
  EXPECT_EQ(rows_behind(ingest.core, 75, before), 0) << "not asked for";
  ingest.core.more_records = {"kvzip_scores"};
  const std::int64_t window = ingest.model->rope().max_positions();
  EXPECT_EQ(rows_behind(ingest.core, window - before - 63, before), 0);
  EXPECT_EQ(rows_behind(ingest.core, window - before - 64, before), 64);
  const std::int64_t rows = before + 75 + rows_behind(ingest.core, 75, before);
  ASSERT_EQ(rows, before + 150);
  const std::vector<std::int32_t> ids = Ingest::tokens(75);
  ContextPrefill prefill(ingest.core, {ids, {}});
  while (!prefill.done()) ASSERT_TRUE(prefill.step().ok());
  EXPECT_EQ(prefill.cache().most_bytes(),
            (rows + kPageTokens - 1) / kPageTokens * ingest.pool->format().page_bytes() * 2);
}

TEST(KvzipScores, AreReservedForWhereTheyFit) {
  Ingest ingest(nullptr, 2, DType::kF32);
  const std::int64_t page_bytes = ingest.pool->format().page_bytes() * 2;
  const auto reserved = [&](std::int64_t budget_pages) {
    PagePool pool(ingest.pool->format(), budget_pages * page_bytes);
    QueryResources core;
    core.facts = ingest.core.facts;
    core.model = ingest.model.get();
    core.more_records = {"kvzip_scores"};
    core.pool = &pool;
    PrefillRequest request;
    request.token_ids = Ingest::tokens(75);
    return PrefillTask(core, {}, std::move(request), {}).working_bytes() / page_bytes;
  };
  EXPECT_EQ(reserved(0), 10) << "three rows before 75, and these once more";
  EXPECT_EQ(reserved(10), 10);
  EXPECT_EQ(reserved(9), 5) << "without the record";
}

TEST(KvzipScores, ACacheWithoutRoomCostsTheRecordAlone) {
  Ingest ingest(nullptr, 2, DType::kF32);
  const auto expected = ingest.run(75);
  ingest.core.more_records = {"kvzip_scores"};
  // Two pages a layer more than the context itself: its repetition needs five.
  PagePool small(ingest.pool->format(), ingest.pool->format().page_bytes() * 2 * 7);
  ingest.core.pool = &small;
  const auto kv = ingest.run(75);
  ASSERT_TRUE(kv != nullptr);
  EXPECT_EQ(kv->records.count(kKvzipScoresIndex), 0u);
  EXPECT_EQ(small.bytes_in_use(), 0);
  for (std::size_t i = 0; i < kv->values.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(kv->values[i]->payload(), expected->values[i]->payload()));
}

}  // namespace
}  // namespace quire::testing
