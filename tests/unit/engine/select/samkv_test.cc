/// SamKV's selection agrees with golden vectors and a brute-force reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "engine/select/samkv_scores.h"
#include "tests/support/harness/sketch_maker.h"

namespace quire::testing {
namespace {

using Blocks = std::vector<std::int32_t>;

TEST(CandidateShareTest, GoldenVectorsAndBounds) {
  EXPECT_DOUBLE_EQ(candidate_share(4, 1, 0), 0.75);
  EXPECT_EQ(candidate_share(4, 4, 0), 0);
  EXPECT_EQ(candidate_share(4, -1, 0), 0);
  EXPECT_EQ(candidate_share(4, 0, 0), 0);
  EXPECT_EQ(candidate_share(4, 5, 0), 0);
  EXPECT_EQ(candidate_share(3, 3, 3), 0);
  EXPECT_EQ(candidate_share(std::nanf(""), 1, 0), 0);
  EXPECT_EQ(candidate_share(4, 1, std::nanf("")), 0);
  EXPECT_LT(candidate_share(4, 1, 0), candidate_share(5, 1, 0));
  EXPECT_GT(candidate_share(4, 1, 0), candidate_share(4, 2, 0));
  EXPECT_NEAR(candidate_share(4 * 7.5f, 1 * 7.5f, 0), candidate_share(4, 1, 0), 1e-6);
  for (float anchor = -2; anchor < 6; anchor += 0.25f) {
    EXPECT_GE(candidate_share(4, anchor, 0), 0);
    EXPECT_LT(candidate_share(4, anchor, 0), 1);
  }
}

// Equation 1 of SamKV holds.
TEST(PersonalisedQueriesTest, GoldenVector) {
  const std::vector<float> query = {1, 0};
  const std::vector<std::vector<float>> locals = {{5, 5}, {0, 2}, {-1, 1}};
  std::vector<float> weights;
  for (const auto& l : locals) weights.push_back(bias_weight(query, l, 2, BiasCos::kLayer));
  EXPECT_NEAR(weights[1], 0, 1e-6);
  EXPECT_NEAR(weights[2], 0.70711, 1e-5);
  const auto q = personalised_queries(query, locals, weights);
  EXPECT_NEAR(q[0][0], 0.6464, 1e-4);
  EXPECT_NEAR(q[0][1], 0.3536, 1e-4);
}

TEST(PersonalisedQueriesTest, OneDocumentKeepsTheQueryAndOrderDoesNotMatter) {
  const std::vector<float> query = {0.3f, -1.7f, 2.2f};
  EXPECT_EQ(personalised_queries(query, std::vector<std::vector<float>>{{4, 5, 6}},
                                 std::vector<float>{1})[0],
            query);
  const std::vector<std::vector<float>> a = {{1, 2, 3}, {-1, 0.5f, 2}, {0.1f, 0.2f, -4}, {3, 3, 1}},
                                        b = {a[0], a[3], a[1], a[2]};
  const auto qa = personalised_queries(query, a, std::vector<float>{0.1f, 0.2f, 0.3f, 0.4f});
  const auto qb = personalised_queries(query, b, std::vector<float>{0.1f, 0.4f, 0.2f, 0.3f});
  for (std::size_t c = 0; c < 3; ++c) EXPECT_NEAR(qa[0][c], qb[0][c], 1e-5);
}

TEST(BiasWeightTest, PerHeadIsTheMeanOverHeads) {
  // The first head has nearly all of both lengths, and there the vectors are parallel.
  const std::vector<float> a = {10, 0, 0, 1}, b = {10, 0, 1, 0};
  EXPECT_NEAR(bias_weight(a, b, 2, BiasCos::kLayer), 100.0 / 101, 1e-6);
  EXPECT_NEAR(bias_weight(a, b, 2, BiasCos::kHead), 0.5, 1e-6);
  // A head's sign is dropped before the mean, a layer's after the sum.
  const std::vector<float> c = {1, 0, 1, 0}, d = {1, 0, -1, 0};
  EXPECT_NEAR(bias_weight(c, d, 2, BiasCos::kLayer), 0, 1e-6);
  EXPECT_NEAR(bias_weight(c, d, 2, BiasCos::kHead), 1, 1e-6);
  EXPECT_EQ(bias_weight(a, std::vector<float>(4), 2, BiasCos::kHead), 0);
}

/// Documents whose block scores a test sets. The signal is in a channel that is not rotated.
class SamkvSelectorTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kChannel = 4;
  /// Adds a document of 20 blocks, of which 17 are in the middle. Anchors score `anchor`, block 1
  /// scores `most`, and block 2 scores `least`. The other scores lie in between and rise with the
  /// block's number.
  void add_document(std::vector<std::tuple<float, float, float>> most_anchor_least,
                    std::int32_t num_blocks = 20) {
    documents_.add(
        num_blocks * 16,
        [&](int layer, int b, int c) {
          if (c != kChannel) return 0.0f;
          const auto [most, anchor, least] = most_anchor_least[static_cast<std::size_t>(layer)];
          if (b == 0 || b >= num_blocks - 2) return anchor;
          return b == 1   ? most
                 : b == 2 ? least
                          : least + (most - least) * 0.02f * static_cast<float>(b);
        },
        [&](int, int b) {
          return BlockStats{b == 1 ? 0.1f : 0.9f, b == 2 ? 0.01f : 0.5f, b * 16};
        },
        [](int, int) { return 0.0f; });
  }
  Selection select(const PlugOptions& options = {}, bool question = true,
                   std::optional<double> keep_ratio = std::nullopt) {
    SelectionInput in = documents_.input();
    in.keep_ratio = keep_ratio;
    const std::size_t dim = 8;
    std::vector<float> query(2 * dim);
    query[kChannel] = query[dim + kChannel] = 1;
    const QueryPassResult pass = documents_.question(query);
    if (question) in.query_pass = &pass;
    auto s = (*selectors().make("samkv", options))->select(in);
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return s.ok() ? std::move(*s) : Selection();
  }
  Documents documents_{SketchShape{}};
  std::unique_ptr<Selector> selector_ = std::move(*selectors().make("samkv"));
};

// Equations 2 and 3 of SamKV and the cross filter hold. Two stable layers give P = 0.375, 7 of 17
// candidates, and ten documents keep 7 of 70.
TEST_F(SamkvSelectorTest, GoldenVectorsOfTopPAndCrossFilter) {
  for (int i = 0; i < 10; ++i) add_document({{4, 1, 0}, {4, 5, 0}});
  const Selection s = select();
  for (std::int32_t layer : {0, 1}) {
    std::size_t selected = 0;
    for (std::int32_t i = 0; i < 10; ++i) {
      const Blocks blocks = kept(s, layer, i);
      for (std::int32_t anchor : {0, 18, 19})
        EXPECT_TRUE(std::binary_search(blocks.begin(), blocks.end(), anchor));
      selected += blocks.size() - 3;
    }
    EXPECT_EQ(selected, 7u) << layer;
  }
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(s.contexts[i].keep_share.value(), 0.375, 0.01);
}

TEST_F(SamkvSelectorTest, KeepRules) {
  for (int i = 0; i < 10; ++i) add_document({{4, 1, 0}, {4, 5, 0}});
  const auto count = [](const Selection& s) {
    std::size_t n = 0;
    for (std::int32_t i = 0; i < 10; ++i) n += s.kept(0, i).size() - 3;
    return n;
  };
  EXPECT_EQ(count(select(options_of({{"keep_rule", "total_over_D"}}))), 20u);
  // Anchors take 480 tokens, so four more blocks fit.
  EXPECT_EQ(count(select(options_of({{"keep_rule", "budget"}, {"token_budget", "550"}}))), 4u);
  EXPECT_EQ(count(select({}, true, 0.2)), (640u - 480u) / 16u);
  // After the pool the other middle blocks follow.
  EXPECT_EQ(count(select({}, true, 0.9)), (2880u - 480u) / 16u);
  const Selection tight = select({}, true, 0.1);
  EXPECT_EQ(count(tight), 0u);
  EXPECT_NE(tight.note.find("480"), std::string::npos);
  // keep_rule overrides keep_ratio when both are given.
  EXPECT_EQ(count(select(options_of({{"keep_rule", "retrieved_over_D"}}), true, 0.9)), 7u);
}

/// A draft's attention to tokens raises the scores of their blocks.
class BoostTest : public SamkvSelectorTest {
 protected:
  BoostTest() {
    for (int i = 0; i < 4; ++i) {
      add_document({{4, 1, 0}, {4, 2, 0}});
      scores_.emplace_back(20 * 16, 0.001f);
    }
  }
  Selection select_with(const char* boost, bool draft,
                        std::optional<double> keep_ratio = std::nullopt) {
    SelectionInput in = documents_.input();
    in.keep_ratio = keep_ratio;
    in.question = question_;
    std::vector<float> query(16);
    query[kChannel] = query[8 + kChannel] = 1;
    const QueryPassResult pass = documents_.question(query);
    in.query_pass = &pass;
    std::vector<std::span<const float>> views(scores_.begin(), scores_.end());
    if (draft) in.draft_scores = views;
    const auto selector = std::move(
        *selectors().make("samkv", options_of({{"score", "keys"}, {"boost", boost}})));
    EXPECT_EQ(selector->wants_draft_scores(in), std::string(boost) != "0");
    auto s = selector->select(in);
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return s.ok() ? std::move(*s) : Selection();
  }
  static std::vector<Blocks> blocks(const Selection& s) {
    std::vector<Blocks> out;
    for (std::int32_t layer : {0, 1}) {
      for (std::int32_t i = 0; i < 4; ++i) out.push_back(kept(s, layer, i));
    }
    return out;
  }
  std::vector<std::vector<float>> scores_;  ///< [document][token]
  const std::vector<std::int32_t> question_ = {5, 6, 7};
};

TEST_F(BoostTest, WeightZeroOrNoDraftSelectsAsBefore) {
  scores_[2][5 * 16 + 3] = 0.9f;
  const auto before = blocks(select_with("0", false));
  EXPECT_EQ(blocks(select_with("0", true)), before);
  EXPECT_EQ(blocks(select_with("3", false)), before);
  EXPECT_EQ(select_with("0", true).scores, select_with("3", false).scores);
}

TEST_F(BoostTest, FindsABlockThatTheDraftLooksAt) {
  // By keys this block is among the least important of its document.
  scores_[2][4 * 16 + 7] = 0.9f;
  for (const auto& keep_ratio : {std::optional<double>(), std::optional<double>(0.25)}) {
    const Selection plain = select_with("0", true, keep_ratio),
                    boosted = select_with("4", true, keep_ratio);
    for (std::int32_t layer : {0, 1}) {
      const auto has = [&](const Selection& s) {
        const Blocks b = kept(s, layer, 2);
        return std::find(b.begin(), b.end(), 4) != b.end();
      };
      EXPECT_FALSE(has(plain)) << layer;
      EXPECT_TRUE(has(boosted)) << layer;
    }
    // As many blocks are kept as without the boost.
    std::size_t n = 0, m = 0;
    for (const Blocks& b : blocks(plain)) n += b.size();
    for (const Blocks& b : blocks(boosted)) m += b.size();
    EXPECT_EQ(n, m);
  }
}

TEST_F(BoostTest, TheSameScoreEverywhereChangesNoOrder) {
  const auto before = blocks(select_with("0", true));
  EXPECT_EQ(blocks(select_with("5", true)), before);
}

TEST_F(SamkvSelectorTest, ABudgetOverEverythingKeepsEverythingAndAsksForNothing) {
  add_document({{4, 1, 0}, {4, 5, 0}});
  SelectionInput in = documents_.input();
  in.keep_ratio = 1;
  EXPECT_FALSE(selector_->needs_sketches(in));
  EXPECT_FALSE(selector_->query_pass_blocks(in).has_value());
  const Selection s = select({}, false, 1.0);
  EXPECT_EQ(s.kept(0, 0).size(), 20u);
  EXPECT_TRUE(s.same_in_all_layers());
}

TEST_F(SamkvSelectorTest, SelectionOffIsAnchorsOnly) {
  add_document({{4, 1, 0}, {4, 5, 0}});
  SelectionInput in = documents_.input();
  const auto off = std::move(*selectors().make("samkv", options_of({{"select", "off"}})));
  EXPECT_FALSE(off->needs_sketches(in));
  EXPECT_FALSE(off->query_pass_blocks(in).has_value());
  EXPECT_EQ(kept(select(options_of({{"select", "off"}})), 1, 0), (Blocks{0, 18, 19}));
}

// With one document (D = 1) there is no cross filter.
TEST_F(SamkvSelectorTest, OneDocumentKeepsAllItsCandidates) {
  add_document({{4, 1, 0}, {4, 5, 0}});
  const Selection s = select();
  EXPECT_EQ(s.kept(0, 0).size(), 10u);
  EXPECT_FALSE(s.contexts[0].bias_weight.has_value());
  // The best by score are the most important block and the latest ones. Blocks 11 and 12 have the
  // same quantised mean.
  const Blocks blocks = kept(s, 0, 0);
  EXPECT_TRUE(std::binary_search(blocks.begin(), blocks.end(), 1));
  for (std::int32_t b = 13; b < 20; ++b)
    EXPECT_TRUE(std::binary_search(blocks.begin(), blocks.end(), b)) << b;
}

// Documents of up to three blocks are kept whole and add nothing. One middle block gives P = 0, and
// without any P only anchors stay.
TEST_F(SamkvSelectorTest, SmallDocumentsAndNoCandidates) {
  for (std::int32_t blocks : {1, 2, 3}) add_document({{4, 1, 0}, {4, 1, 0}}, blocks);
  SelectionInput in = documents_.input();
  EXPECT_FALSE(selector_->needs_sketches(in));
  Selection s = select();
  for (std::int32_t i : {0, 1, 2}) EXPECT_EQ(s.kept(0, i).size(), static_cast<std::size_t>(i + 1));
  add_document({{4, 1, 0}, {4, 1, 0}}, 4);
  s = select();
  EXPECT_EQ(kept(s, 0, 3), (Blocks{0, 2, 3}));
  EXPECT_EQ(s.contexts[3].keep_share, 0);
  add_document({{4, 5, 0}, {4, -1, 0}});
  s = select();
  EXPECT_EQ(kept(s, 1, 4), (Blocks{0, 18, 19}));
}

// Without a question the smallest alpha comes first: ceil(sum |M_i| / (4 D)) blocks, no bias.
TEST_F(SamkvSelectorTest, WithoutAQuestionTheDocumentsDecide) {
  for (int i = 0; i < 3; ++i) add_document({{4, 1, 0}, {4, 5, 0}});
  const Selection s = select({}, false);
  std::size_t selected = 0;
  for (std::int32_t i = 0; i < 3; ++i) {
    selected += s.kept(0, i).size() - 3;
    EXPECT_EQ(s.kept(0, i)[1], 1);  // the block with the smallest alpha
  }
  EXPECT_EQ(selected, 5u);  // ceil(51 / 12)
}

TEST_F(SamkvSelectorTest, ADocumentWithoutASketchKeepsItsAnchors) {
  for (int i = 0; i < 3; ++i) add_document({{4, 1, 0}, {4, 5, 0}});
  documents_.lose(1);
  const Selection s = select();
  EXPECT_EQ(kept(s, 0, 1), (Blocks{0, 18, 19}));
  EXPECT_GT(s.kept(0, 0).size() + s.kept(0, 2).size(), 6u);
}

TEST_F(SamkvSelectorTest, InvalidImportanceGivesNoCandidates) {
  documents_.add(
      320, [](int, int, int c) { return c == kChannel ? 1.0f : 0.0f; },
      [](int, int b) {
        return BlockStats{std::numeric_limits<float>::quiet_NaN(), 0.1f, b * 16};
      },
      [](int, int) { return 0.0f; });
  EXPECT_EQ(kept(select(), 0, 0), (Blocks{0, 18, 19}));
}

/// Documents whose blocks are ranked by the question's words.
class SamkvWordsTest : public SamkvSelectorTest {
 protected:
  SamkvWordsTest() {
    for (int i = 0; i < 3; ++i) add_document({{4, 1, 0}, {4, 5, 0}});
    ids_.assign(3, std::vector<std::int32_t>(320, 1));
    contexts_ = documents_.contexts();
    for (std::size_t i = 0; i < 3; ++i) contexts_[i].token_ids = ids_[i];
    pass_ = documents_.question(std::vector<float>{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0});
  }
  SelectionInput words_input(const char* score, double keep_ratio) {
    selector_ = std::move(*selectors().make("samkv", options_of({{"score", score}})));
    SelectionInput in = documents_.input();
    in.contexts = contexts_;
    in.question = question_;
    in.keep_ratio = keep_ratio;
    return in;
  }
  std::vector<std::vector<std::int32_t>> ids_;
  std::vector<SelectableContext> contexts_;
  std::vector<std::int32_t> question_ = {7, 8};
  QueryPassResult pass_;
};

TEST_F(SamkvWordsTest, UnderABudgetTheBestMatchesAreKept) {
  ids_[1][16 * 9 + 3] = 7;
  ids_[1][16 * 9 + 4] = 8;
  SelectionInput in = words_input("words", 0.2);
  in.query_pass = &pass_;
  const auto s = selector_->select(in);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  // The 192 tokens are nine anchors and three blocks: the match and the two after it.
  for (std::int32_t layer : {0, 1}) {
    EXPECT_EQ(kept(*s, layer, 0), (Blocks{0, 18, 19}));
    EXPECT_EQ(kept(*s, layer, 1), (Blocks{0, 9, 10, 11, 18, 19}));
    EXPECT_EQ(kept(*s, layer, 2), (Blocks{0, 18, 19}));
  }
  EXPECT_GT(s->scores[1][9], s->scores[1][10]);
}

TEST_F(SamkvWordsTest, WithoutABudgetTheCandidatesAreCountedAsPublished) {
  ids_[1][16 * 9] = 7;
  SelectionInput in = words_input("words", 0.2);
  in.keep_ratio.reset();
  EXPECT_TRUE(selector_->needs_sketches(in));
  EXPECT_TRUE(selector_->query_pass_blocks(in).has_value());
  in.query_pass = &pass_;
  const auto s = selector_->select(in);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  std::size_t selected = 0;
  for (std::int32_t i = 0; i < 3; ++i) selected += s->kept(0, i).size() - 3;
  EXPECT_EQ(selected, 7u);  // P = 0.375: 7 of 17 in each of three documents, of which a third stays
  const Blocks blocks = kept(*s, 0, 1);
  EXPECT_TRUE(std::binary_search(blocks.begin(), blocks.end(), 9));
}

TEST_F(SamkvWordsTest, BothAddsWhatKeysAndWordsSayEachOnItsOwnScale) {
  ids_[2][16 * 9] = 7;
  SelectionInput in = words_input("both", 0.2);
  EXPECT_TRUE(selector_->needs_sketches(in));
  in.query_pass = &pass_;
  auto s = selector_->select(in);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  // Keys favour block 1 of every document; the words outweigh two of these three blocks.
  EXPECT_EQ(s->kept(0, 0).size() + s->kept(0, 1).size() + s->kept(0, 2).size(), 12u);
  const Blocks third = kept(*s, 0, 2);
  EXPECT_TRUE(std::binary_search(third.begin(), third.end(), 9));
  // If no word is found, the order of keys decides.
  question_ = {99};
  in = words_input("both", 0.2);
  in.query_pass = &pass_;
  s = selector_->select(in);
  ASSERT_TRUE(s.ok());
  for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(kept(*s, 0, i), (Blocks{0, 1, 18, 19}));
}

TEST_F(SamkvWordsTest, WithoutAQuestionTheDocumentsDecideAndTokensMayBeUnknown) {
  question_.clear();
  SelectionInput in = words_input("words", 0.2);
  EXPECT_TRUE(selector_->needs_sketches(in));
  const auto silent = selector_->select(in);
  ASSERT_TRUE(silent.ok());
  // The block with the smallest alpha is kept.
  for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(silent->kept(0, i)[1], 1);
  question_ = {7};
  for (auto& c : contexts_) c.token_ids = {};
  in = words_input("words", 0.2);
  in.query_pass = &pass_;
  const auto blind = selector_->select(in);
  ASSERT_TRUE(blind.ok());
  EXPECT_EQ(kept(*blind, 0, 0), (Blocks{0, 1, 2, 3, 18, 19}));  // all equal: prompt order
}

/// Computes everything in double, directly from the formulas.
struct Reference {
  std::vector<double> share;
  std::vector<std::vector<std::set<std::int32_t>>> kept;  // [layer][document]
};

Reference brute_force(Documents& docs, const std::vector<float>& query, StableLayers stable,
                      bool bias) {
  SelectionInput in = docs.input();
  const std::size_t count = docs.contexts().size(), heads = static_cast<std::size_t>(in.num_heads),
                    kv_heads = static_cast<std::size_t>(in.num_kv_heads),
                    dim = static_cast<std::size_t>(in.head_dim), width = heads * dim;
  const QueryPassResult pass = docs.question(query);
  std::vector<std::vector<std::vector<double>>> s(static_cast<std::size_t>(in.num_layers),
                                                  std::vector<std::vector<double>>(count)),
      hat = s;
  for (std::size_t l = 0; l < s.size(); ++l) {
    std::vector<std::vector<float>> local(count, std::vector<float>(width));
    const std::vector<double> q(query.begin() + static_cast<std::ptrdiff_t>(l * width),
                                query.begin() + static_cast<std::ptrdiff_t>((l + 1) * width));
    for (std::size_t j = 0; j < count; ++j)
      in.sketch(static_cast<std::int32_t>(j))->local_query(static_cast<std::int32_t>(l), local[j]);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<double> qi = q;
      for (std::size_t j = 0; j < count && bias; ++j) {
        if (j == i) continue;
        double xy = 0, xx = 0, yy = 0;
        for (std::size_t c = 0; c < width; ++c) {
          xy += q[c] * local[j][c];
          xx += q[c] * q[c];
          yy += double{local[j][c]} * local[j][c];
        }
        const double w = std::fabs(xy / std::sqrt(xx * yy));
        for (std::size_t c = 0; c < width; ++c)
          qi[c] += w * local[j][c] / static_cast<double>(count - 1);
      }
      const auto position = pass.last_position - docs.contexts()[i].offset;
      const std::size_t half = dim / 2;  // the whole head is rotated here
      std::vector<double> pooled(kv_heads * dim);
      for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t c = 0; c < dim; ++c) {
          const std::size_t pair = c % half;
          const double cos = docs.rope().cos_row(position)[pair],
                       sin = docs.rope().sin_row(position)[pair];
          const double turned = c < half ? qi[h * dim + c] * cos - qi[h * dim + c + half] * sin
                                         : qi[h * dim + c] * cos + qi[h * dim + c - half] * sin;
          pooled[h / (heads / kv_heads) * dim + c] += turned /
                                                      static_cast<double>(heads / kv_heads);
        }
      }
      double length = 0;
      for (const double x : pooled) length += x * x;
      for (std::int32_t b = 0; b < docs.contexts()[i].num_blocks; ++b) {
        std::vector<float> mean(kv_heads * dim);
        in.sketch(static_cast<std::int32_t>(i))->mean(static_cast<std::int32_t>(l), b, mean);
        double sum = 0;
        for (std::size_t c = 0; c < mean.size(); ++c) sum += pooled[c] * mean[c];
        s[l][i].push_back(sum);
        hat[l][i].push_back(sum / std::sqrt(length));
      }
    }
  }
  Reference out;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t blocks = docs.contexts()[i].num_blocks;
    double sum = 0;
    for (std::int32_t l = stable.first; l <= stable.last; ++l) {
      const auto& score = s[static_cast<std::size_t>(l)][i];
      const auto stats = [&](std::int32_t b) {
        return in.sketch(static_cast<std::int32_t>(i))->stats(l, b);
      };
      std::vector<std::int32_t> by_alpha, by_sustained;
      for (std::int32_t b = 1; b < blocks - 2; ++b) by_alpha.push_back(b);
      by_sustained = by_alpha;
      std::stable_sort(by_alpha.begin(), by_alpha.end(),
                       [&](auto a, auto b) { return stats(a).alpha < stats(b).alpha; });
      std::stable_sort(by_sustained.begin(), by_sustained.end(),
                       [&](auto a, auto b) { return stats(a).sustained < stats(b).sustained; });
      const double most = score[static_cast<std::size_t>(by_alpha[0])];
      const double least =
          score[static_cast<std::size_t>(by_sustained[by_sustained[0] == by_alpha[0] ? 1 : 0])];
      const auto last = static_cast<std::size_t>(blocks);
      const double anchor = (score[0] + score[last - 2] + score[last - 1]) / 3;
      if (least < anchor && anchor <= most) sum += (most - anchor) / (most - least);
    }
    out.share.push_back(sum / (stable.last - stable.first + 1));
  }
  for (std::size_t l = 0; l < s.size(); ++l) {
    std::vector<std::tuple<double, std::size_t, std::int32_t>> pool;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int32_t middle = docs.contexts()[i].num_blocks - 3;
      std::vector<std::pair<double, std::int32_t>> own;
      for (std::int32_t b = 1; b <= middle; ++b)
        own.emplace_back(-s[l][i][static_cast<std::size_t>(b)], b);
      std::sort(own.begin(), own.end());
      own.resize(static_cast<std::size_t>(std::ceil(out.share[i] * middle)));
      for (const auto& [score, b] : own)
        pool.emplace_back(-hat[l][i][static_cast<std::size_t>(b)], i, b);
    }
    std::sort(pool.begin(), pool.end());
    pool.resize((pool.size() + count - 1) / count);
    auto& kept = out.kept.emplace_back(count);
    for (std::size_t i = 0; i < count; ++i)
      kept[i] = {0, docs.contexts()[i].num_blocks - 2, docs.contexts()[i].num_blocks - 1};
    for (const auto& [score, i, b] : pool) kept[i].insert(b);
  }
  return out;
}

