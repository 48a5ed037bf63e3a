#include "engine/calibrate/head_calibration.h"

#include <gtest/gtest.h>

#include "engine/cache/page_pool.h"
#include "engine/engine_parts.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

SelectionHeads some_heads() {
  SelectionHeads heads;
  heads.heads = {{18, 6}, {0, 0}, {15, 6}};
  return heads;
}

TEST(SelectionHeadsRecord, ReadsBack) {
  SelectionHeads heads = some_heads();
  EXPECT_EQ(encode_selection_heads(heads), "1 words 18.6 0.0 15.6");
  EXPECT_EQ(*decode_selection_heads(encode_selection_heads(heads), 30, 9), heads);
  heads.asks = SelectionHeads::Asks::kLastToken;
  EXPECT_EQ(*decode_selection_heads(encode_selection_heads(heads), 30, 9), heads);
}

TEST(SelectionHeadsRecord, AnythingElseIsRefused) {
  for (const std::string text :
       {"", "1", "1 words", "2 words 1.1", "1 words 30.0", "1 words 0.9", "1 words -1.0",
        "1 words 1.1 1.1", "1 words 1", "1 words 1.", "1 words 1.1x", "1 words  1.1",
        "1 words 1.1 ", "1 last", "1 words 99999999999.1"}) {
    const auto heads = decode_selection_heads(text, 30, 9);
    EXPECT_EQ(heads.status().code(), Code::kCorruption) << text;
    EXPECT_FALSE(heads.status().message().empty());
  }
}

// A model with random weights finds nothing, whichever of its heads are chosen.
TEST(HeadCalibrationTest, SaysWhereNoHeadStandsOut) {
  const RandomModelFolder folder;
  EngineOptions options;
  options.model_path = folder.path().string();
  options.weights = "f32";
  options.num_threads = 1;
  auto parts = load_engine_parts(nullptr, options);
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  PassResources core;
  core.facts = facts_of(*parts->model, *parts->tokenizer, parts->format, 0);
  PagePool pool({core.facts.shape.num_kv_heads, core.facts.shape.head_dim, core.facts.shape.dtype},
                0);
  SpeedMeter meter;
  core.model = parts->model.get();
  core.pool = &pool;
  core.meter = &meter;
  HeadCalibration calibration(core);
  std::mt19937 rng(23);
  const auto add = [&] {
    HeadExample e;
    e.prefix_ids = {1};
    e.suffix_ids = random_ids(rng, 8);
    e.words_begin = 0;
    e.words_end = 8;
    for (int i = 0; i < 4; ++i) e.passages.push_back({random_ids(rng, 96), {}});
    const std::int64_t begin = 16 * std::uniform_int_distribution<std::int64_t>(0, 5)(rng);
    e.passages[rng() % 4].support = {{begin, begin + 16}};
    const auto learnt = calibration.add(e);
    ASSERT_TRUE(learnt.ok()) << learnt.status().to_string();
    EXPECT_TRUE(*learnt);
  };
  for (int i = 0; i < 7; ++i) add();
  EXPECT_NE(calibration.result().status().message().find("only 7 questions"), std::string::npos);
  while (calibration.examples() < 80) add();
  const auto found = calibration.result();
  EXPECT_EQ(found.code(), Code::kFailedPrecondition);
  EXPECT_NE(found.status().message().find("no head stands out"), std::string::npos)
      << found.status().to_string();
}

}  // namespace
}  // namespace quire::testing
