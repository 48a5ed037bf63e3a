#include "cachestore/expiry_queue.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Names = std::vector<std::string>;

TEST(ExpiryQueue, GivesWhatIsDueEarliestFirst) {
  ExpiryQueue q;
  q.set("c", 30);
  q.set("a", 10);
  q.set("b", 20);
  q.set("never", std::nullopt);
  EXPECT_EQ(q.size(), 3u);
  EXPECT_TRUE(q.contains("a"));
  EXPECT_FALSE(q.contains("never"));
  EXPECT_EQ(q.due(9, 10), Names{});
  EXPECT_EQ(q.due(10, 10), Names{"a"});
  EXPECT_EQ(q.due(25, 10), (Names{"a", "b"}));
  EXPECT_EQ(q.due(99, 2), (Names{"a", "b"}));
}

TEST(ExpiryQueue, ADocumentHasOneTime) {
  ExpiryQueue q;
  q.set("a", 10);
  q.set("a", 50);
  EXPECT_EQ(q.due(20, 10), Names{});
  EXPECT_EQ(q.due(50, 10), Names{"a"});
  q.set("a", 5);
  q.set("a", 5);
  EXPECT_EQ(q.size(), 1u);
  EXPECT_EQ(q.due(5, 10), Names{"a"});
  q.set("a", std::nullopt);
  q.set("a", std::nullopt);
  EXPECT_EQ(q.size(), 0u);
}

}  // namespace
}  // namespace quire
