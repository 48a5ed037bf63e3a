/// Sparse prefill: prompt rows attend to a near band and to the columns that the last rows attend
/// to.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "engine/compress/sparse_prefill.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

/// Runs only the hook in a pass over a prompt of `num_tokens` tokens. The last `kWindow` tokens
/// score.
class SparsePassTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kTokens = 301, kWindow = 7;

  SparsePassTest()
      : model_(std::move(
            *load_model(folder_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32}))),
        ids_(random_ids(rng_, kTokens)) {}

  struct Ran {
    std::unique_ptr<WorkingCache> cache;
    std::vector<float> logits;
    SparseReport report;
  };
  Ran run(std::optional<SparseRule> rule, Pooling pooling = Pooling::kMax) {
    const ModelConfig& config = model_->config();
    CompressSetup setup;
    setup.rope = &model_->rope();
    setup.num_layers = config.num_layers;
    setup.num_heads = config.num_heads;
    setup.num_kv_heads = config.num_kv_heads;
    setup.head_dim = config.head_dim;
    setup.sparse = true;
    setup.contexts = {{10, 90}, {90, 200}};
    SparsePrefillScores scores(
        setup, kTokens - kWindow,
        {.rule = rule.value_or(SparseRule{64, 0}), .pooling = pooling, .kernel = 5});
    Ran out;
    out.cache = std::make_unique<WorkingCache>(pool_, config.num_layers);
    out.logits.resize(static_cast<std::size_t>(config.vocab_size));
    std::vector<std::int32_t> positions(ids_.size());
    std::iota(positions.begin(), positions.end(), 0);
    const auto last = kTokens - 1;
    ForwardRequest request{};
    request.token_ids = ids_;
    request.positions = positions;
    request.cache = out.cache.get();
    request.hook = rule ? &scores : nullptr;
    request.logit_rows = std::span(&last, 1);
    request.logits = out.logits.data();
    ForwardWorkspace workspace;
    const Status status = forward(*model_, request, workspace);
    EXPECT_TRUE(status.ok()) << status.to_string();
    out.report = scores.report();
    return out;
  }
  /// Returns K and V of one row of a layer.
  static std::vector<float> row(const WorkingCache& cache, std::int32_t layer, std::int64_t r) {
    const KvView v = cache.view(layer);
    std::vector<float> out;
    for (std::int64_t kv = 0; kv < 2; ++kv) {
      for (std::int64_t head = 0; head < v.num_kv_heads; ++head) {
        const auto* at = static_cast<const std::byte*>(v.pages[r / kPageTokens]) +
                         kv * v.kv_stride + head * v.head_stride + r % kPageTokens * v.token_stride;
        for (std::int64_t c = 0; c < v.head_dim; ++c) out.push_back(load_f32(at, v.dtype, c));
      }
    }
    return out;
  }

  std::mt19937 rng_{61};
  RandomModelFolder folder_;
  std::unique_ptr<Model> model_;
  PagePool pool_{PageFormat{2, 16, DType::kF32}, 0};
  std::vector<std::int32_t> ids_;
};

TEST_F(SparsePassTest, ColumnsOrABandOverEverythingAreDense) {
  const Ran dense = run(std::nullopt);
  for (const SparseRule& rule :
       {SparseRule{64, kTokens}, SparseRule{320, 0}, SparseRule{1024, 5}}) {
    const Ran sparse = run(rule);
    EXPECT_EQ(sparse.report.attended_share, 1.0);
    for (std::size_t i = 0; i < dense.logits.size(); ++i)
      ASSERT_NEAR(sparse.logits[i], dense.logits[i],
                  1e-4 * std::max(1.0f, std::abs(dense.logits[i])))
          << rule.band;
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      for (std::int64_t r = 0; r < kTokens; ++r) {
        const auto a = row(*sparse.cache, layer, r), b = row(*dense.cache, layer, r);
        for (std::size_t c = 0; c < a.size(); ++c)
          ASSERT_NEAR(a[c], b[c], 1e-4) << layer << " " << r;
      }
    }
  }
}

TEST_F(SparsePassTest, RowsWithinTheBandKeepTheBitsOfADensePass) {
  const Ran dense = run(std::nullopt), sparse = run(SparseRule{64, 20});
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    ASSERT_EQ(sparse.cache->num_rows(layer), kTokens);
    for (std::int64_t r = 0; r < 128; ++r)
      ASSERT_EQ(row(*sparse.cache, layer, r), row(*dense.cache, layer, r)) << layer << " " << r;
    // The first layer's K and V depend only on the token.
    EXPECT_EQ(row(*sparse.cache, layer, 200) == row(*dense.cache, layer, 200), layer == 0);
    for (std::int32_t r = 0; r < kTokens; ++r)
      ASSERT_EQ(sparse.cache->positions(layer)[static_cast<std::size_t>(r)], r);
  }
  EXPECT_NE(sparse.logits, dense.logits);
}

