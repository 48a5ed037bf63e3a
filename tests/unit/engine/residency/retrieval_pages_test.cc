#include "engine/residency/retrieval_pages.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire {
namespace {

std::vector<std::int32_t> range(std::int32_t begin, std::int32_t end) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(end - begin));
  std::iota(out.begin(), out.end(), begin);
  return out;
}

std::vector<std::pair<std::int64_t, std::int64_t>> cut(const RetrievalPages& pages) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (const RowRange& p : pages.all()) out.emplace_back(p.begin, p.end);
  return out;
}

using Cuts = std::vector<std::pair<std::int64_t, std::int64_t>>;

TEST(RetrievalPages, APageNeverHoldsTwoContexts) {
  RetrievalPages pages(16, {{3, 20}, {23, 16}});
  pages.extend(range(0, 50));
  // The parts are the prefix, 20 tokens and 16 tokens; later pages count from the last context's
  // end.
  EXPECT_EQ(cut(pages), (Cuts{{0, 3}, {3, 19}, {19, 23}, {23, 39}, {39, 50}}));
  EXPECT_EQ(pages.complete(), 4);
}

TEST(RetrievalPages, DroppedBlocksLeaveShortPagesAtTheirPlaces) {
  RetrievalPages pages(32, {{1, 96}});
  std::vector<std::int32_t> positions = {0};
  for (const int block : {0, 3, 4}) {  // the kept blocks of six, 16 tokens each
    for (const std::int32_t p : range(1 + block * 16, 17 + block * 16)) positions.push_back(p);
  }
  pages.extend(positions);
  // Tokens 0..15 are in page 0, 48..63 in page 1, and 64..79 in page 2.
  EXPECT_EQ(cut(pages), (Cuts{{0, 1}, {1, 17}, {17, 33}, {33, 49}}));
}

TEST(RetrievalPages, GrowsRowByRowAsInOneGo) {
  const std::vector<std::int32_t> positions = range(0, 75);
  RetrievalPages whole(16, {{2, 30}}), grown(16, {{2, 30}});
  whole.extend(positions);
  for (std::size_t n = 1; n <= positions.size(); ++n) {
    grown.extend(std::span(positions).first(n));
    EXPECT_EQ(grown.num_rows(), static_cast<std::int64_t>(n));
    EXPECT_GE(grown.complete(), grown.size() - 1);
  }
  EXPECT_EQ(cut(grown), cut(whole));
}

TEST(RetrievalPages, NoRowsNoPages) {
  RetrievalPages pages(16, {});
  pages.extend({});
  EXPECT_EQ(pages.size(), 0);
  EXPECT_EQ(pages.complete(), 0);
}

}  // namespace
}  // namespace quire
