/// Queries whose compressor uses a draft's look-ahead.
#include <gtest/gtest.h>

#include <map>

#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

class LookAheadQueryTest : public ::testing::Test {
 protected:
  LookAheadQueryTest() : store_(open_test_store(folder_.path() / "store")) { start(""); }
  ~LookAheadQueryTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  void start(const std::string& draft) {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_ = make_test_engine(model_.path(), *store_, [&](EngineOptions& o) {
      o.draft_path = draft;
      o.draft_wait_ms = 600000;  // waits until the draft answers
    });
    if (!docs_.empty()) return;
    for (const std::size_t n : {120u, 33u, 90u}) {
      Doc d{"d" + std::to_string(n), random_ids(rng_, n), std::nullopt};
      d.key = ingest(*engine_, *store_, d.id, d.ids);
      docs_.push_back(d);
    }
    question_ = random_ids(rng_, 21);
  }
  Outcome ask(const std::string& strategy, const std::string& compress,
              const Options& options = {}) {
    QueryRequest r = make_request(*engine_, docs_, question_, strategy);
    r.cache.compress = compress;
    r.cache.options = published(strategy, options);
    Outcome o = run_query(*engine_, std::move(r));
    EXPECT_TRUE(o.status.ok()) << strategy << " " << compress << ": " << o.status.to_string();
    expect_fates_sum(o.plan);
    return o;
  }
  static std::vector<float> hot_shares(const Outcome& o) {
    std::vector<float> out;
    for (const auto& c : o.plan.contexts) {
      for (const auto& b : c.blocks) out.push_back(b.hot_share.value_or(-1));
    }
    return out;
  }