TEST_F(SparsePassTest, CountsKeysAsTheMaskHasThem) {
  const Ran band = run(SparseRule{64, 0});
  double seen = 0, all = 0;
  std::int64_t rows = 0;
  for (std::int64_t t = 0; t < kTokens - kWindow; ++t) {
    const std::int64_t begin = std::max<std::int64_t>(0, t / 64 * 64 - 64);
    seen += static_cast<double>(t + 1 - begin);
    all += static_cast<double>(t + 1);
    rows += begin > 0 ? 1 : 0;
  }
  EXPECT_EQ(band.report.rows, rows);
  EXPECT_NEAR(band.report.attended_share, seen / all, 1e-12);
  EXPECT_GT(run(SparseRule{64, 30}).report.attended_share, band.report.attended_share);
}

class SparsePrefillQueryTest : public ::testing::Test {
 protected:
  SparsePrefillQueryTest()
      : store_(open_test_store(folder_.path() / "store")), prompt_(random_ids(rng_, 330)) {
    start();
  }
  ~SparsePrefillQueryTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  void start(const std::function<void(EngineOptions&)>& edit = {}) {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_ = make_test_engine(model_.path(), *store_, edit);
  }
  static Options sparse(std::int32_t columns = 40) {
    return {
        {"prefill", "sparse"}, {"prefill_band", "64"}, {"prefill_columns", std::to_string(columns)},
        {"capacity", "200"},   {"window", "9"},        {"lookahead", "0"}};
  }
  QueryRequest request(const Options& options, const std::string& compress = "speckv",
                       const std::vector<Doc>& docs = {}, const std::string& strategy = "exact") {
    QueryRequest r = make_request(*engine_, docs, prompt_, strategy);
    r.cache.compress = compress;
    r.cache.options = PlugOptions(options);
    return r;
  }
  Outcome ask(const QueryRequest& r) {
    Outcome o = run_query(*engine_, r);
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    expect_fates_sum(o.plan);
    return o;
  }
  Status refused(const Options& options, const std::string& compress = "speckv") {
    return run_query(*engine_, request(options, compress)).status;
  }
  Doc document(const std::string& id, std::size_t n) {
    Doc d{id, random_ids(rng_, n), std::nullopt};
    d.key = ingest(*engine_, *store_, d.id, d.ids);
    return d;
  }

  std::mt19937 rng_{67};
  TempFolder folder_;
  RandomModelFolder model_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::int32_t> prompt_;
};

TEST_F(SparsePrefillQueryTest, SaysWhatWasSparseAndComposesWithWhatFollows) {
  for (const char* compress : {"speckv", "ada_speckv"}) {
    for (const char* mode : {"demote", "drop"}) {
      Options options = sparse();
      options["drop_mode"] = mode;
      const Outcome o = ask(request(options, compress));
      ASSERT_TRUE(o.plan.sparse_prefill.has_value());
      EXPECT_EQ(o.plan.sparse_prefill->note, "");
      EXPECT_EQ(o.plan.sparse_prefill->band, 64);
      EXPECT_EQ(o.plan.sparse_prefill->tokens, o.plan.prompt_tokens - 9 - 128);
      EXPECT_LT(o.plan.sparse_prefill->attended_share, 0.8);
      EXPECT_EQ(o.plan.fates.computed + o.plan.fates.reused, o.plan.prompt_tokens);
      ASSERT_TRUE(o.plan.compression.has_value());
      EXPECT_EQ(o.plan.compression->rows, 3 * 2 * o.plan.prompt_tokens);
      EXPECT_EQ(o.plan.compression->hot_rows, 3 * 2 * 200);
      EXPECT_EQ(o.ids.size(), 12u);
    }
  }
  EXPECT_FALSE(ask(request({}, "none")).plan.sparse_prefill.has_value());
  EXPECT_FALSE(ask(request({{"capacity", "200"}})).plan.sparse_prefill.has_value());
}

TEST_F(SparsePrefillQueryTest, DocumentsThatAreComputedInPlaceAreSparseToo) {
  const std::vector<Doc> docs = {document("a", 90), document("b", 60)};
  prompt_.resize(100);
  const Outcome o = ask(request(sparse(), "speckv", docs, "recompute"));
  ASSERT_TRUE(o.plan.sparse_prefill.has_value());
  EXPECT_GT(o.plan.sparse_prefill->tokens, 0);
  // The store's KV of the documents is still exact.
  EXPECT_EQ(o.stats.written_tokens, 0);
  const Outcome dense = ask(request({}, "none", docs, "exact"));
  start([](EngineOptions& e) { e.prefix_cache_bytes = 0; });
  EXPECT_EQ(ask(request({}, "none", docs, "exact")).ids, dense.ids);
}

