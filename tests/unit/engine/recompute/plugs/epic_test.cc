// EPIC's LegoLink recomputes k tokens of every document but the first.
#include "tests/support/harness/recompute_harness.h"

namespace quire::testing {
namespace {

class EpicTest : public ::testing::Test {
 protected:
  std::mt19937 rng_{4};
  std::unique_ptr<Recomputer> plug_ = std::move(*recomputers().make("epic"));
  Bed bed_{family_model(families()[0]), random_docs(rng_, {0, 40, 50, 7, 33})};

  std::vector<std::size_t> counts(std::optional<double> ratio,
                                  std::map<std::string, std::string, std::less<>> given = {}) {
    RecomputeInput in = bed_.input(selection_);
    in.recompute_ratio = ratio;
    const auto plug = std::move(*recomputers().make("epic", options(std::move(given))));
    std::vector<std::size_t> out;
    for (const Ids& ids : plug->planned_tokens(in)) {
      for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], static_cast<std::int32_t>(i));
      out.push_back(ids.size());
    }
    return out;
  }
  Selection selection_ = bed_.everything();
};

TEST_F(EpicTest, OneKServesAllDocumentsButTheFirst) {
  using Counts = std::vector<std::size_t>;
  EXPECT_EQ(counts({}), (Counts{0, 0, 16, 7, 16}));
  EXPECT_EQ(counts({}, {{"k", "32"}}), (Counts{0, 0, 32, 7, 32}));
  EXPECT_EQ(counts({}, {{"k", "0"}}), (Counts{0, 0, 0, 0, 0}));
  EXPECT_EQ(counts(0.9, {{"k", "1"}}), (Counts{0, 0, 1, 1, 1})) << "the named option decides";
  // A ratio counts all 130 tokens, and the smallest k that reaches it is used.
  EXPECT_EQ(counts(0.15), (Counts{0, 0, 7, 7, 7}));
  EXPECT_EQ(counts(0.2), (Counts{0, 0, 10, 7, 10}));
  EXPECT_EQ(counts(0.0), (Counts{0, 0, 0, 0, 0}));
  EXPECT_EQ(counts(1.0), (Counts{0, 0, 50, 7, 33}));
}

// A large k equals a full prefill, also in chunks.
TEST_F(EpicTest, ALargeKEqualsFullPrefill) {
  for (const std::int64_t chunk : {1000, 9}) {
    const auto plug = std::move(*recomputers().make("epic", options({{"k", "64"}})));
    const auto report = bed_.recompute(*plug, selection_, chunk);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->replaced, 90 * 4);
    EXPECT_LE(difference(content(bed_.cache()), bed_.full()), 1e-5);
  }
}

TEST_F(EpicTest, OnlyTheFirstTokensChange) {
  bed_.place(selection_);
  const CacheContent stored = content(bed_.cache());
  ASSERT_TRUE(bed_.recompute(*plug_, selection_, 5));
  const CacheContent got = content(bed_.cache());
  for (std::int32_t c = 1; c < 5; ++c) {
    for (std::int32_t t = 0;
         t < static_cast<std::int32_t>(bed_.docs()[static_cast<std::size_t>(c)].size()); ++t) {
      EXPECT_EQ(got[2].at(bed_.position(c, t)) != stored[2].at(bed_.position(c, t)),
                c > 1 && t < 16)
          << c << " " << t;
    }
  }
}

}  // namespace
}  // namespace quire::testing
