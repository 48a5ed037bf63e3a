// Retrieval heads are read, compute what plain loops compute, and files that do not fit are refused
// with a reason.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/retrieve/head/head_keys.h"
#include "engine/retrieve/head/head_selection.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/head/retrieval_head.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"
#include "tests/support/harness/random_row.h"

namespace quire::testing {
namespace {

class RetrievalHeadTest : public ::testing::Test {
 protected:
  explicit RetrievalHeadTest(std::int64_t positions = 512) {
    ModelOptions options;
    options.weights = WeightFormat::kF32;
    options.max_positions = positions;
    auto loaded = load_model(folder_.path(), options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    model_ = std::move(*loaded);
  }
  std::unique_ptr<RetrievalHead> load(const HeadFolder& files) {
    auto head = RetrievalHead::load(files.path(), *model_);
    EXPECT_TRUE(head.ok()) << head.status().to_string();
    return head.ok() ? std::move(*head) : nullptr;
  }
  std::vector<float> embedding(std::int32_t id) {
    std::vector<float> x(48);
    EXPECT_TRUE(model_->embed(std::span(&id, 1), x.data()).ok());
    return x;
  }
  /// Expects the queries and keys of `ids` to equal those of plain loops.
  void expect_projects(const HeadFolder& files, const RetrievalHead& head,
                       const std::vector<std::int32_t>& ids, const std::vector<float>& features) {
    const auto q_dim = static_cast<std::size_t>(head.config().query_dim()),
               k_dim = static_cast<std::size_t>(head.config().key_dim()),
               f_dim = static_cast<std::size_t>(head.feature_dim());
    std::vector<float> q(ids.size() * q_dim), k(ids.size() * k_dim);
    ASSERT_TRUE(
        head.project(ids, features.empty() ? nullptr : features.data(), q.data(), k.data()).ok());
    for (std::size_t r = 0; r < ids.size(); ++r) {
      const auto feature = features.empty() ? std::span<const float>()
                                            : std::span(features).subspan(r * f_dim, f_dim);
      const auto want_q = files.project("q_proj.weight", embedding(ids[r]), feature),
                 want_k = files.project("k_proj.weight", embedding(ids[r]), feature);
      for (std::size_t c = 0; c < q_dim; ++c)
        ASSERT_NEAR(q[r * q_dim + c], want_q[c], 2e-4) << "query " << r << " at " << c;
      for (std::size_t c = 0; c < k_dim; ++c)
        ASSERT_NEAR(k[r * k_dim + c], want_k[c], 2e-4) << "key " << r << " at " << c;
    }
  }

  RandomModelFolder folder_{7, 4096};
  std::unique_ptr<Model> model_;
};

TEST_F(RetrievalHeadTest, ComputesWhatItsTensorsSay) {
  for (const char* prefix : {"midlayer.", "layers.0."}) {
    const HeadFolder files({.prefix = prefix});
    const auto head = load(files);
    ASSERT_NE(head, nullptr);
    ASSERT_TRUE(head->uses_features());
    EXPECT_TRUE(std::ranges::equal(head->feature_layers(), std::vector<std::int32_t>{2, 1, 0}))
        << "of a model with three layers";
    const std::vector<std::int32_t> ids = {5, 4000, 5, 17};
    expect_projects(files, *head, ids, random_row(3, ids.size() * 144));
    expect_projects(files, *head, ids, {});
    EXPECT_GT(head->memory_bytes(), 0);
  }
}

TEST_F(RetrievalHeadTest, WithoutFcItKnowsEmbeddingsOnly) {
  const HeadFolder bare({.fc = false}), told({.config = R"(,"input_mode":"embed")"});
  for (const HeadFolder* files : {&bare, &told}) {
    const auto head = load(*files);
    ASSERT_NE(head, nullptr);
    EXPECT_FALSE(head->uses_features());
    expect_projects(*files, *head, {1, 2, 3}, {});
    std::vector<float> features = random_row(1, 144), with(32), without(32);
    const std::int32_t id = 9;
    ASSERT_TRUE(head->project(std::span(&id, 1), features.data(), nullptr, with.data()).ok());
    ASSERT_TRUE(head->project(std::span(&id, 1), nullptr, nullptr, without.data()).ok());
    EXPECT_EQ(with, without);
  }
}

TEST_F(RetrievalHeadTest, TokensDoNotDependOnTheirCompany) {
  const HeadFolder files;
  const auto head = load(files);
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 700; ++i) ids.push_back(i * 5);
  const auto features = random_row(4, ids.size() * 144);
  std::vector<float> all(ids.size() * 32), one(32);
  ASSERT_TRUE(head->project(ids, features.data(), nullptr, all.data()).ok());
  for (const std::size_t i :
       {std::size_t{0}, std::size_t{511}, std::size_t{512}, std::size_t{699}}) {
    ASSERT_TRUE(
        head->project(std::span(ids).subspan(i, 1), features.data() + i * 144, nullptr, one.data())
            .ok());
    EXPECT_TRUE(
        std::equal(one.begin(), one.end(), all.begin() + static_cast<std::ptrdiff_t>(i * 32)))
        << i;
  }
}

TEST_F(RetrievalHeadTest, ReachesPastItsTrainingByAFixedYarnFactor) {
  const HeadFolder near({.config = R"(,"max_position_embeddings":512,"rope_theta":500000)"}),
      far({.config = R"(,"max_position_embeddings":128)"});
  const auto at_home = load(near), beyond = load(far);
  EXPECT_EQ(at_home->rope().config().scaling, RopeScaling::kNone);
  EXPECT_EQ(at_home->rope().config().theta, 500000.0f);
  EXPECT_EQ(beyond->rope().config().scaling, RopeScaling::kYarn);
  EXPECT_EQ(beyond->rope().config().factor, 4.0f);
  EXPECT_EQ(beyond->rope().config().original_max_position, 128);
  EXPECT_EQ(beyond->rope().max_positions(), 512);
  // cos and sin are scaled by 0.1 ln s + 1, which alone is left at position 0.
  EXPECT_NEAR(beyond->rope().cos_row(0)[0], 0.1 * std::log(4.0) + 1, 1e-6);
}

TEST_F(RetrievalHeadTest, ADigestNamesWhatKeysDependOn) {
  const HeadFolder a, same, other({}, 12), layers({.config = R"(,"feature_layers":[0,1,1])"});
  EXPECT_EQ(load(a)->digest(), load(same)->digest());
  EXPECT_NE(load(a)->digest(), load(other)->digest());
  EXPECT_NE(load(a)->digest(), load(layers)->digest());
}

TEST_F(RetrievalHeadTest, WhatDoesNotFitIsNamed) {
  const auto error = [&](const HeadFolder& files) {
    const auto head = RetrievalHead::load(files.path(), *model_);
    return head.ok() ? std::string("fits") : head.status().field() + ": " + head.status().message();
  };
  const auto expect_says = [&](const HeadFolder& files, std::vector<std::string> parts) {
    const std::string text = error(files);
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };
  expect_says(HeadFolder({.hidden = 64}), {"hidden_size", "64", "48"});
  expect_says(HeadFolder({.config = R"(,"feature_layers":[0,1,3])"}),
              {"feature_layers", "layer 3", "3 layers"});
  expect_says(HeadFolder({.config = R"(,"feature_layers":[0,1])"}), {"feature_layers", "three"});
  expect_says(HeadFolder({.config = R"(,"input_mode":"words")"}), {"input_mode", "words"});
  for (const char* name : {"midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight",
                           "midlayer.self_attn.q_proj.weight"}) {
    HeadFolder files;
    files.drop(name);
    expect_says(files, {name, "missing"});
  }
  HeadFolder narrow;
  narrow.reshape("midlayer.self_attn.k_proj.weight", {32, 48});
  expect_says(narrow, {"midlayer.self_attn.k_proj.weight", "[32, 48]", "[32, 96]"});
  HeadFolder fused;
  fused.reshape("fc.weight", {48, 48});
  expect_says(fused, {"fc.weight", "[48, 48]", "[48, 144]"});
  EXPECT_EQ(RetrievalHead::load(folder_.path() / "nothing", *model_).status().code(),
            Code::kNotFound);
}

TEST_F(RetrievalHeadTest, AnIdOutsideTheVocabularyIsRefused) {
  const HeadFolder files;
  const auto head = load(files);
  const std::int32_t id = 4096;
  std::vector<float> k(32);
  EXPECT_EQ(head->project(std::span(&id, 1), nullptr, nullptr, k.data()).code(),
            Code::kInvalidArgument);
}

TEST_F(RetrievalHeadTest, KeysAreKeptRotated) {
  const HeadFolder files;
  const auto head = load(files);
  const std::vector<std::int32_t> ids = {7, 8, 9}, positions = {300, 2, 511};
  std::vector<float> raw(3 * 32);
  ASSERT_TRUE(head->project(ids, nullptr, nullptr, raw.data()).ok());
  DevicePool pool(0);
  HeadKeys keys(pool, *head);
  ASSERT_TRUE(keys.append(raw.data(), std::span(positions).first(1)).ok());
  ASSERT_TRUE(keys.append(raw.data() + 32, std::span(positions).subspan(1)).ok());
  EXPECT_EQ(pool.bytes_in_use(), keys.bytes());
  EXPECT_EQ(keys.bytes(), HeadKeys::bytes_for(head->config(), 3));
  ASSERT_TRUE(rope_rotate(head->rope(), {.x = raw.data(),
                                         .out = raw.data(),
                                         .positions = positions.data(),
                                         .rows = 3,
                                         .num_heads = 2,
                                         .ldx = 32,
                                         .ldo = 32})
                  .ok());
  const TransposedKeys view = keys.view();
  ASSERT_EQ(view.rows.num_rows, 3);
  EXPECT_FALSE(view.sorted) << "300, 2, 511";
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t m = 0; m < 2; ++m) {
      for (std::int64_t c = 0; c < 16; ++c) {
        EXPECT_EQ(view.rows.blocks[0][transposed_at(8, m, c / 2, row) + c % 2],
                  f32_to_bf16(raw[static_cast<std::size_t>(row * 32 + m * 16 + c)]))
            << "row " << row << " head " << m << " channel " << c;
      }
    }
    EXPECT_EQ(view.positions[row], positions[static_cast<std::size_t>(row)]);
  }
}

