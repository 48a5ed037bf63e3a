// Question files are read in every layout, including the real files beside the repository, and
// broken ones are refused.
#include "fidelity/suite_reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fidelity/suite.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::TempFolder;
using testing::write_file;

Result<Suite> from_text(const std::string& text) {
  const auto lines = lines_of(text);
  return read_suite(*lines, "q.jsonl");
}

TEST(SuiteReader, OwnLayoutSharesDocumentsOfTheLineBefore) {
  const auto s = from_text(
      "{\"documents\":[{\"id\":\"a\",\"title\":\"T\",\"text\":\"One.\"},{\"text\":\"Two.\"}],"
      "\"question\":\"Q?\",\"answers\":[\"x\",\"y\"],\"kind\":\"k\",\"supporting_ids\":[\"a\"]}\r\n"
      "\n{\"documents\":\"previous\",\"question\":\"R?\"}");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  ASSERT_EQ(s->records.size(), 2u);
  EXPECT_EQ(s->records[0].documents, s->records[1].documents);
  EXPECT_EQ((*s->records[0].documents)[1].id, "d2");
  EXPECT_EQ(s->records[0].answers.size(), 2u);
  EXPECT_EQ(s->records[0].supporting_ids, std::vector<std::string>{"a"});
  EXPECT_TRUE(s->records[1].answers.empty());
  EXPECT_EQ(s->records[1].line, 3);
  EXPECT_TRUE(s->instruction.empty());
}

TEST(SuiteReader, PublicLayouts) {
  struct Case {
    const char* text;
    std::size_t documents;
    const char *question, *answer, *kind;
  };
  const Case cases[] = {
      {R"({"_id":"1","question":"Who?","answer":"Ada","type":"bridge","context":[["A",["One."," )"
       R"(Two."]],["B",["Three."]]],"supporting_facts":[["A",0]]})",
       2, "Who?", "Ada", "bridge"},
      {R"({"id":"3hop1__1_2","question":"Who?","answer":"Ada","answer_aliases":["A."],)"
       R"("paragraphs":[{"idx":0,"title":"T","paragraph_text":"One."}]})",
       1, "Who?", "Ada", "3hop1"},
      {R"({"data":[{"title":"T","paragraphs":[{"context":"One.","qas":[{"id":"1",)"
       R"("question":"Who?","answers":[{"text":"Ada","answer_start":0},{"text":"Ada",)"
       R"("answer_start":0}]}]}]}]})",
       1, "Who?", "Ada", "squad"},
      {R"({"input":"Who?","context":"Passage 1:\nA\nOne.\nPassage 2:\nB\nTwo.","answers":["Ada"],)"
       R"("dataset":"hotpotqa"})",
       2, "Who?", "Ada", "hotpotqa"},
      {R"({"task":"2wikimqa","prompt":"Answer.\n\nPassage 1:\nA\nOne.\nPassage )"
       R"(2:\nB\nTwo.\n\nQuestion: Who?\nAnswer:","answers":["Ada"]})",
       2, "Question: Who?\nAnswer:", "Ada", "2wikimqa"},
      {R"({"ctxs":[{"title":"","text":"one"},{"title":"T","text":"two"}],"question":"Who?",)"
       R"("answers":["Ada"]})",
       2, "Who?", "Ada", "questions"},
      {R"({"input":"Some text. One of them is: 7.\nWhat is it?","outputs":["7"],"length":9})", 1,
       "What is it?", "7", "ruler"},
  };
  for (const Case& c : cases) {
    const auto s = from_text(c.text);
    ASSERT_TRUE(s.ok()) << c.text << s.status().to_string();
    ASSERT_EQ(s->records.size(), 1u) << c.text;
    const SuiteRecord& r = s->records[0];
    EXPECT_EQ(r.documents->size(), c.documents) << c.text;
    EXPECT_EQ(r.question, c.question);
    EXPECT_EQ(r.answers.front(), c.answer);
    EXPECT_EQ(r.kind, c.kind);
  }
  EXPECT_EQ((*from_text(cases[0].text)->records[0].documents)[0].text, "One. Two.");
  EXPECT_EQ((*from_text(cases[3].text)->records[0].documents)[1].text, "B\nTwo.");
  EXPECT_EQ(from_text(cases[0].text)->instruction, kAnswerInstruction);
}

