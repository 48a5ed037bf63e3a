/// The embedded model answers the bundled sample questions over the sample corpus through the whole
/// pipeline.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <map>

#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

std::vector<json::object> read_lines(const fs::path& path) {
  std::vector<json::object> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(json::parse(line).as_object());
  }
  return lines;
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \n"), last = text.find_last_not_of(" \n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

TEST(SampleTest, QuestionsAreAnsweredUnderTheStrategiesTheyNameAndExactEqualsRecompute) {
  const fs::path sample = demo_model() / "sample";
  if (!fs::exists(sample / "questions.jsonl")) GTEST_SKIP() << "no sample at " << sample;
  TempFolder folder;
  auto store = open_test_store(folder.path() / "store");
  auto engine = make_test_engine(demo_model(), *store,
                                 [](EngineOptions& o) { o.weights = "auto"; });
  std::map<std::string, Doc> docs;
  for (const json::object& d : read_lines(sample / "corpus.jsonl")) {
    const std::string id(d.at("id").as_string());
    auto tokens = engine->prompt_format().document(d.at("title").as_string(),
                                                   d.at("text").as_string());
    ASSERT_TRUE(tokens.ok());
    docs[id] = {id, tokens->ids, ingest(*engine, *store, id, tokens->ids)};
  }
  int questions = 0, reuse_right = 0, reuse_expected = 0;
  for (const json::object& q : read_lines(sample / "questions.jsonl")) {
    const std::string question(q.at("question").as_string());
    std::vector<Doc> chosen;
    for (const auto& id : q.at("document_ids").as_array())
      chosen.push_back(docs.at(std::string(id.as_string())));
    std::map<std::string, std::string> answers;
    for (const std::string strategy : {"recompute", "exact", "reuse"}) {
      auto request = make_request(*engine, chosen, *engine->prompt_format().suffix(question),
                                  strategy);
      request.sampling.ignore_eos = false;
      request.sampling.max_tokens = 32;
      const Outcome o = run_query(*engine, request);
      ASSERT_TRUE(o.status.ok()) << o.status.to_string();
      expect_fates_sum(o.plan);
      answers[strategy] = trimmed(o.text);
      if (strategy == "reuse") {
        EXPECT_EQ(o.plan.fates.reused, o.plan.document_tokens + o.stats.shared_tokens);
      }
    }
    EXPECT_EQ(answers["exact"], answers["recompute"]) << question;
    const auto right = [&q](const std::string& answer) {
      const auto& good = q.at("answers").as_array();
      return std::any_of(good.begin(), good.end(),
                         [&](const json::value& a) { return a.as_string() == answer; });
    };
    for (const auto& strategy : q.at("right_under").as_array()) {
      EXPECT_TRUE(right(answers[std::string(strategy.as_string())]))
          << question << " under " << strategy << ": "
          << answers[std::string(strategy.as_string())];
      reuse_expected += strategy.as_string() == "reuse";
    }
    ++questions;
    reuse_right += right(answers["reuse"]);
  }
  EXPECT_GE(questions, 6);
  RecordProperty("reuse_right", reuse_right);
  std::printf("%d questions, reuse answers %d right (%d said to be)\n", questions, reuse_right,
              reuse_expected);
  engine->stop(std::chrono::seconds(5));
}

}  // namespace
}  // namespace quire::testing