TEST_F(RetrievalHeadTest, KeysWithCodesChooseAsKeysWithout) {
  const HeadFolder files({.head_dim = 64});
  const auto head = load(files);
  constexpr std::int32_t kRows = 480, kChosen = 60;
  const std::int64_t width = head->config().key_dim();
  std::mt19937 rng(5);
  std::vector<std::int32_t> ids = random_ids(rng, kRows), positions(kRows);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> raw(static_cast<std::size_t>(kRows * width)),
      query(static_cast<std::size_t>(head->config().query_dim())), scores, few, want;
  ASSERT_TRUE(head->project(ids, nullptr, nullptr, raw.data()).ok());
  ASSERT_TRUE(head->project(std::span(ids).last(1), nullptr, query.data(), nullptr).ok());
  DevicePool pool(0);
  HeadKeys keys(pool, *head);
  EXPECT_EQ(keys.has_codes(), KeyCodes::pay(KvView{.head_dim = 64, .dtype = DType::kBF16}));
  if (!keys.has_codes()) GTEST_SKIP() << "keys of this CPU lie turned around";
  // Scoring in between makes the codes in pieces.
  ASSERT_TRUE(keys.append(raw.data(), std::span(positions).first(400)).ok());
  ASSERT_TRUE(keys.score(query.data(), 399, 2, kChosen, nullptr, scores).ok());
  for (std::int32_t row = 400; row < kRows; ++row)
    ASSERT_TRUE(keys.append(raw.data() + row * width,
                            std::span(positions).subspan(static_cast<std::size_t>(row), 1))
                    .ok());
  EXPECT_EQ(keys.bytes(), HeadKeys::bytes_for(head->config(), kRows));
  EXPECT_EQ(pool.bytes_in_use(), keys.bytes());
  ASSERT_TRUE(keys.score(query.data(), kRows - 1, 2, kChosen, nullptr, scores).ok());
  ASSERT_TRUE(rope_rotate(head->rope(), {.x = raw.data(),
                                         .out = raw.data(),
                                         .positions = positions.data(),
                                         .rows = kRows,
                                         .num_heads = 2,
                                         .ldx = width,
                                         .ldo = width})
                  .ok());
  const KvView rows = keys.rows();
  ASSERT_EQ(rows.num_rows, kRows);
  EXPECT_TRUE(rows.sorted);
  for (std::int64_t row = 0; row < kRows; row += 7) {
    for (std::int64_t m = 0; m < 2; ++m) {
      const auto* key = static_cast<const std::byte*>(rows.pages[row / kPageTokens]) +
                        m * rows.head_stride + row % kPageTokens * rows.token_stride;
      for (std::int64_t c = 0; c < 64; ++c)
        ASSERT_EQ(load_f32(key, rows.dtype, c),
                  bf16_to_f32(f32_to_bf16(raw[static_cast<std::size_t>(row * width + m * 64 + c)])))
            << "row " << row << " channel " << c;
    }
  }
  // If few rows are scored, their keys are multiplied directly; the choice among many is the same.
  ASSERT_TRUE(keys.score(query.data(), kRows - 1, 2, kRows, nullptr, few).ok());
  ASSERT_TRUE(head_scores(HeadScoresArgs{.query = query.data(),
                                         .position = kRows - 1,
                                         .num_heads = 6,
                                         .keys = rows,
                                         .target_kv_heads = 2},
                          want)
                  .ok());
  EXPECT_EQ(few, want);
  for (std::size_t m = 0; m < 2; ++m) {
    const auto by_codes = select_tokens(std::span(scores).subspan(m * kRows, kRows),
                                        {kChosen, 2, 6}),
               by_keys = select_tokens(std::span(want).subspan(m * kRows, kRows), {kChosen, 2, 6});
    std::vector<std::int32_t> missed;
    std::ranges::set_difference(by_keys, by_codes, std::back_inserter(missed));
    EXPECT_LE(missed.size(), 1u);
  }
}