TEST(SuiteReader, WhatSupportsTheAnswerIsARangeOfItsDocument) {
  const auto text_at = [](const SuiteRecord& r, std::size_t i) {
    const SuiteSupport& s = r.support[i];
    return (*r.documents)[s.document].text.substr(s.begin, s.end - s.begin);
  };
  auto s = from_text(
      R"({"question":"Who?","answer":"Ada","context":[["A",["  One. "," Two. ","Three."]],)"
      R"(["B",[""]],["C",["Four.","Five."]]],)"
      R"("supporting_facts":[["C",1],["A",1],["A",0],["A",9],["X",0],["A",0]]})");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  ASSERT_EQ(s->records[0].support.size(), 3u);
  EXPECT_EQ((*s->records[0].documents)[0].text, "One.  Two. Three.");
  EXPECT_EQ(text_at(s->records[0], 0), "One. ");
  EXPECT_EQ(text_at(s->records[0], 1), " Two. ");
  EXPECT_EQ(text_at(s->records[0], 2), "Five.");
  s = from_text(
      R"({"id":"2hop__1","question":"Who?","answer":"Ada","paragraphs":[{"title":"T",)"
      R"("paragraph_text":"One. It was Bob here. Three."},)"
      R"({"title":"U","paragraph_text":"Ada did."}],)"
      R"("question_decomposition":[{"answer":"Bob","paragraph_support_idx":0},)"
      R"({"answer":"Ada","paragraph_support_idx":1},{"answer":"Eve","paragraph_support_idx":1}]})");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  ASSERT_EQ(s->records[0].support.size(), 2u);
  EXPECT_EQ(text_at(s->records[0], 0), "It was Bob here.");
  EXPECT_EQ(text_at(s->records[0], 1), "Ada did.");
  EXPECT_EQ(s->records[0].supporting_ids, (std::vector<std::string>{"p[0]", "p[1]"}));
  s = from_text(R"({"documents":[{"id":"a","text":"x y z"}],"question":"Q",)"
                R"("support":[{"id":"a","text":"y"}]})");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(text_at(s->records[0], 0), "y");
  for (const char* wrong : {R"([{"id":"b","text":"y"}])", R"([{"id":"a","text":"q"}])",
                            R"([{"id":"a","text":""}])", R"([{"id":"a"}])", R"(["y"])"}) {
    s = from_text(
        std::string(R"({"documents":[{"id":"a","text":"x y"}],"question":"Q","support":)") + wrong +
        "}");
    EXPECT_EQ(s.status().code(), Code::kInvalidArgument) << wrong;
    EXPECT_NE(s.status().message().find("support"), std::string::npos) << s.status().message();
  }
}

TEST(SuiteReader, ARecordMayStandInAConversation) {
  const auto s = from_text(
      R"({"documents":[{"text":"a"}],"turns":[{"question":"P","answer":"p"},{"question":"Q",)"
      R"("answer":"q"}],"question":"R","answers":["r"]})");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->records[0].turns, (std::vector<SuiteTurn>{{"P", "p"}, {"Q", "q"}}));
  SuiteRecord alone = s->records[0], other = s->records[0];
  alone.turns.clear();
  other.turns[0].answer = "x";
  EXPECT_NE(record_hash(alone).hex(), record_hash(s->records[0]).hex());
  EXPECT_NE(record_hash(other).hex(), record_hash(s->records[0]).hex());
}

TEST(SuiteReader, AnArrayOfRecordsIsReadToo) {
  const auto s = from_text(
      "[\n{\"documents\":[{\"text\":\"a\"}],\"question\":\"Q\"},\n{\"documents\":[{\"text\":\"b\"}]"
      ",\"question\":\"R\"}\n]\n");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->records.size(), 2u);
}