TEST_F(SparsePrefillQueryTest, StoredKvAndShortPromptsStayDenseAndSayWhy) {
  const std::vector<Doc> docs = {document("a", 60), document("b", 40)};
  const Options plain = {{"capacity", "200"}, {"window", "9"}, {"lookahead", "0"}};
  const Outcome placed = ask(request(sparse(), "speckv", docs, "reuse"));
  ASSERT_TRUE(placed.plan.sparse_prefill.has_value());
  EXPECT_NE(placed.plan.sparse_prefill->note.find("reuse"), std::string::npos);
  EXPECT_EQ(placed.plan.sparse_prefill->tokens, 0);
  EXPECT_EQ(placed.ids, ask(request(plain, "speckv", docs, "reuse")).ids);
  const Outcome covered = ask(request(sparse(300)));
  EXPECT_NE(covered.plan.sparse_prefill->note.find("prefill_columns"), std::string::npos);
  EXPECT_EQ(covered.ids, ask(request(plain)).ids);
}

TEST_F(SparsePrefillQueryTest, NeitherChunksNorWhatOthersLeftChangeIt) {
  const Outcome first = ask(request(sparse()));
  (void)ask(request({}, "none"));
  const Outcome behind_dense = ask(request(sparse()));
  EXPECT_EQ(behind_dense.stats.shared_tokens, 64);
  EXPECT_EQ(behind_dense.ids, first.ids);
  EXPECT_EQ(behind_dense.plan.fates.reused, 64);
  start([](EngineOptions& o) {
    o.prefill_chunk_tokens = 128;
    o.prefix_cache_bytes = 0;
  });
  const Outcome small = ask(request(sparse()));
  EXPECT_EQ(small.stats.shared_tokens, 0);
  EXPECT_EQ(small.ids, first.ids);
}

TEST_F(SparsePrefillQueryTest, LeavesNothingBehindTheBandToOthers) {
  start([](EngineOptions& o) { o.prefix_cache_bytes = 0; });
  const Outcome dense = ask(request({}, "none"));
  start();
  (void)ask(request(sparse()));
  const Outcome after = ask(request({}, "none"));
  EXPECT_EQ(after.stats.shared_tokens, 64);
  EXPECT_EQ(after.ids, dense.ids);
}

TEST_F(SparsePrefillQueryTest, TheDraftsAnswerRunsBehindThePromptAndIsTakenOutAgain) {
  start([&](EngineOptions& o) {
    o.draft_path = model_.path().string();
    o.draft_wait_ms = 600000;
  });
  Options options = sparse();
  options["lookahead"] = "10";
  const Outcome o = ask(request(options));
  EXPECT_GT(o.stats.lookahead_tokens, 0);
  EXPECT_EQ(o.plan.compression->rows, 3 * 2 * o.plan.prompt_tokens);
  EXPECT_EQ(o.plan.sparse_prefill->tokens, o.plan.prompt_tokens - 9 - 128);
  EXPECT_EQ(ask(request(options)).ids, o.ids);
}

TEST_F(SparsePrefillQueryTest, AnswersTheSameInCompany) {
  std::vector<QueryRequest> requests;
  for (int i = 0; i < 5; ++i) {
    prompt_ = random_ids(rng_, 250 + 31 * static_cast<std::size_t>(i));
    requests.push_back(request(i % 2 == 0 ? sparse() : Options{{"capacity", "100"}},
                               i % 2 == 0 ? "ada_speckv" : "speckv"));
  }
  std::vector<std::vector<std::int32_t>> alone;
  for (const QueryRequest& r : requests) alone.push_back(ask(r).ids);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const QueryRequest& r : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine_->query(r, sinks.back()).ok());
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) EXPECT_EQ(sinks[i]->wait().ids, alone[i]) << i;
}

TEST_F(SparsePrefillQueryTest, NonsenseIsRefusedWithTheOptionsName) {
  const auto with = [](const char* name, const char* value) {
    Options o = sparse();
    o[name] = value;
    return o;
  };
  for (const auto& [options, field] : std::vector<std::pair<Options, std::string>>{
           {with("prefill_band", "65"), "cache.options.prefill_band"},
           {with("prefill_band", "0"), "cache.options.prefill_band"},
           {with("prefill_columns", "-1"), "cache.options.prefill_columns"},
           {with("prefill_columns", "1.5"), "cache.options.prefill_columns"},
           {with("prefill", "thin"), "cache.options.prefill"},
           {{{"prefill_band", "128"}}, "cache.options.prefill_band"}}) {
    const Status s = refused(options);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_EQ(s.field(), field) << s.to_string();
  }
  EXPECT_EQ(refused(sparse(), "snapkv").code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace quire::testing
