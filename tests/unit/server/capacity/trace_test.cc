#include "server/capacity/trace.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/model_files.h"

namespace quire::capacity {
namespace {

constexpr const char* kLine =
    R"({"time":2.5,"documents":[{"key":"handbook","tokens":900},{"key":"faq","tokens":40}],)"
    R"("question_tokens":12,"answer_tokens":30})";

/// Parses lines with one parser and returns the last request.
Result<std::optional<TraceRequest>> last_of(const std::vector<std::string>& lines) {
  TraceParser parser;
  Result<std::optional<TraceRequest>> out = std::optional<TraceRequest>();
  for (const std::string& line : lines) {
    out = parser.parse(line);
    if (!out.ok()) return out;
  }
  return out;
}

TEST(Trace, ReadsAQuestionOfItsOwnForm) {
  const auto r = last_of({kLine});
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ((*r)->seconds, 2.5);
  ASSERT_EQ((*r)->contexts.size(), 2u);
  EXPECT_EQ((*r)->contexts[0].tokens, 900u);
  EXPECT_NE((*r)->contexts[0].key, (*r)->contexts[1].key);
  EXPECT_EQ((*r)->question_tokens, 12u);
  EXPECT_EQ((*r)->answer_tokens, 30u);
  EXPECT_NE((*r)->affinity, 0u);
}

TEST(Trace, AffinityIsThatOfTheSetUnlessGiven) {
  const std::string a = R"({"key":"a","tokens":1})", b = R"({"key":"b","tokens":1})";
  const auto line = [](const std::string& documents, const std::string& more) {
    return R"({"time":0,"question_tokens":1,"documents":[)" + documents + "]" + more + "}";
  };
  const auto affinity = [&](const std::string& text) { return (*last_of({text}))->affinity; };
  EXPECT_EQ(affinity(line(a + "," + b, "")), affinity(line(b + "," + a, "")));
  EXPECT_EQ(affinity(line(a + "," + a, "")), affinity(line(a, "")));
  EXPECT_NE(affinity(line(a, "")), affinity(line(b, "")));
  EXPECT_EQ(affinity(line(a, R"(,"affinity":"x")")), affinity(line(b, R"(,"affinity":"x")")));
  EXPECT_EQ(affinity(line("", "")), 0u);
}

TEST(Trace, NamespacesDoNotShareContexts) {
  const auto key = [](const std::string& ns) {
    return (*last_of({R"({"time":0,"question_tokens":1,"namespace":")" + ns +
                      R"(","documents":[{"key":"a","tokens":1}]})"}))
        ->contexts[0]
        .key;
  };
  EXPECT_NE(key("team-a"), key("team-b"));
  EXPECT_EQ(key("default"), key(""));
}

TEST(Trace, WhatIsWrittenIsReadAsTheSame) {
  const auto first = last_of({kLine});
  const auto again = last_of({trace_json(**first)});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(**again, **first);
}

TEST(Trace, ReadsBlocksOfMooncakeAsContexts) {
  const auto r = last_of(
      {R"({"timestamp":1500,"input_length":1300,"output_length":0,"hash_ids":[7,8,9]})"});
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ((*r)->seconds, 1.5);
  ASSERT_EQ((*r)->contexts.size(), 2u);  // the third block is the question
  EXPECT_EQ((*r)->contexts[0].tokens, 512u);
  EXPECT_EQ((*r)->question_tokens, 1300u - 1024);
  EXPECT_EQ((*r)->answer_tokens, 1u);
}

TEST(Trace, AConversationOfMooncakeStaysTogether) {
  TraceParser parser;
  const auto affinity = [&](const std::string& ids, int tokens) {
    return (*parser.parse(R"({"timestamp":0,"input_length":)" + std::to_string(tokens) +
                          R"(,"output_length":1,"hash_ids":[)" + ids + "]}"))
        ->affinity;
  };
  const auto first = affinity("0,1,2", 1500), other = affinity("0,3", 900);
  EXPECT_NE(first, other) << "they share the system prompt only";
  EXPECT_EQ(affinity("0,1,4,5", 2000), first);
  EXPECT_EQ(affinity("0,3,6", 1500), other);
}

TEST(Trace, ReadsTheServicesLog) {
  TraceParser parser;
  const auto skipped = parser.parse(R"({"ts":"2025-03-01T10:00:00.000Z","msg":"ready"})");
  ASSERT_TRUE(skipped.ok());
  EXPECT_FALSE(*skipped);
  const auto r = parser.parse(
      R"({"ts":"2025-03-01T10:00:02.000Z","msg":"request","ms":500,"prompt_tokens":600,)"
      R"("completion_tokens":7,"contexts":"00c0ffee00c0ffee:512 0123456789abcdef:60",)"
      R"("affinity":1234567890123456})");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ASSERT_TRUE(*r);
  EXPECT_EQ(parser.form(), TraceForm::kLog);
  ASSERT_EQ((*r)->contexts.size(), 2u);
  EXPECT_EQ((*r)->contexts[1].key, 0x0123456789abcdefu);
  EXPECT_EQ((*r)->question_tokens, 28u);
  EXPECT_EQ((*r)->answer_tokens, 7u);
  EXPECT_EQ((*r)->affinity, 0x1234567890123456u);
  const auto bare = parser.parse(
      R"({"ts":"2025-03-01T10:00:03Z","msg":"request","ms":1,"prompt_tokens":9,"contexts":"none"})");
  ASSERT_TRUE(bare.ok() && *bare);
  EXPECT_TRUE((*bare)->contexts.empty());
  EXPECT_NEAR((*bare)->seconds - (*r)->seconds, 1.499, 1e-6);
}

TEST(Trace, ErrorsNameTheLineAndTheField) {
  const auto expect = [](const std::vector<std::string>& lines, const std::string& field,
                         const std::string& part) {
    const auto r = last_of(lines);
    ASSERT_FALSE(r.ok()) << lines.back();
    EXPECT_EQ(r.status().field(), field) << r.status().message();
    const std::string where = "line " + std::to_string(lines.size()) + ": ";
    EXPECT_EQ(r.status().message().substr(0, where.size()), where);
    EXPECT_NE(r.status().message().find(part), std::string::npos) << r.status().message();
  };
  expect({"nonsense"}, "", "line");
  expect({"[1]"}, "", "object");
  expect({R"({"a":1})"}, "documents", "Mooncake");
  expect({kLine, "", R"({"time":1,"question_tokens":1})"}, "documents", "documents");
  expect({R"({"time":-1,"question_tokens":1,"documents":[]})"}, "time", "time");
  expect({R"({"time":1,"question_tokens":0,"documents":[]})"}, "question_tokens", "0");
  expect(
      {kLine, R"({"time":1,"question_tokens":1,"documents":[{"key":"a","tokens":1},{"key":"b"}]})"},
      "documents[1].tokens", "tokens");
  expect({R"({"time":1,"question_tokens":1,"documents":[],"qestion":1})"}, "qestion", "qestion");
  expect({R"({"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]})"}, "hash_ids",
         "2 blocks");
  expect({R"({"timestamp":0,"input_length":6,"output_length":1,"hash_ids":["x"]})"}, "hash_ids",
         "whole numbers");
  expect({R"({"msg":"request","ts":"yesterday","ms":1,"prompt_tokens":1,"contexts":"none"})"}, "ts",
         "yesterday");
  expect({R"({"msg":"request","ts":"2025-03-01T10:00:03Z","ms":1,"prompt_tokens":1,)"
          R"("contexts":"xyz:1"})"},
         "contexts", "hexadecimal");
}