TEST(SuiteReader, WhatIsWrongIsNamedWithItsLine) {
  const std::string good =
      "{\"documents\":[{\"text\":\"a\"}],\"question\":\"Q\",\"answers\":[\"x\"]}\n";
  struct Case {
    std::string text;
    const char* part;
  };
  const Case cases[] = {
      {good + "{\"documents\":[{\"text\":\"a\"}],\"question\":\"Q",
       "line 2: the JSON value is not finished"},
      {good + good + "{\"question\":\"Q\"}\n", "line 3: no known layout"},
      {good + "[1]\n", "line 2: a record must be an object"},
      {good + "{\"documents\":[{\"text\":5}],\"question\":\"Q\"}\n",
       "line 2: documents[0].text must be a string"},
      {good + "{\"documents\":[{\"text\":\"a\"}],\"question\":\" \"}\n",
       "line 2: question is empty"},
      {good + "{\"documents\":[],\"question\":\"Q\"}\n", "line 2: the record has no document"},
      {good + "{\"documents\":[{\"text\":\"a\"}],\"question\":\"Q\",\"answers\":\"x\"}\n",
       "line 2: answers must be an array"},
      {good + "{\"documents\":[{\"text\":\"a\"}],\"question\":\"Q\",\"answers\":[\"\"]}\n",
       "line 2: answers holds an empty answer"},
      {good + "{\"documents\":[{\"text\":\"a\"}],\"turns\":[{\"question\":\"P\"}],\"question\":"
              "\"Q\"}\n",
       "line 2: turns[0].answer is missing"},
      {good + "{\"documents\":[{\"text\":\"a\"}],\"turns\":[{\"question\":\"P\",\"answer\":\" "
              "\"}],\"question\":\"Q\"}\n",
       "line 2: turns[0].question and answer"},
      {good + "nonsense\n", "line 2: not valid JSON"},
      {good + "{\"documents\":[{\"text\":\"\xFF\"}],\"question\":\"Q\"}\n",
       "line 2: not valid JSON"},
      {"{\"documents\":\"previous\",\"question\":\"Q\"}\n", "line 1: documents is \"previous\""},
      {"{\"question\":\"Q\",\"answer\":\"x\",\"context\":[[\"T\"]]}\n",
       "line 1: context[0] must be"},
      {"[\n{\"documents\":[{\"text\":\"a\"}],\"question\":\"Q\"},\n{\"docu",
       "line 3: the JSON value is not finished"},
      {"{\"data\":[{\"paragraphs\":[{\"context\":\"c\",\"qas\":[{\"answers\":[]}]}]}]}\n",
       "line 1: data[0].paragraphs[0].qas[0].question is missing"},
      {good + "{\"question\":\"Q\",\"question\":\"R\"}\n",
       "line 2: not valid JSON at byte 26: the key \"question\" stands twice in one object"},
      {"", "holds no question"},
      {"\n \n", "holds no question"},
  };
  for (const Case& c : cases) {
    const auto s = from_text(c.text);
    ASSERT_FALSE(s.ok()) << c.text;
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.status().message().find(c.part), std::string::npos) << s.status().message();
    EXPECT_NE(s.status().message().find("q.jsonl"), std::string::npos);
  }
}

TEST(SuiteReader, LimitsHold) {
  std::string deep = "{\"documents\":" + std::string(200, '[') + std::string(200, ']') +
                     ",\"question\":\"Q\"}\n";
  EXPECT_FALSE(from_text(deep).ok());
  const std::string line =
      "{\"documents\":[{\"text\":\"abcdef\"},{\"text\":\"b\"}],\"question\":\"Q\"}\n";
  const auto lines = lines_of(line + line);
  SuiteLimits limits;
  limits.max_records = 1;
  EXPECT_FALSE(read_suite(*lines, "q", limits).ok());
  const auto few = lines_of(line);
  limits.max_documents = 1;
  EXPECT_FALSE(read_suite(*few, "q", limits).ok());
}

TEST(SuiteReader, MissingFilesFoldersAndDamagedGzip) {
  TempFolder folder;
  EXPECT_EQ(read_suite((folder.path() / "none").string()).code(), Code::kNotFound);
  EXPECT_EQ(read_suite(folder.path().string()).code(), Code::kIo);
  const auto real = std::filesystem::path(QUIRE_SHARED_DATA_DIR) / "qa/hotpotqa_train100.jsonl.gz";
  if (!std::filesystem::exists(real)) GTEST_SKIP() << real << " is not here";
  const std::string bytes = testing::read_file(real);
  write_file(folder.path() / "cut.gz", bytes.substr(0, bytes.size() / 2));
  const auto cut = read_suite((folder.path() / "cut.gz").string());
  ASSERT_FALSE(cut.ok());
  EXPECT_NE(cut.status().message().find("line"), std::string::npos) << cut.status().message();
}

TEST(SuiteReader, RealFiles) {
  const auto root = std::filesystem::path(QUIRE_SHARED_DATA_DIR);
  if (!std::filesystem::exists(root / "qa")) GTEST_SKIP() << root << " is not here";
  struct Case {
    const char* file;
    std::size_t records, documents;  ///< documents of the first record; 0: any
  };
  const Case cases[] = {{"qa/hotpotqa_train100.jsonl.gz", 100, 10},
                        {"qa/2wikimultihop_train500.jsonl.gz", 500, 10},
                        {"qa/musique_train100.jsonl.gz", 100, 20},
                        {"qa/xquad_en.json.gz", 1190, 1},
                        {"qa/cacheblend_musique_s.jsonl.gz", 150, 10},
                        {"qa/cacheblend_inputs10.jsonl", 10, 6},
                        {"qa/nq_open_oracle2655.jsonl.gz", 2655, 1},
                        {"ruler/niah_multikey_3_4096.jsonl.gz", 500, 1},
                        {"longbench/mini/hotpotqa.jsonl.gz", 13, 8},
                        {"longbench/mini/2wikimqa.jsonl.gz", 13, 10},
                        {"longbench/mini/musique.jsonl.gz", 7, 0},
                        {"longbench/full/multi_news.jsonl.gz", 200, 0},
                        {"longbench/full/multifieldqa_zh.jsonl.gz", 200, 1},
                        {"longbench/longchat_cachegen50.jsonl.gz", 50, 0}};
  for (const Case& c : cases) {
    const auto s = read_suite((root / c.file).string());
    ASSERT_TRUE(s.ok()) << c.file << ": " << s.status().to_string();
    EXPECT_EQ(s->records.size(), c.records) << c.file;
    EXPECT_TRUE(c.documents == 0 || s->records[0].documents->size() == c.documents)
        << c.file << ": " << s->records[0].documents->size();
  }
  for (const auto& entry : std::filesystem::directory_iterator(root / "longbench/mini")) {
    const auto s = read_suite(entry.path().string());
    EXPECT_TRUE(s.ok()) << entry.path() << ": " << s.status().to_string();
  }
}