TEST(SamkvReferenceTest, EqualsTheFormulasInDouble) {
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    Documents docs({.num_layers = 3,
                    .num_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 8,
                    .rotary_dim = 8,
                    .block_tokens = 16});
    for (std::uint32_t i = 0; i < 4; ++i) docs.add_random(16 * (12 + 3 * i) - 5, seed * 100 + i);
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    std::vector<float> query(3 * 4 * 8);
    for (float& x : query) x = normal(rng);
    for (const bool bias : {true, false}) {
      SelectionInput in = docs.input();
      in.stable_layers = {1, 2};
      const auto selector = std::move(
          *selectors().make("samkv", options_of({{"bias", bias ? "on" : "off"}})));
      const QueryPassResult pass = docs.question(query);
      in.query_pass = &pass;
      const auto s = selector->select(in);
      ASSERT_TRUE(s.ok());
      const Reference want = brute_force(docs, query, {1, 2}, bias);
      for (std::size_t i = 0; i < 4; ++i)
        EXPECT_NEAR(*s->contexts[i].keep_share, want.share[i], 1e-4) << seed;
      for (std::int32_t l = 0; l < 3; ++l) {
        for (std::int32_t i = 0; i < 4; ++i) {
          const auto& blocks = want.kept[static_cast<std::size_t>(l)][static_cast<std::size_t>(i)];
          EXPECT_EQ(kept(*s, l, i), Blocks(blocks.begin(), blocks.end()))
              << "seed " << seed << " layer " << l << " document " << i;
        }
      }
      // The same input gives the same selection and scores.
      const auto again = selector->select(in);
      EXPECT_EQ(s->scores, again->scores);
    }
  }
}

