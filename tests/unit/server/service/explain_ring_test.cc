#include "server/service/explain_ring.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::shared_ptr<const QueryRecord> record(const std::string& ns, const std::string& id) {
  auto r = std::make_shared<QueryRecord>();
  r->ns = ns;
  r->id = id;
  return r;
}

TEST(ExplainRing, KeepsTheLastOnesOfEachNamespaceApart) {
  ExplainRing ring(3);
  for (const auto* id : {"1", "2", "3", "4"}) ring.add(record("a", id));
  EXPECT_EQ(ring.find("a", "1"), nullptr);
  EXPECT_NE(ring.find("a", "2"), nullptr);
  EXPECT_EQ(ring.find("b", "2"), nullptr);
  ring.set_capacity(1);
  EXPECT_EQ(ring.find("a", "3"), nullptr);
  EXPECT_NE(ring.find("a", "4"), nullptr);
}

TEST(ExplainRing, PagesBothWays) {
  ExplainRing ring(100);
  for (int i = 0; i < 5; ++i) {
    ring.add(record("a", "a" + std::to_string(i)));
    ring.add(record("b", "b" + std::to_string(i)));
  }
  auto page = ring.list("a", "", 2, true);
  ASSERT_EQ(page.records.size(), 2u);
  EXPECT_EQ(page.records[0]->id, "a4");
  EXPECT_TRUE(page.has_more);
  page = ring.list("a", "a1", 10, true);
  ASSERT_EQ(page.records.size(), 1u);
  EXPECT_EQ(page.records[0]->id, "a0");
  EXPECT_FALSE(page.has_more);
  EXPECT_FALSE(ring.list("a", "gone", 10, true).after_known);
  EXPECT_EQ(ring.list("b", "b0", 10, false).records.size(), 4u);
}

}  // namespace
}  // namespace quire
