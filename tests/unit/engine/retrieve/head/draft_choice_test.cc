// A draft replaces a retrieval head: which rows it chooses, and how the service uses it.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/residency/device_pool.h"
#include "engine/retrieve/head/draft_scorer.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/retriever.h"
#include "kernels/rows/rope.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"
#include "tests/support/host_compute.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kHeads = 6, kKvHeads = 2, kDim = 16, kTokens = 90;
using Options = std::map<std::string, std::string, std::less<>>;

/// Captures raw queries and keys of every row of one layer.
class Seen final : public ForwardHook {
 public:
  explicit Seen(std::int32_t layer) : layer_(layer) {}
  Status after_projection(LayerPass& pass) override {
    for (std::size_t i = 0; pass.layer == layer_ && i < pass.rows.size(); ++i) {
      const float *q = pass.qkv.q + static_cast<std::int64_t>(i) * pass.qkv.ld,
                  *k = pass.qkv.k + static_cast<std::int64_t>(i) * pass.qkv.ld;
      queries.insert(queries.end(), q, q + kHeads * kDim);
      keys.insert(keys.end(), k, k + kKvHeads * kDim);
    }
    return {};
  }
  std::vector<float> queries, keys;

 private:
  const std::int32_t layer_;
};

class DraftScorerTest : public ::testing::Test {
 protected:
  DraftScorerTest() {
    ModelOptions options;
    options.weights = WeightFormat::kF32;
    options.kv_dtype = DType::kF32;
    model_ = std::move(*load_model(folder_.path(), options));
    std::mt19937 rng(3);
    ids_ = random_ids(rng, kTokens);
  }
  void rotate(std::vector<float>& rows, std::int32_t heads) const {
    std::vector<std::int32_t> positions(kTokens);
    std::iota(positions.begin(), positions.end(), 0);
    const std::int64_t width = heads * kDim;
    ASSERT_TRUE(rope_rotate(model_->rope(), {.x = rows.data(),
                                             .out = rows.data(),
                                             .positions = positions.data(),
                                             .rows = kTokens,
                                             .num_heads = heads,
                                             .ldx = width,
                                             .ldo = width})
                    .ok());
  }

  RandomModelFolder folder_;
  std::unique_ptr<Model> model_;
  std::vector<std::int32_t> ids_;
};

TEST_F(DraftScorerTest, ScoresAreTheAttentionOfTheNewestTokenInItsLayer) {
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    Seen seen(layer);
    PagePool pool({kKvHeads, kDim, DType::kF32}, 0);
    WorkingCache cache(pool, 3);
    ForwardWorkspace workspace;
    std::vector<std::int32_t> positions(kTokens);
    std::iota(positions.begin(), positions.end(), 0);
    ForwardRequest request{};
    request.token_ids = ids_;
    request.positions = positions;
    request.cache = &cache;
    request.hook = &seen;
    ASSERT_TRUE(forward(*model_, request, workspace).ok());
    rotate(seen.queries, kHeads);
    rotate(seen.keys, kKvHeads);

    DraftScorer scorer(*model_, layer);
    ASSERT_TRUE(scorer.read(std::span(ids_).first(kTokens - 1)).ok());
    std::vector<float> scores;
    ASSERT_TRUE(scorer.step(ids_.back(), kKvHeads, scores).ok());
    ASSERT_EQ(scores.size(), static_cast<std::size_t>(kKvHeads * kTokens));
    EXPECT_EQ(scorer.num_tokens(), kTokens);
    EXPECT_EQ(scorer.bytes() % DraftScorer::row_bytes(*model_, layer), 0);
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      std::vector<double> best(kTokens, -1e30);
      for (std::int32_t h = m * 3; h < (m + 1) * 3; ++h) {
        std::vector<double> z(kTokens);
        double sum = 0;
        for (std::int32_t j = 0; j < kTokens; ++j) {
          for (std::int32_t c = 0; c < kDim; ++c) {
            z[static_cast<std::size_t>(j)] +=
                double{seen.queries[static_cast<std::size_t>((kTokens - 1) * kHeads * kDim +
                                                             h * kDim + c)]} *
                seen.keys[static_cast<std::size_t>(j * kKvHeads * kDim + m * kDim + c)] /
                std::sqrt(double{kDim});
          }
          sum += std::exp(z[static_cast<std::size_t>(j)]);
        }
        for (std::int32_t j = 0; j < kTokens; ++j)
          best[static_cast<std::size_t>(j)] = std::max(
              best[static_cast<std::size_t>(j)], z[static_cast<std::size_t>(j)] - std::log(sum));
      }
      for (std::size_t j = 0; j < kTokens; ++j)
        ASSERT_NEAR(scores[static_cast<std::size_t>(m) * kTokens + j], best[j], 1e-3)
            << "layer " << layer << " head " << m << " token " << j;
    }
  }
}