// layer_mode=shared chooses by the mean over the stable layers: with one of them as that layer
// chooses for itself.
TEST(SamkvReferenceTest, SharedModeChoosesByTheMeanOverTheStableLayers) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  int differs = 0;
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    Documents docs({.num_layers = 3,
                    .num_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 8,
                    .rotary_dim = 8,
                    .block_tokens = 16});
    for (std::uint32_t i = 0; i < 3; ++i) docs.add_random(400, 10 * seed + i);
    std::vector<float> query(3 * 4 * 8);
    for (float& x : query) x = normal(rng);
    const QueryPassResult pass = docs.question(query);
    const auto chosen = [&](StableLayers stable, const char* mode) {
      SelectionInput in = docs.input();
      in.query_pass = &pass;
      in.stable_layers = stable;
      const auto s = (*selectors().make("samkv", options_of({{"layer_mode", mode}})))->select(in);
      EXPECT_TRUE(s.ok()) << s.status().to_string();
      return *s;
    };
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      const Selection shared = chosen({layer, layer}, "shared"),
                      own = chosen({layer, layer}, "per_layer");
      EXPECT_TRUE(shared.same_in_all_layers());
      EXPECT_EQ(shared.num_layers(), 3);
      for (std::int32_t i = 0; i < 3; ++i) {
        EXPECT_EQ(kept(shared, 0, i), kept(own, layer, i)) << seed << ", " << layer << ", " << i;
        differs += kept(shared, 0, i) != kept(chosen({0, 2}, "shared"), 0, i);
      }
    }
  }
  EXPECT_GT(differs, 0) << "which layers are stable matters";
}