TEST_F(RetrievalHeadTest, APoolWithoutRoomTakesNoKeys) {
  const HeadFolder files;
  const auto head = load(files);
  DevicePool pool(1000);
  HeadKeys keys(pool, *head);
  const std::vector<float> raw(32);
  const std::int32_t position = 0;
  EXPECT_EQ(keys.append(raw.data(), std::span(&position, 1)).code(), Code::kResourceExhausted);
  EXPECT_EQ(keys.num_rows(), 0);
}

/// Keys of a prompt that runs in chunks equal those of the head over the states of one whole pass.
TEST_F(RetrievalHeadTest, ATrackSeesTheStatesOfTheTokenBefore) {
  const HeadFolder files({.config = R"(,"feature_layers":[0,1,2])"});
  const auto head = load(files);
  std::mt19937 rng(3);
  const auto ids = random_ids(rng, 40);
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  PagePool pool(PageFormat{2, 16, DType::kF16}, 0);
  ForwardWorkspace workspace;
  const auto run = [&](WorkingCache& cache, HiddenTap& tap, std::size_t begin, std::size_t n) {
    ForwardRequest request{};
    request.token_ids = std::span(ids).subspan(begin, n);
    request.positions = std::span(positions).subspan(begin, n);
    request.cache = &cache;
    request.tap = &tap;
    ASSERT_TRUE(forward(*model_, request, workspace).ok());
  };
  struct States final : HiddenTap {
    std::span<const std::int32_t> layers() const override { return wanted; }
    void take(std::int32_t layer, std::span<const std::int32_t> rows, const float* x) override {
      for (std::size_t i = 0; i < rows.size(); ++i)
        std::copy_n(x + i * 48, 48,
                    features.data() + (static_cast<std::size_t>(rows[i]) + 1) * 144 +
                        static_cast<std::size_t>(layer) * 48);
    }
    std::vector<std::int32_t> wanted = {0, 1, 2};
    /// Features of the previous token; the first token has none.
    std::vector<float> features = std::vector<float>(41 * 144, 0.0f);
  } states;
  WorkingCache whole(pool, 3), cut(pool, 3);
  run(whole, states, 0, 40);
  std::vector<float> want(40 * 32);
  ASSERT_TRUE(head->project(ids, states.features.data(), nullptr, want.data()).ok());
  HeadTrack track(*head, HeadInput::kFeature);
  for (const auto& [begin, n] : {std::pair<std::size_t, std::size_t>{0, 17}, {17, 16}, {33, 7}}) {
    run(cut, track, begin, n);
    ASSERT_TRUE(
        track.add_computed(std::span(ids).subspan(begin, n), std::span(positions).subspan(begin, n))
            .ok());
  }
  EXPECT_TRUE(std::ranges::equal(track.keys(), want));
  EXPECT_TRUE(std::ranges::equal(track.token_ids(), ids));
  EXPECT_TRUE(std::ranges::equal(track.last_feature(), std::span(states.features).last(144)));
  // After a token with only an embedding there is no feature.
  ASSERT_TRUE(track.add_embedded(std::span(ids).first(1), std::span(positions).first(1)).ok());
  EXPECT_TRUE(track.last_feature().empty());
}

}  // namespace
}  // namespace quire::testing
