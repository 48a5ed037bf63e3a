#include "engine/schedule/chunk_sizer.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(ChunkSizerTest, ShrinksUntilAChunkTakesNoLongerThanAllowed) {
  ChunkSizer sizer(512);
  // At one millisecond per row, only 16 rows fit 20 ms.
  for (int i = 0; i < 10; ++i) sizer.measured(sizer.size(), sizer.size(), 20);
  EXPECT_EQ(sizer.size(), 16);
}

TEST(ChunkSizerTest, GrowsWhileAChunkTakesLessThanHalfOfTheTime) {
  ChunkSizer sizer(512);
  for (int i = 0; i < 20; ++i) sizer.measured(sizer.size(), 0.05 * sizer.size(), 20);
  EXPECT_EQ(sizer.size(), 256);  // takes 12.8 ms, so twice as many would not fit
}

TEST(ChunkSizerTest, NeverLeavesItsBounds) {
  ChunkSizer small(128);
  for (int i = 0; i < 20; ++i) small.measured(small.size(), 0, 1);
  EXPECT_EQ(small.size(), 128);
  for (int i = 0; i < 20; ++i) small.measured(small.size(), 100, 1);
  EXPECT_EQ(small.size(), ChunkSizer::kStep);
}

TEST(ChunkSizerTest, AShortRestOfAPromptSaysNothingAboutLongerChunks) {
  ChunkSizer sizer(512);
  const auto before = sizer.size();
  sizer.measured(5, 0.1, 20);
  EXPECT_EQ(sizer.size(), before);
  sizer.measured(24, 30, 20);  // a short one that takes too long limits them all
  EXPECT_EQ(sizer.size(), 16);
}

TEST(ChunkSizerTest, SizesAreWholeSteps) {
  ChunkSizer sizer(512);
  for (const double ms : {1.0, 1.0, 30.0, 1.0, 30.0, 30.0, 1.0}) {
    sizer.measured(sizer.size(), ms, 20);
    EXPECT_EQ(sizer.size() % ChunkSizer::kStep, 0);
  }
}

}  // namespace
}  // namespace quire