/// Two layers of one head whose first two channels turn by one radian a token, over documents of
/// one fixed key there, so that a score depends on the distance alone.
class FrameTest : public ::testing::Test {
 protected:
  void add(std::int64_t tokens, std::array<float, 2> local) {
    documents_.add(
        tokens, [](int, int, int c) { return c == 0 ? 1.0f : 0.0f; },
        [](int, int b) {
          return BlockStats{b == 1 ? 0.1f : 0.9f, b == 2 ? 0.01f : 0.5f, b * 16};
        },
        [local](int, int c) { return c < 2 ? local[static_cast<std::size_t>(c)] : 0.0f; });
  }
  Result<SamkvScores> scores(const SamkvScoreOptions& options, std::size_t asked = 1) {
    in_ = documents_.input();
    question_.assign(asked, 1);
    in_.question = question_;
    std::vector<float> query(16);
    query[0] = query[8] = 1;
    pass_ = documents_.question(query);
    in_.query_pass = &pass_;
    return samkv_scores(in_, options);
  }
  Documents documents_{SketchShape{}};
  SelectionInput in_;
  QueryPassResult pass_;
  std::vector<std::int32_t> question_;
};

// score_frame: keys of one direction score alike without positions, and by the angle between them
// and the question with positions.
TEST_F(FrameTest, RawScoresAreFreeOfPositionsAndRotatedOnesAreNot) {
  add(160, {0, 0});
  const auto raw = scores({.bias = false, .frame = SamkvScoreOptions::Frame::kRaw}),
             rotated = scores({.bias = false});
  ASSERT_TRUE(raw.ok() && rotated.ok());
  // The mean of keys at 16 angles, one radian apart, in their middle's frame.
  double mean = 0;
  for (int t = 0; t < 16; ++t) mean += std::cos(t - 7.0) / 16;
  const std::int64_t distance = pass_.last_position - pass_.context_position[0];
  for (std::size_t b = 0; b < 10; ++b) {
    EXPECT_NEAR(raw->documents[0].score[1][b], mean, 0.01) << b;
    double want = 0;
    for (std::size_t t = 0; t < 16; ++t)
      want += std::cos(static_cast<double>(distance) - static_cast<double>(16 * b + t)) / 16;
    EXPECT_NEAR(rotated->documents[0].score[1][b], want, 0.01) << b;
  }
}