TEST_F(DraftScorerTest, HowItIsReadChangesNothing) {
  DraftScorer at_once(*model_, 2), one_by_one(*model_, 2);
  ASSERT_TRUE(at_once.read(std::span(ids_).first(kTokens - 1)).ok());
  for (const std::int32_t id : std::span(ids_).first(kTokens - 1))
    ASSERT_TRUE(one_by_one.read(std::span(&id, 1)).ok());
  std::vector<float> a, b;
  ASSERT_TRUE(at_once.step(ids_.back(), 1, a).ok());
  ASSERT_TRUE(one_by_one.step(ids_.back(), 1, b).ok());
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t j = 0; j < a.size(); ++j) ASSERT_NEAR(a[j], b[j], 1e-3) << j;
}

TEST_F(DraftScorerTest, AFullWindowIsAnError) {
  DraftScorer scorer(*model_, 0);
  std::vector<std::int32_t> many(static_cast<std::size_t>(model_->rope().max_positions()), 400);
  ASSERT_TRUE(scorer.read(many).ok());
  std::vector<float> scores;
  const Status full = scorer.step(400, 1, scores);
  EXPECT_EQ(full.code(), Code::kInvalidArgument);
  EXPECT_EQ(full.field(), "cache.decode");
  EXPECT_EQ(scorer.num_tokens(), static_cast<std::int64_t>(many.size()));
}

TEST_F(DraftScorerTest, APromptIsReadInPiecesSoThatOthersGetTheirTurns) {
  constexpr std::int32_t kPrompt = 300;
  std::mt19937 rng(5);
  const auto ids = random_ids(rng, kPrompt);
  std::vector<std::int32_t> positions(kPrompt);
  std::iota(positions.begin(), positions.end(), 0);
  HeadTrack prompt;
  ASSERT_TRUE(prompt.add_embedded(ids, positions).ok());
  PagePool pool({kKvHeads, kDim, DType::kF32}, 0);
  WorkingCache cache(pool, 3);
  for (std::int32_t layer = 0; layer < 3; ++layer)
    ASSERT_TRUE(cache.add_rows(layer, positions).ok());
  DevicePool device(0);
  SequenceContext context;
  context.compute = &host_compute();
  AssembledPrompt assembled;
  context.cache = &cache;
  context.device = &device;
  context.draft = model_.get();
  assembled.head_track = &prompt;
  assembled.num_tokens = kPrompt;
  context.num_layers = 3;
  context.num_heads = kHeads;
  context.num_kv_heads = kKvHeads;
  context.head_dim = kDim;
  auto retriever = std::move(*retrievers().make("specontext"));
  ASSERT_TRUE(retriever->prepare(context, assembled).ok());
  int pieces = 0;
  auto& in_pieces = *capability<PreparesInPieces>(*retriever);
  for (; !in_pieces.prepared() && pieces < 10; ++pieces) ASSERT_TRUE(in_pieces.prepare_more().ok());
  EXPECT_EQ(pieces, 2) << "256 tokens, and 44";
  DraftScorer whole(*model_, 2);
  ASSERT_TRUE(whole.read(ids).ok());
  EXPECT_EQ(retriever->stats().device_bytes, whole.bytes());
}

class DraftChoiceTest : public ::testing::Test {
 protected:
  DraftChoiceTest() : store_(open_test_store(folder_.path() / "store")) {}
  ~DraftChoiceTest() override {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
  }
  void start(const std::filesystem::path& draft, const std::filesystem::path& head = {}) {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_ = make_test_engine(model_.path(), *store_, [&](EngineOptions& o) {
      o.draft_path = draft.string();
      o.retrieval_head_path = head.string();
    });
    docs_.clear();
    std::mt19937 rng(29);
    for (const std::size_t n : {120u, 33u, 90u}) {
      Doc d{"d" + std::to_string(docs_.size()), random_ids(rng, n), std::nullopt};
      d.key = ingest(*engine_, *store_, d.id, d.ids);
      docs_.push_back(d);
    }
    question_ = random_ids(rng, 21);
  }
  QueryRequest request(const std::string& strategy, Options options) {
    QueryRequest r = make_request(*engine_, docs_, question_, strategy);
    r.cache.decode = "specontext";
    r.cache.options = published(strategy, std::move(options));
    r.sampling.max_tokens = 30;
    return r;
  }
  static Options budget(const char* resident = "none") {
    return {{"decode_budget", "96"}, {"decode_resident", resident}};
  }

