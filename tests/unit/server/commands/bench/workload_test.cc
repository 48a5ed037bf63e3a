#include "server/commands/bench/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace quire {
namespace {

BenchShape shape(BenchKind kind) {
  BenchShape s;
  s.kind = kind;
  return s;
}

TEST(BenchWorkload, TheSameSeedGivesTheSameTexts) {
  BenchShape s = shape(BenchKind::kLongDocuments);
  const Workload a = make_workload(s), b = make_workload(s);
  s.seed = 2;
  const Workload c = make_workload(s);
  ASSERT_EQ(a.documents.size(), 8u);
  for (std::size_t i = 0; i < a.documents.size(); ++i) {
    EXPECT_EQ(a.documents[i].text, b.documents[i].text);
    EXPECT_NE(a.documents[i].text, c.documents[i].text);
    EXPECT_NE(a.documents[i].id, c.documents[i].id);
    const auto spaces = std::ranges::count(a.documents[i].text, ' ');
    EXPECT_GE(spaces, 299);
    EXPECT_LE(spaces, 320);
  }
}

TEST(BenchWorkload, LongDocumentsAreAskedEquallyOften) {
  const Workload w = make_workload(shape(BenchKind::kLongDocuments));
  EXPECT_EQ(w.num_turns(), 32u);
  std::map<std::string, int> asked;
  for (const auto& session : w.sessions) {
    ASSERT_EQ(session.size(), 1u);
    ASSERT_EQ(session[0].document_ids.size(), 1u);
    ++asked[session[0].document_ids[0]];
  }
  ASSERT_EQ(asked.size(), 8u);
  for (const auto& [id, n] : asked) EXPECT_EQ(n, 4) << id;
}

TEST(BenchWorkload, NoOrderComesTwiceBeforeAllCameOnce) {
  BenchShape s = shape(BenchKind::kPermutations);
  s.documents = 3;
  s.requests = 8;
  const Workload w = make_workload(s);
  std::set<std::vector<std::string>> first;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(w.sessions[i][0].document_ids.size(), 3u);
    first.insert(w.sessions[i][0].document_ids);
  }
  EXPECT_EQ(first.size(), 6u);
  EXPECT_NE(w.sessions[6][0].document_ids, w.sessions[7][0].document_ids);
  s.documents = 64;  // more orders than can be counted
  EXPECT_EQ(make_workload(s).sessions.size(), 8u);
  s.documents = 1;
  EXPECT_EQ(make_workload(s).sessions.size(), 8u);
}

TEST(BenchWorkload, AChatHasUsersRoundsAndOneBeginning) {
  const Workload w = make_workload(shape(BenchKind::kChat));
  EXPECT_TRUE(w.documents.empty());
  EXPECT_GE(std::ranges::count(w.opening, ' '), 299);
  ASSERT_EQ(w.sessions.size(), 4u);
  for (const auto& session : w.sessions) EXPECT_EQ(session.size(), 5u);
  EXPECT_NE(w.sessions[0][0].question, w.sessions[1][0].question);
}

}  // namespace
}  // namespace quire