// bias_frame=rotated compares means of rows that were turned by their positions.
TEST_F(FrameTest, TheBiasIsComparedBeforeOrBehindTheRotation) {
  add(20, {1, 0});  // two blocks, so the local query is the mean of all 20 rows
  add(40, {0, 1});  // the last two of three blocks: rows 16 to 39
  const auto weights = [&](BiasFrame frame, std::size_t asked) {
    const auto s = scores({.bias_frame = frame}, asked);
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return std::vector{s->documents[0].bias_weight, s->documents[1].bias_weight};
  };
  const auto raw = weights(BiasFrame::kRaw, 3);
  EXPECT_NEAR(raw[0], 1, 0.02);
  EXPECT_NEAR(raw[1], 0, 0.02);
  for (const std::size_t asked : {std::size_t{1}, std::size_t{3}}) {
    const auto rotated = weights(BiasFrame::kRotated, asked);
    // The mean of equally spaced turns points to the middle one.
    const double middle = static_cast<double>(pass_.last_position) -
                          (static_cast<double>(asked) - 1) / 2;
    EXPECT_NEAR(rotated[0], std::fabs(std::cos(middle - 9.5)), 0.02) << asked;
    EXPECT_NEAR(rotated[1], std::fabs(std::sin(middle - 27.5)), 0.02) << asked;
  }
}

