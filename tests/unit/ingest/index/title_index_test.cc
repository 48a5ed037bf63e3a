#include "ingest/index/title_index.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Words = std::vector<std::string>;

TEST(TitleIndexTest, FindsWholeTitlesWordByWord) {
  TitleIndex titles;
  titles.put("a", Words{"get", "low"});
  titles.put("b", Words{"low"});
  titles.put("c", Words{"dillon", "francis"});
  const Words text = {"low", "get", "low", "by", "francis", "dillon", "dillon", "francis"};
  EXPECT_EQ(titles.named_in(text, "other"), (Words{"a", "b", "c"}));
  EXPECT_EQ(titles.named_in(text, "c"), (Words{"a", "b"})) << "a text names its own document";
  EXPECT_EQ(titles.named_in(Words{"getlow", "francis", "dillon"}, ""), Words{});
  EXPECT_EQ(titles.named_in(Words{"get"}, ""), Words{});
  EXPECT_EQ(titles.named_in({}, ""), Words{});
  EXPECT_EQ(TitleIndex().named_in(text, ""), Words{});
}

TEST(TitleIndexTest, TheLastTitleCountsAndNothingStaysOfRemovedOnes) {
  TitleIndex titles;
  titles.put("a", Words{"old", "name"});
  const std::int64_t one = titles.memory_bytes();
  EXPECT_GT(one, 0);
  titles.put("a", Words{"new", "name"});
  EXPECT_EQ(titles.memory_bytes(), one);
  EXPECT_EQ(titles.named_in(Words{"old", "name", "new", "name"}, ""), Words{"a"});
  EXPECT_EQ(titles.named_in(Words{"old", "name"}, ""), Words{});
  titles.put("a", Words{});
  EXPECT_EQ(titles.memory_bytes(), 0);
  EXPECT_EQ(titles.named_in(Words{"new", "name"}, ""), Words{});
  titles.remove("a");
  titles.put("b", Words(TitleIndex::kMostWords + 1, "long"));
  EXPECT_EQ(titles.memory_bytes(), 0) << "a sentence is no name";
}

TEST(TitleIndexTest, DocumentsOfOneTitleAreFoundTogetherUpToALimit) {
  TitleIndex titles;
  for (std::size_t i = 0; i < TitleIndex::kMostDocuments; ++i)
    titles.put("d" + std::to_string(i), Words{"report"});
  const Words text = {"report"};
  EXPECT_EQ(titles.named_in(text, "").size(), TitleIndex::kMostDocuments);
  EXPECT_EQ(titles.named_in(text, "d3"), Words{}) << "they share their name";
  titles.put("more", Words{"report"});
  EXPECT_EQ(titles.named_in(text, ""), Words{}) << "so many make it a kind of document";
  titles.remove("d0");
  EXPECT_EQ(titles.named_in(text, "").size(), TitleIndex::kMostDocuments);
}

}  // namespace
}  // namespace quire
