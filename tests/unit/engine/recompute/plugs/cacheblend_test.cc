// CacheBlend: which tokens are chosen, what they leave in the cache, and shares of zero and one.
#include <cmath>

#include "tests/support/harness/recompute_harness.h"

namespace quire::testing {
namespace {

class CacheBlendTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  std::mt19937 rng_{static_cast<std::uint32_t>(90 + GetParam())};
  std::unique_ptr<Recomputer> plug_ = std::move(*recomputers().make("cacheblend"));
  std::unique_ptr<Model> model() { return family_model(families()[GetParam()]); }

  /// Returns ||new - stored||^2 in layer 1 of every token of the contexts that are not exact. New
  /// KV of layer 1 equals that of a full prefill, because layer 0 is exact. Keys may be compared
  /// after rotation, which changes distances only by YaRN's factor.
  static std::vector<std::pair<double, std::pair<std::int32_t, std::int32_t>>> deviations(Bed& bed,
                                                                                          bool k,
                                                                                          bool v) {
    bed.place(bed.everything());
    const CacheContent stored = content(bed.cache()), full = bed.full();
    const double scale = rope_frequencies(bed.model().config().rope)->attention_scale;
    std::vector<std::pair<double, std::pair<std::int32_t, std::int32_t>>> out;
    for (std::int32_t c = 0; c < bed.num_contexts(); ++c) {
      if (bed.contexts()[static_cast<std::size_t>(c)].exact) continue;
      for (std::int32_t t = 0;
           t < static_cast<std::int32_t>(bed.docs()[static_cast<std::size_t>(c)].size()); ++t) {
        const auto& a = stored[1].at(bed.position(c, t));
        const auto& b = full[1].at(bed.position(c, t));
        double sum = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
          const bool key = i < a.size() / 2;
          if (key ? k : v)
            sum += std::pow((static_cast<double>(a[i]) - b[i]) / (key ? scale : 1), 2);
        }
        out.push_back({sum, {c, t}});
      }
    }
    return out;
  }
  static std::vector<Ids> top(
      std::vector<std::pair<double, std::pair<std::int32_t, std::int32_t>>> d, std::size_t n,
      std::size_t contexts) {
    std::stable_sort(d.begin(), d.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<Ids> out(contexts);
    for (std::size_t i = 0; i < n; ++i)
      out[static_cast<std::size_t>(d[i].second.first)].push_back(d[i].second.second);
    for (Ids& ids : out) std::sort(ids.begin(), ids.end());
    return out;
  }
};

TEST_P(CacheBlendTest, AShareOfOneEqualsFullPrefill) {
  Bed bed(model(), random_docs(rng_, {30, 25, 41}));
  for (const bool first_exact : {true, false}) {
    bed.contexts()[0].exact = first_exact;
    const auto report = bed.recompute(*plug_, bed.everything(), 19,
                                      [](RecomputeInput& in) { in.recompute_ratio = 1; });
    ASSERT_TRUE(report);
    EXPECT_EQ(report->replaced, (first_exact ? 66 : 96) * 4);
    EXPECT_LE(difference(content(bed.cache()), bed.full()), 1e-5);
  }
}

TEST_P(CacheBlendTest, AShareOfZeroAndExactDocumentsAreNoPass) {
  Bed bed(model(), random_docs(rng_, {30, 25}));
  EXPECT_FALSE(bed.recompute(*plug_, bed.everything(), 9,
                             [](RecomputeInput& in) { in.recompute_ratio = 0; }));
  Bed one(model(), random_docs(rng_, {30}));
  EXPECT_FALSE(one.recompute(*plug_, one.everything()));
  Bed none(model(), {{}, {}});
  EXPECT_FALSE(none.recompute(*plug_, none.everything()));
}

TEST_P(CacheBlendTest, TheTokensThatDeviateMostAreRecomputedAboveTheCheckLayer) {
  Bed bed(model(), random_docs(rng_, {30, 0, 45, 25}));
  const CacheContent full = bed.full();
  for (const char* deviation : {"v", "k", "kv"}) {
    const std::string by = deviation;
    const auto want = top(deviations(bed, by != "v", by != "k"), 20, 4);
    for (const char* check_rows : {"all", "chosen"}) {
      SCOPED_TRACE(by + " " + check_rows);
      bed.place(bed.everything());
      const CacheContent stored = content(bed.cache());
      std::vector<CacheContent> got;
      for (const std::int64_t chunk : {1000, 8}) {
        const auto plug = std::move(*recomputers().make(
            "cacheblend", options({{"r", "0.2"}, {"deviation", by}, {"check_rows", check_rows}})));
        const auto report = bed.recompute(*plug, bed.everything(), chunk, [](RecomputeInput& in) {
          in.recompute_ratio = 0.9;  // the named option overrides it
        });
        ASSERT_TRUE(report);
        EXPECT_EQ(report->tokens, want);
        const std::int64_t refreshed = check_rows == std::string("all") ? 2 : 1;
        EXPECT_EQ(report->replaced, 70 * refreshed + 20 * (4 - refreshed));
        EXPECT_EQ(report->projected, 70 * 2 + 20 * 4);
        got.push_back(content(bed.cache()));
      }
      EXPECT_EQ(got[0], got[1]);
      for (std::int32_t c = 0; c < 4; ++c) {
        for (std::int32_t t = 0;
             t < static_cast<std::int32_t>(bed.docs()[static_cast<std::size_t>(c)].size()); ++t) {
          const auto& w = want[static_cast<std::size_t>(c)];
          const bool chosen = std::binary_search(w.begin(), w.end(), t);
          const std::int32_t p = bed.position(c, t);
          for (std::size_t layer = 0; layer < 4; ++layer) {
            const bool refreshed = c > 0 && (chosen || layer == 0 ||
                                             (layer == 1 && check_rows == std::string("all")));
            if (layer == 0)
              EXPECT_EQ(got[0][layer].at(p), stored[layer].at(p));
            else
              EXPECT_EQ(got[0][layer].at(p) != stored[layer].at(p), refreshed)
                  << "layer " << layer << " position " << p;
          }
          if (c > 0 && (chosen || check_rows == std::string("all"))) {
            for (std::size_t i = 0; i < full[1].at(p).size(); ++i)
              EXPECT_NEAR(got[0][1].at(p)[i], full[1].at(p)[i], 1e-4);
          }
        }
      }
    }
  }
}

TEST_P(CacheBlendTest, TheShareIsOfAllDocumentTokensAndHasADefault) {
  Bed bed(model(), random_docs(rng_, {30, 45, 25}));
  const auto chosen = [&](const std::function<void(RecomputeInput&)>& edit) {
    const auto report = bed.recompute(*plug_, bed.everything(), 50, edit);
    std::size_t n = 0;
    if (report)
      for (const Ids& ids : report->tokens) n += ids.size();
    return n;
  };
  EXPECT_EQ(chosen([](RecomputeInput&) {}), 15u);
  EXPECT_EQ(chosen([](RecomputeInput& in) { in.recompute_ratio = 0.333; }), 34u);
  EXPECT_EQ(chosen([](RecomputeInput& in) { in.recompute_ratio = 0.7; }), 70u)
      << "all that are not exact";
  EXPECT_EQ(chosen([](RecomputeInput& in) { in.recompute_ratio = 0.8; }), 70u);
}

TEST_P(CacheBlendTest, ALaterCheckLayerRefreshesEverythingBelowIt) {
  Bed bed(model(), random_docs(rng_, {30, 45}));
  const CacheContent full = bed.full();
  for (const char* layer : {"2", "16"}) {  // 16 is past the last layer and means the last
    const std::size_t check = layer == std::string("2") ? 2 : 3;
    const auto plug = std::move(
        *recomputers().make("cacheblend", options({{"check_layer", layer}})));
    const auto report = bed.recompute(*plug, bed.everything(), 14);
    ASSERT_TRUE(report);
    const CacheContent got = content(bed.cache());
    const auto layers = static_cast<std::ptrdiff_t>(check) + 1;
    EXPECT_LE(
        difference({got.begin(), got.begin() + layers}, {full.begin(), full.begin() + layers}),
        1e-5);
    EXPECT_EQ(report->replaced, 45 * static_cast<std::int64_t>(check + 1) +
                                    12 * static_cast<std::int64_t>(3 - check));
  }
}

TEST_P(CacheBlendTest, WorksOnWhatASelectionKeepsInAllLayers) {
  Bed bed(model(), random_docs(rng_, {30, 45, 25}));
  const Selection selection = bed.random_selection(rng_, 0.6);
  const auto report = bed.recompute(*plug_, selection, 10);
  ASSERT_TRUE(report);
  for (std::int32_t c = 0; c < 3; ++c) {
    for (const std::int32_t t : report->tokens[static_cast<std::size_t>(c)])
      EXPECT_EQ(selection.kept_layers(c, t / Bed::kBlock), 4);
  }
}

TEST_P(CacheBlendTest, KvOfOtherTokensIsFoundOut) {
  Bed bed(model(), random_docs(rng_, {30, 45, 25}));
  Ids other = bed.docs()[1];
  std::reverse(other.begin(), other.end());
  bed.store(1, other);
  const Selection selection = bed.everything();
  bed.place(selection);
  auto pass = plug_->prepare(bed.input(selection));
  ASSERT_TRUE(pass.ok());
  Status status;
  while (status.ok() && !(*pass)->done()) status = bed.step(**pass, 11);
  EXPECT_EQ(status.code(), Code::kCorruption);
  EXPECT_EQ((*pass)->report().wrong_context, 1);
}

INSTANTIATE_TEST_SUITE_P(Families, CacheBlendTest,
                         ::testing::Range<std::size_t>(0, families().size()),
                         [](const auto& i) { return families()[i.param].name; });

}  // namespace
}  // namespace quire::testing