// extremes=question: s_max and s_min are the largest and the smallest middle score, whatever the
// document's statistics say.
TEST_F(SamkvSelectorTest, ExtremesOfTheQuestionAreItsBestAndWorstMiddleBlock) {
  documents_.add(
      160,
      [](int, int b, int c) {
        if (c != kChannel) return 0.0f;
        return b == 6 ? 4.0f : b == 3 ? 0.0f : b >= 1 && b < 8 ? 2.0f : 1.0f;  // anchors: 1
      },
      [](int, int b) {
        // The statistics name block 1 and block 2, which score alike.
        return BlockStats{b == 1 ? 0.1f : 0.9f, b == 2 ? 0.01f : 0.5f, b * 16};
      },
      [](int, int) { return 0.0f; });
  EXPECT_EQ(select().contexts[0].keep_share, 0);
  const Selection s = select(options_of({{"extremes", "question"}}));
  EXPECT_NEAR(s.contexts[0].keep_share.value(), 0.75, 0.01);  // (4 - 1) / (4 - 0)
  EXPECT_EQ(s.kept(0, 0).size(), 3u + 6u);                    // ceil(0.75 * 7)
}

// anchors=by_length: documents below 12 blocks keep their first block alone.
TEST_F(SamkvSelectorTest, ShortDocumentsMayKeepOneAnchor) {
  add_document({{4, 1, 0}, {4, 1, 0}}, 11);
  add_document({{4, 1, 0}, {4, 1, 0}}, 12);
  const auto kept_by = [&](const char* anchors) {
    const Selection s = select(options_of({{"select", "off"}, {"anchors", anchors}}));
    EXPECT_TRUE(s.anchors.has_value()) << anchors;
    return std::pair(kept(s, 0, 0), kept(s, 0, 1));
  };
  EXPECT_EQ(kept_by("by_length"), std::pair(Blocks({0}), Blocks({0, 10, 11})));
  EXPECT_EQ(kept_by("published"), std::pair(Blocks({0, 9, 10}), Blocks({0, 10, 11})));
  EXPECT_EQ(kept_by("first"), std::pair(Blocks({0}), Blocks({0})));
}