  TempFolder folder_;
  RandomModelFolder model_, draft_{8};
  HeadFolder head_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

TEST_F(DraftChoiceTest, ADraftChoosesWhereThereIsNoHead) {
  for (const auto& draft : {draft_.path(), model_.path()}) {
    start(draft);
    for (const char* strategy : {"recompute", "reuse", "samkv"}) {
      const Outcome o = run_query(*engine_, request(strategy, budget()));
      ASSERT_TRUE(o.status.ok()) << o.status.to_string();
      const RetrieveStats& s = o.stats.retrieve;
      EXPECT_EQ(s.selections, o.stats.completion_tokens - 1) << strategy;
      EXPECT_EQ(s.sparse_steps, (o.stats.completion_tokens - 1) * 3) << strategy;
      EXPECT_GT(s.rows_copied, 0);
      EXPECT_LT(s.rows_copied, s.rows_wanted);
      const Outcome again = run_query(*engine_, request(strategy, budget()));
      EXPECT_EQ(again.ids, o.ids) << strategy;
      EXPECT_EQ(again.stats.retrieve.bytes_copied, s.bytes_copied) << strategy;
      EXPECT_EQ(run_query(*engine_, request(strategy, budget("auto"))).ids, o.ids)
          << strategy << ": where rows are changes nothing";
    }
  }
}

TEST_F(DraftChoiceTest, AHeadComesBeforeTheDraft) {
  start({}, head_.path());
  const Outcome head = run_query(*engine_, request("reuse", budget()));
  start(draft_.path());
  const Outcome draft = run_query(*engine_, request("reuse", budget()));
  start(draft_.path(), head_.path());
  const Outcome both = run_query(*engine_, request("reuse", budget()));
  ASSERT_TRUE(both.status.ok()) << both.status.to_string();
  EXPECT_EQ(both.stats.retrieve.bytes_copied, head.stats.retrieve.bytes_copied);
  EXPECT_NE(both.stats.retrieve.bytes_copied, draft.stats.retrieve.bytes_copied);
}

TEST_F(DraftChoiceTest, AnyLayerMayChoose) {
  start(draft_.path());
  std::vector<std::int64_t> copied;
  for (const char* layer : {"1", "2", "3"}) {
    Options options = budget();
    options["decode_draft_layer"] = layer;
    const Outcome o = run_query(*engine_, request("reuse", options));
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    copied.push_back(o.stats.retrieve.bytes_copied);
  }
  EXPECT_FALSE(copied[0] == copied[1] && copied[1] == copied[2]);
  EXPECT_EQ(run_query(*engine_, request("reuse", budget())).stats.retrieve.bytes_copied, copied[2])
      << "two thirds up: the third of three";
  Options options = budget();
  options["decode_draft_layer"] = "4";
  const Outcome o = run_query(*engine_, request("reuse", options));
  EXPECT_EQ(o.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(o.status.field(), "cache.options.decode_draft_layer");
}

TEST_F(DraftChoiceTest, AChoiceOfADraftServesOneStep) {
  start(draft_.path());
  Options options = budget();
  options["decode_reuse"] = "4";
  const Outcome refused = run_query(*engine_, request("reuse", options));
  EXPECT_EQ(refused.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status.field(), "cache.options.decode_reuse");
  EXPECT_NE(refused.status.message().find("use 1"), std::string::npos) << refused.status.message();
  options["decode_tau"] = "-1";  // reuse is then allowed
  EXPECT_TRUE(run_query(*engine_, request("reuse", options)).status.ok());
}

TEST_F(DraftChoiceTest, WhatCannotWorkIsSaidAtOnce) {
  const auto refused = [&](Options options) {
    const auto handle = engine_->query(request("reuse", std::move(options)),
                                       std::make_shared<CollectingSink>());
    EXPECT_FALSE(handle.ok());
    EXPECT_EQ(handle.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(handle.status().field(), "cache.decode");
    return handle.status().message();
  };
  start({});
  EXPECT_NE(refused(budget()).find("model.draft_path"), std::string::npos)
      << "neither head nor draft";
  const RandomModelFolder short_sighted(9, 256);
  start(short_sighted.path());
  EXPECT_NE(refused(budget()).find("window holds 256"), std::string::npos);
}

}  // namespace
}  // namespace quire::testing
