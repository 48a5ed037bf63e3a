// RULER's tasks have the right length, answers that are in the text, and equal results for equal
// seeds.
#include "fidelity/ruler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "fidelity/score.h"
#include "fidelity/suite_reader.h"

namespace quire {
namespace {

/// Counts words, each of which is a token here.
Result<std::int64_t> count_words(const SuiteRecord& r) {
  std::int64_t n = 0;
  const auto add = [&n](const std::string& text) {
    bool in = false;
    for (const char c : text) {
      const bool space = c == ' ' || c == '\n';
      if (!space && !in) ++n;
      in = !space;
    }
  };
  for (const auto& d : *r.documents) add(d.text);
  add(r.question);
  return n;
}

Suite source() {
  auto s = read_suite(std::string(QUIRE_SOURCE_DIR) + "/models/demo/encyclopedia.jsonl");
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  return s.ok() ? std::move(*s) : Suite();
}

TEST(Ruler, ThirteenTasksOfTheAskedLength) {
  const Suite from = source();
  RulerOptions o;
  o.length_tokens = 2000;
  o.per_task = 3;
  const auto suite = make_ruler(from, o, count_words);
  ASSERT_TRUE(suite.ok()) << suite.status().to_string();
  EXPECT_TRUE(suite->skipped.empty()) << suite->skipped.front().reason;
  std::map<std::string, int> counts;
  for (const SuiteRecord& r : suite->records) {
    ++counts[r.kind];
    const auto n = *count_words(r) + r.max_tokens;
    EXPECT_LE(n, 2000) << r.kind;
    EXPECT_GE(n, 1700) << r.kind;
    if (r.kind.starts_with("qa")) {
      EXPECT_EQ(r.rule, ScoreRule::kRulerAny);
      continue;
    }
    std::string text;
    for (const auto& d : *r.documents) text += d.text;
    // A repetition of the whole text contains every answer.
    EXPECT_EQ(ruler_match_all(text, r.answers), 1) << r.kind;
  }
  EXPECT_EQ(counts.size(), 13u);
  for (const auto& [task, n] : counts) EXPECT_EQ(n, 3) << task;
}

TEST(Ruler, NumbersOfAnswersAreThoseOfThePublication) {
  RulerOptions o;
  o.length_tokens = 1500;
  o.per_task = 1;
  const auto suite = make_ruler(source(), o, count_words);
  ASSERT_TRUE(suite.ok());
  const std::map<std::string, std::size_t> expected = {{"niah_single_1", 1},
                                                       {"niah_multikey_3", 1},
                                                       {"niah_multivalue", 4},
                                                       {"niah_multiquery", 4},
                                                       {"vt", 5},
                                                       {"cwe", 10},
                                                       {"fwe", 3}};
  for (const SuiteRecord& r : suite->records) {
    const auto found = expected.find(r.kind);
    if (found == expected.end()) continue;
    EXPECT_EQ(std::set<std::string>(r.answers.begin(), r.answers.end()).size(), found->second)
        << r.kind;
  }
}

TEST(Ruler, FrequentWordsAreTheMostFrequentBehindTheDots) {
  RulerOptions o;
  o.length_tokens = 1200;
  o.per_task = 2;
  const auto suite = make_ruler(source(), o, count_words);
  ASSERT_TRUE(suite.ok());
  for (const SuiteRecord& r : suite->records) {
    if (r.kind != "fwe") continue;
    std::map<std::string, int> counts;
    const std::string& text = r.documents->front().text;
    std::string word;
    for (std::size_t i = text.find('\n') + 1; i <= text.size(); ++i) {
      if (i < text.size() && text[i] != ' ')
        word += text[i];
      else if (!word.empty()) {
        if (word != "....") ++counts[word];
        word.clear();
      }
    }
    int least = 1 << 30;
    for (const auto& a : r.answers) least = std::min(least, counts[a]);
    for (const auto& [w, n] : counts) {
      const bool asked = std::find(r.answers.begin(), r.answers.end(), w) != r.answers.end();
      EXPECT_TRUE(asked || n < least) << w;
    }
  }
}

TEST(Ruler, RepeatableAndSeeded) {
  const Suite from = source();
  RulerOptions o;
  o.length_tokens = 600;
  o.per_task = 1;
  const auto a = make_ruler(from, o, count_words), b = make_ruler(from, o, count_words);
  o.seed = 2;
  const auto c = make_ruler(from, o, count_words);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(a->hash(), b->hash());
  EXPECT_NE(a->hash(), c->hash());
}

TEST(Ruler, SupportStaysThatOfTheQuestionAmongOtherPassages) {
  // Every record calls its documents p[0], p[1] and p[2], as MuSiQue's files do.
  Suite from;
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    SuiteRecord q;
    q.documents = std::make_shared<const std::vector<SuiteDocument>>(std::vector<SuiteDocument>{
        {"p[0]", "A" + n, "The mill of " + n + " is old. It stands at a river."},
        {"p[1]", "B" + n, "The weaver of " + n + " built it. His name was Tom" + n + "."},
        {"p[2]", "C" + n, "Nobody lives in " + n + " now. The fields are empty."}});
    q.question = "Who built the mill of " + n + "?";
    q.answers = {"Tom" + n};
    q.kind = "hops";
    q.supporting_ids = {"p[0]", "p[1]"};
    q.support = {{0, 0, 5}, {1, 4, 10}};
    from.records.push_back(std::move(q));
  }
  RulerOptions o;
  o.length_tokens = 400;
  o.per_task = 10;
  const auto suite = make_ruler(from, o, count_words);
  ASSERT_TRUE(suite.ok()) << suite.status().to_string();
  int asked = 0;
  for (const SuiteRecord& r : suite->records) {
    if (r.kind != "qa_2") continue;
    ++asked;
    const auto& documents = *r.documents;
    ASSERT_GT(documents.size(), 10u);
    const std::string n = r.answers.at(0).substr(3);
    ASSERT_EQ(r.support.size(), 2u);
    EXPECT_EQ(documents.at(r.support[0].document).title, "A" + n);
    EXPECT_EQ(documents.at(r.support[1].document).title, "B" + n);
    std::set<std::string> ids;
    for (const SuiteDocument& d : documents) {
      EXPECT_TRUE(ids.insert(d.id).second) << d.id;
      const bool supports = std::ranges::count(r.supporting_ids, d.id) > 0;
      EXPECT_EQ(supports, d.title == "A" + n || d.title == "B" + n) << d.title;
    }
  }
  EXPECT_EQ(asked, 10);
}

TEST(Ruler, WhatCannotBeAskedIsSkippedWithAReason) {
  RulerOptions o;
  o.length_tokens = 4096;
  o.window_tokens = 2048;
  const auto suite = make_ruler(source(), o, count_words);
  ASSERT_TRUE(suite.ok());
  EXPECT_TRUE(suite->records.empty());
  ASSERT_EQ(suite->skipped.size(), 13u);
  EXPECT_NE(suite->skipped[0].reason.find("2048"), std::string::npos);
  o.length_tokens = 100;
  EXPECT_FALSE(make_ruler(source(), o, count_words).ok());
  o.length_tokens = 512;
  o.window_tokens = 0;
  EXPECT_FALSE(make_ruler(Suite(), o, count_words).ok());
}

}  // namespace
}  // namespace quire