TEST(Trace, AFileMayBeUnsortedAndIsReadWhole) {
  const testing::TempFolder folder;
  const std::string path = folder.path() / "trace.jsonl";
  std::ofstream(path) << R"({"time":9,"question_tokens":1,"documents":[{"key":"b","tokens":5}]})"
                      << "\n\n"
                      << R"({"time":5,"question_tokens":1,"documents":[{"key":"a","tokens":3}]})"
                      << "\n";
  auto requests = read_trace(path);
  ASSERT_TRUE(requests.ok()) << requests.status().to_string();
  const Trace trace(std::move(*requests));
  ASSERT_EQ(trace.entries().size(), 2u);
  EXPECT_EQ(trace.entries()[0].seconds, 0);
  EXPECT_EQ(trace.contexts(trace.entries()[0])->tokens, 3u);
  EXPECT_EQ(trace.entries()[1].seconds, 4);
  EXPECT_EQ(trace.period(), 8);
  EXPECT_EQ(trace.distinct_contexts(), 2u);
  EXPECT_EQ(trace.context_tokens(), 8u);
}

TEST(Trace, AFileWithoutQuestionsIsRefused) {
  const testing::TempFolder folder;
  const std::string path = folder.path() / "log";
  EXPECT_EQ(read_trace(path).code(), Code::kNotFound);
  std::ofstream(path) << R"({"ts":"2025-03-01T10:00:00.000Z","msg":"ready"})"
                      << "\n";
  const auto r = read_trace(path);
  ASSERT_EQ(r.code(), Code::kInvalidArgument);
  EXPECT_NE(r.status().message().find("log.contexts"), std::string::npos);
  std::ofstream(path) << kLine << "\n{";
  EXPECT_NE(read_trace(path).status().message().find("log: line 2: "), std::string::npos);
}

TEST(CapacityTrace, AMissingFileIsSaidToBeTheTrace) {
  const auto read = read_trace("/nonexistent/trace.jsonl");
  ASSERT_EQ(read.code(), Code::kNotFound);
  EXPECT_EQ(read.status().field(), "trace");
}

}  // namespace
}  // namespace quire::capacity