/// Ten contexts of 20 blocks, of which some continue one another.
class ChunksTest : public SamkvSelectorTest {
 protected:
  ChunksTest() {
    for (int i = 0; i < 10; ++i) add_document({{4, 1, 0}, {4, 5, 0}});
    contexts_ = documents_.contexts();
    for (const std::size_t i : {1u, 2u, 3u, 4u, 6u, 7u, 8u, 9u}) contexts_[i].continues = true;
  }
  Selection select_chunks(const PlugOptions& options) {
    SelectionInput in = documents_.input();
    in.contexts = contexts_;
    std::vector<float> query(16);
    query[kChannel] = query[8 + kChannel] = 1;
    const QueryPassResult pass = documents_.question(query);
    in.query_pass = &pass;
    auto s = (*selectors().make("samkv", options))->select(in);
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return s.ok() ? std::move(*s) : Selection();
  }
  static std::size_t count(const Selection& s) {
    std::size_t n = 0;
    for (std::int32_t i = 0; i < 10; ++i) n += s.kept(0, i).size();
    return n;
  }
  std::vector<SelectableContext> contexts_;
};

// Two documents of five chunks: three anchors each, and D = 2.
TEST_F(ChunksTest, AnchorsShareAndDBelongToWholeDocuments) {
  const Selection s = select_chunks({});
  EXPECT_EQ((*s.anchors)[0], (Blocks{0}));
  EXPECT_EQ((*s.anchors)[2], Blocks{});
  EXPECT_EQ((*s.anchors)[4], (Blocks{18, 19}));
  EXPECT_EQ((*s.anchors)[5], (Blocks{0}));
  // P of 97 middle blocks in each document, and half of both stays.
  const auto candidates = static_cast<std::size_t>(std::ceil(*s.contexts[0].keep_share * 97));
  EXPECT_EQ(count(s), 6u + candidates);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(s.contexts[i].keep_share.value(), 0.375, 0.01);
  // Each chunk by itself: three anchors, D = 10.
  EXPECT_EQ(count(select_chunks(options_of({{"contexts", "chunks"}}))), 30u + 7u);
  for (auto& c : contexts_) c.continues = false;
  EXPECT_EQ(count(select_chunks({})), 30u + 7u);
}