  std::mt19937 rng_{29};
  TempFolder folder_;
  RandomModelFolder model_, other_{11};
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

TEST_F(LookAheadQueryTest, WithoutADraftSpecKvRanksAsSnapKvDoes) {
  const Options options = {
      {"capacity", "60"}, {"window", "9"}, {"drop_mode", "drop"}, {"reduce", "mean"}};
  const Outcome snap = ask("reuse", "snapkv", options), spec = ask("reuse", "speckv", options);
  EXPECT_EQ(spec.ids, snap.ids);
  EXPECT_EQ(hot_shares(spec), hot_shares(snap));
  EXPECT_EQ(spec.stats.lookahead_tokens, 0);
  EXPECT_NE(spec.plan.compression->note.find("model.draft_path"), std::string::npos);
  EXPECT_EQ(ask("reuse", "ada_speckv", options).ids, ask("reuse", "adakv", options).ids);
  EXPECT_EQ(snap.plan.compression->note, "");
}

TEST_F(LookAheadQueryTest, LookAheadRanksAndLeavesNothingBehind) {
  const Outcome plain = ask("reuse", "none");
  start(model_.path().string());
  EXPECT_EQ(engine_->info().draft_path, model_.path().string());
  for (const char* name : {"speckv", "ada_speckv"}) {
    for (const char* mode : {"demote", "drop"}) {
      const Outcome o = ask("reuse", name,
                            {{"capacity", "60"}, {"lookahead", "10"}, {"drop_mode", mode}});
      EXPECT_GT(o.stats.lookahead_tokens, 0);
      EXPECT_LE(o.stats.lookahead_tokens, 10);
      EXPECT_EQ(o.plan.compression->lookahead_tokens, o.stats.lookahead_tokens);
      EXPECT_EQ(o.plan.compression->note, "");
      EXPECT_GT(o.stats.draft_ms, 0);
      // Neither the rows nor the first token depend on it.
      EXPECT_EQ(o.plan.compression->rows, 3 * 2 * o.plan.prompt_tokens);
      EXPECT_EQ(o.ids[0], plain.ids[0]);
      if (std::string(mode) == "demote") {
        EXPECT_EQ(o.ids, plain.ids);
      }
    }
  }
}

TEST_F(LookAheadQueryTest, LookAheadChangesTheRankingAndZeroTurnsItOff) {
  const Options off = {{"capacity", "60"}, {"window", "4"}, {"lookahead", "0"}},
                on = {{"capacity", "60"}, {"window", "4"}, {"lookahead", "12"}};
  const Outcome without_draft = ask("recompute", "speckv", off);
  start(model_.path().string());
  const Outcome none = ask("recompute", "speckv", off);
  EXPECT_EQ(hot_shares(none), hot_shares(without_draft));
  EXPECT_EQ(none.stats.draft_ms, 0);
  EXPECT_NE(hot_shares(ask("recompute", "speckv", on)), hot_shares(none));
}

TEST_F(LookAheadQueryTest, TheWindowsShareIsItsOwn) {
  const auto options = [](const char* lookahead, const char* share, const char* capacity = "60") {
    return Options{{"capacity", capacity},
                   {"window", "4"},
                   {"lookahead", lookahead},
                   {"window_share", share},
                   {"drop_mode", "drop"}};
  };
  start(model_.path().string());
  for (const char* name : {"speckv", "ada_speckv"}) {
    const Outcome window = ask("recompute", name, options("0", "0")),
                  joint = ask("recompute", name, options("12", "0"));
    ASSERT_NE(hot_shares(joint), hot_shares(window)) << name;
    // Without a look-ahead the window shares with nothing.
    for (const char* share : {"0.5", "1"})
      EXPECT_EQ(hot_shares(ask("recompute", name, options("0", share))), hot_shares(window))
          << name << share;
    const Outcome mixed = ask("recompute", name, options("12", "0.5"));
    EXPECT_GT(mixed.stats.lookahead_tokens, 0);
    EXPECT_EQ(mixed.plan.compression->hot_rows, 3 * 2 * 60) << name;
    EXPECT_NE(hot_shares(mixed), hot_shares(joint)) << name;
    EXPECT_NE(hot_shares(mixed), hot_shares(window)) << name;
    EXPECT_EQ(ask("recompute", name, options("12", "0.5", "5000")).ids,
              ask("recompute", "none").ids)
        << name;
  }
  // With a share of 1, the look-ahead decides only how a layer's rows are divided among its heads.
  EXPECT_EQ(hot_shares(ask("recompute", "speckv", options("12", "1"))),
            hot_shares(ask("recompute", "speckv", options("0", "0"))));
  EXPECT_EQ(ask("recompute", "ada_speckv", options("12", "1")).plan.compression->hot_rows,
            3 * 2 * 60);
}

TEST_F(LookAheadQueryTest, ComposesWithEveryStrategyAndAnswersTheSameTwice) {
  start(model_.path().string());
  for (const std::string& strategy : strategy_names()) {
    const Options options = {
        {"capacity", "48"}, {"window", "8"}, {"lookahead", "6"}, {"drop_mode", "drop"}};
    const Outcome first = ask(strategy, "ada_speckv", options),
                  second = ask(strategy, "ada_speckv", options);
    EXPECT_EQ(first.ids, second.ids) << strategy;
    EXPECT_EQ(first.stats.lookahead_tokens, second.stats.lookahead_tokens) << strategy;
    EXPECT_EQ(first.plan.compression->hot_rows, 3 * 2 * 48) << strategy;
  }
}

TEST_F(LookAheadQueryTest, ADraftThatCannotServeThePromptIsDoneWithout) {
  const RandomModelFolder small(7, 64);
  const Options options = {{"capacity", "60"}, {"window", "9"}};
  const Outcome without = ask("reuse", "speckv", options);
  start(small.path().string());
  const Outcome o = ask("reuse", "speckv", options);
  EXPECT_EQ(o.stats.lookahead_tokens, 0);
  EXPECT_NE(o.plan.compression->note.find("window"), std::string::npos) << o.plan.compression->note;
  EXPECT_EQ(o.ids, without.ids);
  EXPECT_EQ(hot_shares(o), hot_shares(without));
}

TEST_F(LookAheadQueryTest, TheDraftReadsNoMoreThanTheTargetAttendsTo) {
  Doc longer{"longer", random_ids(rng_, 400), std::nullopt};
  longer.key = ingest(*engine_, *store_, longer.id, longer.ids);
  docs_ = {longer, docs_[1]};
  // The whole prompt exceeds the draft's window.
  const RandomModelFolder small(7, 350);
  const Options options = {{"capacity", "60"}, {"window", "9"}, {"lookahead", "6"}};
  start(small.path().string());
  const Outcome part = ask("samkv", "speckv", options), whole = ask("reuse", "speckv", options);
  EXPECT_EQ(part.plan.compression->note, "");
  EXPECT_GT(part.stats.lookahead_tokens, 0);
  EXPECT_EQ(whole.stats.lookahead_tokens, 0);
  EXPECT_NE(whole.plan.compression->note.find("window"), std::string::npos)
      << whole.plan.compression->note;
  EXPECT_EQ(ask("samkv", "speckv", options).ids, part.ids);
}

TEST_F(LookAheadQueryTest, ADraftOfAnotherVocabularyLooksAheadThroughText) {
  const Options options = {{"capacity", "60"}, {"window", "9"}, {"lookahead", "6"}};
  std::vector<Outcome> without;
  for (const char* strategy : {"recompute", "samkv"})
    without.push_back(ask(strategy, "speckv", options));
  // Different settings make it another tokenizer, whose ids mean nothing to the target.
  write_file(other_.path() / "tokenizer_config.json", R"({"add_bos_token":false})");
  start(other_.path().string());
  const auto own = load_tokenizer(other_.path());
  ASSERT_TRUE(own.ok());
  ASSERT_NE((*own)->digest(), engine_->tokenizer().digest());
  for (const Outcome& w : without) {
    const Outcome o = ask(w.plan.strategy, "speckv", options);
    EXPECT_EQ(o.stats.lookahead_tokens > 0, o.plan.compression->note.empty())
        << o.plan.compression->note;
    EXPECT_GT(o.stats.lookahead_tokens, 0) << o.plan.compression->note;
    // Demoted rows are still in the cache, so the answer does not depend on the draft.
    EXPECT_EQ(o.ids, w.ids) << w.plan.strategy;
  }
}

TEST_F(LookAheadQueryTest, NobodyWaitsForADraftLongerThanAsked) {
  engine_->stop(std::chrono::milliseconds(0));
  engine_ = make_test_engine(model_.path(), *store_, [&](EngineOptions& o) {
    o.draft_path = model_.path().string();
    o.draft_wait_ms = 0;
  });
  const Outcome o = ask("reuse", "speckv", {{"capacity", "60"}});
  // The look-ahead either came in time or was abandoned; the reply says which.
  EXPECT_EQ(o.stats.lookahead_tokens > 0, o.plan.compression->note.empty());
}

std::vector<std::vector<std::int32_t>> kept_blocks(const Outcome& o) {
  std::vector<std::vector<std::int32_t>> out;
  for (const auto& c : o.plan.contexts) {
    for (const auto& b : c.blocks) out.push_back({c.index, b.first_token, b.kept_layers});
  }
  return out;
}

TEST_F(LookAheadQueryTest, ABoostWithoutADraftSelectsAsBeforeAndSaysWhy) {
  const Outcome plain = ask("samkv", "none"), boosted = ask("samkv", "none", {{"boost", "2"}});
  EXPECT_EQ(boosted.ids, plain.ids);
  EXPECT_EQ(kept_blocks(boosted), kept_blocks(plain));
  EXPECT_FALSE(plain.plan.fallback.has_value());
  ASSERT_TRUE(boosted.plan.fallback.has_value());
  EXPECT_NE(boosted.plan.fallback->find("model.draft_path"), std::string::npos);
}

TEST_F(LookAheadQueryTest, TheDraftsReadingBoostsBlocksAloneOrWithALookAhead) {
  const Outcome plain = ask("samkv", "none");
  start(model_.path().string());
  EXPECT_EQ(kept_blocks(ask("samkv", "none", {{"boost", "0"}})), kept_blocks(plain));
  const Outcome alone = ask("samkv", "none", {{"boost", "50"}});
  EXPECT_FALSE(alone.plan.fallback.has_value()) << *alone.plan.fallback;
  EXPECT_NE(kept_blocks(alone), kept_blocks(plain));
  EXPECT_EQ(alone.stats.lookahead_tokens, 0);
  const Outcome both = ask("samkv", "speckv",
                           {{"boost", "50"}, {"capacity", "60"}, {"lookahead", "8"}});
  EXPECT_EQ(kept_blocks(both), kept_blocks(alone));
  EXPECT_GT(both.stats.lookahead_tokens, 0);
  // A draft that cannot read the prompt is not used.
  const RandomModelFolder small(7, 64);
  start(small.path().string());
  const Outcome without = ask("samkv", "none", {{"boost", "50"}});
  EXPECT_EQ(kept_blocks(without), kept_blocks(plain));
  EXPECT_NE(without.plan.fallback->find("window"), std::string::npos);
}

TEST_F(LookAheadQueryTest, ADraftFolderThatIsNoneStopsTheStart) {
  EngineOptions options;
  options.model_path = model_.path().string();
  options.draft_path = (folder_.path() / "nothing").string();
  options.weights = "f32";
  options.working_cache_bytes = 1 << 20;
  const auto engine = create_engine(options, *store_);
  EXPECT_EQ(engine.status().field(), "model.draft_path");
}

}  // namespace
}  // namespace quire::testing
