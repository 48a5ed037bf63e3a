/// Strategy samkv on a model whose retrieval heads are calibrated: records, query pass, choice,
/// answer, and what happens without them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/calibrate/head_calibration.h"
#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

class HeadQueryTest : public ::testing::Test {
 protected:
  HeadQueryTest() : real_(open_test_store(folder_.path() / "store")), store_(real_) {
    engine_ = make_test_engine(model_.path(), store_);
    for (std::size_t n : {200u, 170u, 250u, 40u}) {
      Doc d{"d" + std::to_string(n), random_ids(rng_, n), std::nullopt};
      d.key = ingest(*engine_, store_, d.id, d.ids);
      docs_.push_back(std::move(d));
    }
    question_ = random_ids(rng_, 9);
  }
  ~HeadQueryTest() override {
    store_.release();
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
  }
  void calibrate(SelectionHeads::Asks asks = SelectionHeads::Asks::kWords) {
    Digest fingerprint;
    std::ranges::transform(engine_->info().fingerprint_digest, fingerprint.bytes.begin(),
                           [](std::uint8_t b) { return std::byte{b}; });
    SelectionHeads heads;
    heads.heads = {{1, 3}, {0, 1}, {1, 0}};
    heads.asks = asks;
    ASSERT_TRUE(save_selection_heads(*real_, fingerprint, heads).ok());
    restart();
    EXPECT_EQ(engine_->info().selection_heads, heads);
  }
  void restart() {
    engine_->stop(std::chrono::seconds(5));
    engine_ = make_test_engine(model_.path(), store_);
  }
  QueryRequest request(std::map<std::string, std::string, std::less<>> options = {}) {
    QueryRequest r = make_request(*engine_, docs_, question_, "samkv");
    r.cache.options = PlugOptions(std::move(options));
    r.question_words = {2, 7};
    return r;
  }
  Outcome run(QueryRequest r) {
    Outcome o = run_query(*engine_, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    expect_fates_sum(o.plan);
    return o;
  }

  std::mt19937 rng_{19};
  TempFolder folder_;
  RandomModelFolder model_{7, 1024};
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

TEST_F(HeadQueryTest, OneSetForAllLayersNoAnchorsNothingComputedAgain) {
  calibrate();
  const Outcome o = run(request({{"score", "heads"}, {"unit", "16"}, {"neighbours", "0"}}));
  EXPECT_EQ(o.plan.recomputer, "none");
  EXPECT_NEAR(o.plan.keep_ratio, 0.2, 0.02);
  EXPECT_EQ(o.plan.fates.recomputed, 0);
  EXPECT_GT(o.stats.query_pass_ms, 0);
  double mass = 0;
  float least_kept = 1, most_dropped = 0;
  for (const PlannedContext& c : o.plan.contexts) {
    for (const PlannedBlock& b : c.blocks) {
      EXPECT_TRUE(b.kept_layers == 0 || b.kept_layers == 3);
      mass += b.score * static_cast<float>(b.num_tokens);  // scores are per token
      float& edge = b.kept_layers > 0 ? least_kept : most_dropped;
      edge = b.kept_layers > 0 ? std::min(edge, b.score) : std::max(edge, b.score);
    }
  }
  EXPECT_GT(mass, 0);
  EXPECT_LT(mass, 1);  // the words attend to the prompt outside the documents, too
  EXPECT_GE(least_kept, most_dropped);
}

TEST_F(HeadQueryTest, ByDefaultRunsOfBlocksAndWordsOfTheQuestionCount) {
  calibrate();
  const auto kept = [](const Outcome& o) {
    std::vector<bool> out;
    for (const PlannedContext& c : o.plan.contexts)
      for (const PlannedBlock& b : c.blocks) out.push_back(b.kept_layers > 0);
    return out;
  };
  const Outcome usual = run(request());
  EXPECT_EQ(usual.plan.recomputer, "none");
  EXPECT_NEAR(usual.plan.keep_ratio, 0.2, 0.03);
  for (const PlannedContext& c : usual.plan.contexts) {
    for (std::size_t b = 0; b + 1 < c.blocks.size(); b += 2)  // 32 tokens are two blocks
      EXPECT_EQ(c.blocks[b].kept_layers, c.blocks[b + 1].kept_layers);
  }
  EXPECT_EQ(kept(run(request({{"score", "heads_words"}}))), kept(usual));
  // A question in a document's own words brings blocks of that document.
  QueryRequest asked = request();
  std::copy_n(docs_[2].ids.begin() + 100, 5, asked.suffix_ids.begin() + 2);
  const Outcome found = run(asked);
  std::int64_t there = 0, all = 0;
  for (const PlannedContext& c : found.plan.contexts) {
    for (const PlannedBlock& b : c.blocks) {
      all += b.kept_layers > 0;
      there += b.kept_layers > 0 && c.document_id == docs_[2].id;
    }
  }
  EXPECT_GT(2 * there, all);
  for (const char* const option : {"unit", "links"}) {
    const auto refused = run_query(*engine_, request({{"score", "keys"}, {option, "1"}}));
    EXPECT_EQ(refused.status.code(), Code::kInvalidArgument) << option;
  }
}

TEST_F(HeadQueryTest, LinksWithoutWordsAreRefused) {
  calibrate();
  const auto refused = run_query(*engine_, request({{"score", "heads"}, {"links", "1"}}));
  EXPECT_EQ(refused.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status.field(), "cache.options.links");
}

TEST_F(HeadQueryTest, ADocumentWhoseTitleAGoodMatchNamesScoresMore) {
  calibrate();
  // The question is in the words of document 2, which names document 1.
  const auto asked = [this](std::string_view links) {
    QueryRequest r = request({{"links", std::string(links)}});
    std::copy_n(docs_[2].ids.begin() + 100, 5, r.suffix_ids.begin() + 2);
    std::string title;
    for (std::size_t i = 20; i < 32; ++i)
      title += engine_->tokenizer().token_bytes(docs_[2].ids[i]);
    // It begins and ends within a word of the text, which a name may not.
    const std::size_t begin = title.find(' '), end = title.rfind(' ');
    EXPECT_LT(begin, end);
    r.contexts[1].title = title.substr(begin + 1, end - begin - 1);
    return r;
  };
  const auto sums = [](const Outcome& o) {
    std::vector<double> out;
    for (const PlannedContext& c : o.plan.contexts) {
      out.push_back(0);
      for (const PlannedBlock& b : c.blocks) out.back() += b.score;
    }
    return out;
  };
  const auto none = sums(run(asked("0"))), half = sums(run(asked("0.5"))),
             all = sums(run(asked("1")));
  EXPECT_GT(half[1], none[1]);
  EXPECT_GT(all[1], half[1]);
  for (const std::size_t other : {0u, 2u, 3u}) EXPECT_FLOAT_EQ(half[other], none[other]);
}

TEST_F(HeadQueryTest, ContextsFromBeforeTheCalibrationAreComputedAnewOnce) {
  calibrate();
  const Outcome first = run(request());
  for (const PlannedContext& c : first.plan.contexts) EXPECT_EQ(c.miss, MissReason::kRecordMissing);
  restart();  // its writes are done
  const Outcome second = run(request());
  for (const PlannedContext& c : second.plan.contexts) EXPECT_EQ(c.miss, MissReason::kNone);
  EXPECT_EQ(second.ids, first.ids);
  EXPECT_GT(second.stats.sketch_bytes, 0);
}

TEST_F(HeadQueryTest, TheSameFromTheStoreAndFromNothing) {
  calibrate();
  for (const char* score : {"heads", "heads_words"}) {
    (void)run(request({{"score", score}}));
    restart();
    const Outcome stored = run(request({{"score", score}}));
    auto fresh = request({{"score", score}});
    fresh.tenant = "other";
    for (auto& c : fresh.contexts) c.key.reset();
    const Outcome computed = run(fresh);
    EXPECT_EQ(computed.ids, stored.ids) << score;
    EXPECT_EQ(computed.plan.keep_ratio, stored.plan.keep_ratio) << score;
  }
}

TEST_F(HeadQueryTest, WhoAsksMatters) {
  calibrate();
  const Outcome words = run(request());
  calibrate(SelectionHeads::Asks::kLastToken);
  const Outcome last = run(request());
  std::vector<float> a, b;
  for (std::size_t c = 0; c < words.plan.contexts.size(); ++c) {
    for (std::size_t i = 0; i < words.plan.contexts[c].blocks.size(); ++i) {
      a.push_back(words.plan.contexts[c].blocks[i].score);
      b.push_back(last.plan.contexts[c].blocks[i].score);
    }
  }
  EXPECT_NE(a, b);
}

TEST_F(HeadQueryTest, AnOptionOfThePublishedFormTakesIt) {
  const Outcome before = run(request({{"score", "keys"}}));
  EXPECT_EQ(before.plan.recomputer, "samkv_fusion");
  calibrate();
  const Outcome keys = run(request({{"score", "keys"}}));
  EXPECT_EQ(keys.ids, before.ids);
  EXPECT_EQ(keys.plan.recomputer, "samkv_fusion");
  EXPECT_EQ(run(request({{"bias", "off"}})).plan.recomputer, "samkv_fusion");
  EXPECT_EQ(run(request({{"recompute", "question"}})).plan.recomputer, "prophetkv");
  auto all = request({{"recompute", "none"}});
  all.cache.keep_ratio = 1;
  auto reuse = request();
  reuse.cache.strategy = "reuse";
  EXPECT_EQ(run(all).ids, run(reuse).ids);
}

TEST_F(HeadQueryTest, WithoutCalibrationWordsChoose) {
  QueryRequest asked = request();
  std::copy_n(docs_[2].ids.begin() + 100, 5, asked.suffix_ids.begin() + 2);
  const Outcome found = run(asked);
  EXPECT_EQ(found.plan.recomputer, "none");
  EXPECT_NEAR(found.plan.keep_ratio, 0.2, 0.03);
  EXPECT_EQ(found.stats.query_pass_ms, 0);
  ASSERT_TRUE(found.plan.fallback.has_value());
  EXPECT_NE(found.plan.fallback->find("quire model calibrate"), std::string::npos);
  // The words stand at token 100, and all runs of that document come before those of others.
  const PlannedContext& there = found.plan.contexts[2];
  for (std::size_t b = 0; b < there.blocks.size(); ++b) {
    const PlannedBlock& block = there.blocks[b];
    EXPECT_TRUE(block.kept_layers == 0 || block.kept_layers == 3) << b;
    if (b == 100 / 16) {
      EXPECT_EQ(block.kept_layers, 3);
    }
  }
  std::int64_t kept = 0, kept_there = 0;
  for (const PlannedContext& c : found.plan.contexts) {
    for (const PlannedBlock& b : c.blocks) {
      kept += b.kept_layers > 0;
      kept_there += b.kept_layers > 0 && c.document_id == docs_[2].id;
    }
  }
  EXPECT_EQ(kept_there, kept);
  // Asked for by name it is no fallback, and what else is asked for holds.
  asked.cache.options = request({{"score", "matches"}}).cache.options;
  const Outcome named = run(asked);
  EXPECT_EQ(named.ids, found.ids);
  EXPECT_FALSE(named.plan.fallback.has_value());
  asked.cache.options = request({{"score", "matches"}, {"recompute", "question"}}).cache.options;
  EXPECT_EQ(run(asked).plan.recomputer, "prophetkv");
  asked.cache.options = request({{"score", "matches"}, {"bias", "off"}}).cache.options;
  EXPECT_EQ(run_query(*engine_, asked).status.field(), "cache.options");
  // All of it is `reuse`.
  asked.cache.options = {};
  asked.cache.keep_ratio = 1;
  QueryRequest reuse = asked;
  reuse.cache.strategy = "reuse";
  EXPECT_EQ(run(asked).ids, run(reuse).ids);
}

TEST_F(HeadQueryTest, WordsFitTheirChoiceToTheWindow) {
  const RandomModelFolder small(7, 128);
  engine_->stop(std::chrono::seconds(5));
  engine_ = make_test_engine(small.path(), store_);
  docs_.clear();
  for (int i = 0; i < 4; ++i) {
    Doc d{"s" + std::to_string(i), random_ids(rng_, 100), std::nullopt};
    d.key = ingest(*engine_, store_, d.id, d.ids);
    docs_.push_back(std::move(d));
  }
  QueryRequest asked = request();
  asked.cache.keep_ratio = 0.5;  // of 400 tokens
  const Outcome o = run(asked);
  EXPECT_EQ(o.plan.positions, PositionMode::kCompact);
  EXPECT_NE(o.plan.fallback->find("so that the rest fits the window"), std::string::npos)
      << *o.plan.fallback;
}

TEST_F(HeadQueryTest, WithoutCalibrationOrWithOtherOptionsItSaysSo) {
  auto refused = run_query(*engine_, request({{"score", "heads"}}));
  EXPECT_EQ(refused.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status.field(), "cache.options.score");
  EXPECT_NE(refused.status.message().find("quire model calibrate"), std::string::npos);
  calibrate();
  refused = run_query(*engine_, request({{"score", "heads"}, {"bias", "off"}}));
  EXPECT_EQ(refused.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status.field(), "cache.options");
}

}  // namespace
}  // namespace quire::testing