TEST_F(ChunksTest, TheLastTwoBlocksOfADocumentMayLieInTwoChunks) {
  const std::vector<SelectableContext> chunks = {
      {.num_tokens = 32, .num_blocks = 2},
      {.num_tokens = 16, .num_blocks = 1, .continues = true},
      {.num_tokens = 16, .num_blocks = 1}};
  EXPECT_EQ(documents_of(chunks), (Blocks{0, 0, 1}));
  const auto anchors = blocks_of_documents(chunks, true, anchor_blocks);
  EXPECT_EQ(anchors, (Selection::ContextBlocks{{0, 1}, {0}, {0}}));
}

// A document's tail bends the queries of other documents, not of its own chunks.
TEST(SamkvChunksTest, ChunksOfADocumentShareItsLocalQuery) {
  Documents docs({.num_layers = 1,
                  .num_heads = 1,
                  .num_kv_heads = 1,
                  .head_dim = 8,
                  .rotary_dim = 2,
                  .block_tokens = 16});
  const auto add = [&](float local) {
    docs.add(
        160, [](int, int b, int c) { return c == 4 ? static_cast<float>(b) : 0.0f; },
        [](int, int b) {
          return BlockStats{0.5f, 0.5f, b * 16};
        },
        [local](int, int c) { return c == 4 ? local : 0.0f; });
  };
  add(100);  // a chunk in the middle of the first document: its tail counts for nothing
  add(2);
  add(3);
  std::vector<SelectableContext> contexts = docs.contexts();
  contexts[1].continues = true;
  SelectionInput in = docs.input();
  in.contexts = contexts;
  in.stable_layers = {0, 0};
  std::vector<float> query(8);
  query[4] = 1;
  const QueryPassResult pass = docs.question(query);
  in.query_pass = &pass;
  const auto s = samkv_scores(in, {});
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->num_documents(), 2);
  // Every cosine is 1: 1 + 3 in the first document's chunks, 1 + 2 in the second.
  EXPECT_NEAR(s->documents[0].score[0][5], 4 * 5, 0.2);
  EXPECT_NEAR(s->documents[1].score[0][5], 4 * 5, 0.2);
  EXPECT_NEAR(s->documents[2].score[0][5], 3 * 5, 0.2);
}

}  // namespace
}  // namespace quire::testing
