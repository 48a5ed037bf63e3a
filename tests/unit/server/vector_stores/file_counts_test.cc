// Counts of a vector store's files hold until a document changes or one of them expires.
#include "server/vector_stores/file_counts.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(FileCountCache, HoldsUntilADocumentChangesOrExpires) {
  FileCountCache cache;
  cache.keep("n", "a", 7, {.bytes = 5, .completed = 2});
  cache.keep("n", "b", 7, {.failed = 1, .until_ms = 1000});
  ASSERT_TRUE(cache.find("n", "a", 7, 5000));
  EXPECT_EQ(cache.find("n", "a", 7, 5000)->completed, 2u);
  EXPECT_FALSE(cache.find("n", "a", 8, 0)) << "a document has changed";
  EXPECT_FALSE(cache.find("other", "a", 7, 0));
  EXPECT_TRUE(cache.find("n", "b", 7, 999));
  EXPECT_FALSE(cache.find("n", "b", 7, 1000)) << "one has expired";
  cache.keep("n", "a", 8, {.completed = 3});
  EXPECT_EQ(cache.find("n", "a", 8, 0)->completed, 3u);
}

TEST(FileCountCache, IsBounded) {
  FileCountCache cache;
  for (std::size_t i = 0; i <= FileCountCache::kMost; ++i)
    cache.keep("n", std::to_string(i), 1, {});
  EXPECT_FALSE(cache.find("n", "0", 1, 0));
  EXPECT_TRUE(cache.find("n", std::to_string(FileCountCache::kMost), 1, 0));
}

}  // namespace
}  // namespace quire