TEST(SuiteReader, TheShippedSuiteIsReadable) {
  const auto s = read_suite(std::string(QUIRE_SOURCE_DIR) + "/models/demo/encyclopedia.jsonl");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_GE(s->records.size(), 300u);
  for (const auto& r : s->records) ASSERT_EQ(r.answers.size(), 1u);
}

TEST(Suite, ChoosingIsEvenPerKindAndRepeatable) {
  Suite suite;
  const auto documents = std::make_shared<const std::vector<SuiteDocument>>(
      std::vector<SuiteDocument>{{"a", "", "text"}});
  for (int i = 0; i < 60; ++i) {
    SuiteRecord r;
    r.documents = documents;
    r.question = "q" + std::to_string(i);
    r.kind = i < 50 ? "many" : "few";
    suite.records.push_back(r);
  }
  const auto picked = select_records(suite, 20, 7);
  EXPECT_EQ(picked.size(), 30u);
  EXPECT_TRUE(std::is_sorted(picked.begin(), picked.end()));
  EXPECT_EQ(picked, select_records(suite, 20, 7));
  EXPECT_NE(picked, select_records(suite, 20, 8));
  EXPECT_EQ(select_records(suite, 0, 7).size(), 60u);
  Suite other = suite;
  EXPECT_EQ(other.hash(), suite.hash());
  other.records[3].question += "?";
  EXPECT_NE(other.hash(), suite.hash());
}

TEST(Suite, LabelsOfWhatSupportsAnAnswerArePartOfARecord) {
  const auto with = [](const std::string& members) {
    const auto s = from_text(R"({"documents":[{"id":"a","text":"x"},{"id":"b","text":"y"}],)"
                             R"("question":"Q")" +
                             members + "}");
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return record_hash(s->records.at(0)).hex();
  };
  const std::string none = with(""), a = with(R"(,"supporting_ids":["a"])"),
                    b = with(R"(,"supporting_ids":["b"])");
  EXPECT_NE(none, a);
  EXPECT_NE(a, b);
  EXPECT_NE(with(R"(,"supporting_ids":["a","b"])"), a);
  EXPECT_EQ(with(R"(,"supporting_ids":["b","a"])"), with(R"(,"supporting_ids":["a","b"])"));
}

TEST(Suite, ARepeatedQuestionIsAskedOnce) {
  // Twelve lines, each of them 25 times, with documents and questions of their own.
  std::string file;
  for (int i = 0; i < 300; ++i) {
    const std::string n = std::to_string(i % 12);
    file += R"({"documents": [{"id": "x)" + std::to_string(i) + R"(", "text": "text )" + n +
            R"("}], "question": "q?", "answers": ["a"], "kind": "k"})" + "\n";
  }
  const auto s = from_text(file);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->records.size(), 300u);
  const auto distinct = distinct_records(*s);
  ASSERT_EQ(distinct.size(), 12u);
  EXPECT_EQ(distinct.front(), 0u);
  EXPECT_EQ(select_records(*s, 0, 7), distinct);
  EXPECT_EQ(select_records(*s, 5, 7).size(), 5u);
  // Another question, an earlier turn or another order of documents asks for something else.
  Suite other = *s;
  other.records.resize(1);
  for (int i = 0; i < 3; ++i) other.records.push_back(other.records.front());
  other.records[1].question = "who?";
  other.records[2].turns = {{"before?", "yes"}};
  other.records[3].documents = std::make_shared<const std::vector<SuiteDocument>>(
      std::vector<SuiteDocument>{{"x0", "text 0", ""}});
  EXPECT_EQ(distinct_records(other).size(), 4u);
}

}  // namespace
}  // namespace quire
