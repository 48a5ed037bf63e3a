// Answers cite their sources, checked against questions whose supporting documents are known.
#include <algorithm>
#include <boost/json/serialize.hpp>
#include <fstream>
#include <map>
#include <set>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace json = boost::json;

struct Question {
  std::vector<std::string> ids;  ///< documents, by the service's ids
  std::set<std::string> supporting;
  std::string text, kind;
  std::vector<std::string> answers;
};

/// Returns the characters of UTF-8 text from `begin` to `end`.
std::string characters(const std::string& text, std::int64_t begin, std::int64_t end) {
  std::string out;
  std::int64_t n = -1;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0u) != 0x80) ++n;
    if (n >= begin && n < end) out.push_back(c);
  }
  return out;
}

class CitationsTest : public ServiceTest {
 protected:
  static void post(const std::string& id, const std::string& title, const std::string& text) {
    int status = 0;
    texts[id] = text;
    const auto r = service->json("POST", "/v1/documents?wait=true",
                                 R"({"id":)" + quoted(id) + R"(,"title":)" + quoted(title) +
                                     R"(,"text":)" + quoted(text) + "}",
                                 {}, &status);
    ASSERT_EQ(status, 200) << json::serialize(r);
  }
  /// Posts documents and returns `per_kind` questions of each kind of the embedded model's
  /// questions. The answers of these questions are copied from the documents.
  static std::vector<Question> questions(std::size_t per_kind) {
    std::vector<Question> out;
    std::map<std::string, std::size_t> taken;
    std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/models/demo/encyclopedia.jsonl");
    json::array documents;
    int group = 0;
    bool posted = false;
    for (std::string line; std::getline(in, line);) {
      const auto record = parse(line);
      if (at(record, "documents").is_array()) {
        documents = at(record, "documents").as_array();
        ++group;
        posted = false;
      }
      static const std::set<std::string> copied = {
          "single", "continuation", "needle", "needle_multi_value", "two_hop", "few_shot"};
      if (!copied.contains(text_at(record, "kind")) || taken[text_at(record, "kind")] == per_kind)
        continue;
      ++taken[text_at(record, "kind")];
      const auto name = [group](const std::string& id) {
        return "g" + std::to_string(group) + "-" + id;
      };
      Question q;
      for (const auto& d : documents) {
        q.ids.push_back(name(text_at(d, "id")));
        if (!posted) post(q.ids.back(), text_at(d, "title"), text_at(d, "text"));
      }
      posted = true;
      for (const auto& id : at(record, "supporting_ids").as_array())
        q.supporting.insert(name(std::string(id.as_string())));
      for (const auto& a : at(record, "answers").as_array()) q.answers.emplace_back(a.as_string());
      q.text = text_at(record, "question");
      q.kind = text_at(record, "kind");
      out.push_back(std::move(q));
    }
    return out;
  }
  static json::value ask(const Question& q, const std::string& more, int* status = nullptr) {
    json::array ids;
    for (const auto& id : q.ids) ids.emplace_back(id);
    return service->json("POST", "/v1/query",
                         R"({"query":)" + quoted(q.text) + R"(,"document_ids":)" +
                             json::serialize(ids) + R"(,"max_tokens":48)" + more + "}",
                         {}, status);
  }
  static bool right(const Question& q, const std::string& answer) {
    const auto same = [](std::string a, std::string b) {
      for (std::string* s : {&a, &b})
        std::erase_if(*s, [](char c) { return c == ' ' || c == '.' || c == '\n'; });
      return a == b;
    };
    return std::any_of(q.answers.begin(), q.answers.end(),
                       [&](const std::string& a) { return same(a, answer); });
  }
  /// Every cited passage must exist.
  static void expect_sound(const json::value& reply, const Question& q) {
    const std::string answer = text_at(reply, "answer");
    for (const auto& c : at(reply, "citations").as_array()) {
      const std::string id = text_at(c, "document_id");
      ASSERT_TRUE(std::count(q.ids.begin(), q.ids.end(), id)) << json::serialize(c);
      EXPECT_EQ(q.ids.at(static_cast<std::size_t>(int_at(c, "document_index"))), id);
      EXPECT_EQ(characters(texts[id], int_at(c, "start"), int_at(c, "end")), text_at(c, "quote"));
      EXPECT_FALSE(text_at(c, "quote").empty());
      EXPECT_FALSE(characters(answer, int_at(c, "answer_start"), int_at(c, "answer_end")).empty());
      EXPECT_FALSE(at(c, "block_ids").as_array().empty());
      EXPECT_GT(at(c, "weight").to_number<double>(), 0);
    }
  }

  static std::map<std::string, std::string> texts;
};
std::map<std::string, std::string> CitationsTest::texts;

TEST_F(CitationsTest, CorrectAnswersCiteASupportingDocument) {
  const auto asked = questions(8);
  ASSERT_EQ(asked.size(), 48u);
  for (const std::string strategy : {"exact", "reuse"}) {
    int correct = 0, supported = 0;
    for (const Question& q : asked) {
      int status = 0;
      const auto r = ask(q, R"(,"cache":{"strategy":")" + strategy + "\"}", &status);
      ASSERT_EQ(status, 200) << json::serialize(r);
      expect_sound(r, q);
      if (!right(q, text_at(r, "answer"))) continue;
      ++correct;
      supported += q.supporting.contains(text_at(r, "citations.0.document_id"));
    }
    EXPECT_GE(correct, 20) << strategy;
    EXPECT_GE(supported, 0.8 * correct) << strategy << ": " << supported << " of " << correct;
  }
}

TEST_F(CitationsTest, NobodyPaysForWhatIsNotWanted) {
  const Question q = questions(1).front();
  const auto with = ask(q, ""), without = ask(q, R"(,"citations":false)");
  EXPECT_FALSE(at(with, "citations").as_array().empty());
  EXPECT_TRUE(at(with, "timings").as_object().contains("attribution_ms"));
  EXPECT_TRUE(at(without, "citations").as_array().empty());
  EXPECT_FALSE(at(without, "timings").as_object().contains("attribution_ms"));
  EXPECT_EQ(text_at(with, "answer"), text_at(without, "answer"));
}

TEST_F(CitationsTest, AStyleWritesThemIntoTheAnswer) {
  const Question q = questions(1).front();
  const auto plain = ask(q, "");
  EXPECT_FALSE(plain.as_object().contains("cited_answer"));
  const auto styled = ask(q, R"(,"prompt":{"citation":" [{n}: {title}]"})");
  ASSERT_FALSE(at(styled, "citations").as_array().empty());
  EXPECT_EQ(text_at(styled, "answer"), text_at(plain, "answer"));
  EXPECT_EQ(text_at(styled, "usage.prompt_tokens"), text_at(plain, "usage.prompt_tokens"));
  const std::string cited = text_at(styled, "cited_answer");
  for (const auto& c : at(styled, "citations").as_array())
    EXPECT_NE(cited.find(" [" + text_at(c, "id") + ": "), std::string::npos) << cited;
  const auto unwanted = ask(q, R"(,"citations":false,"prompt":{"citation":" [{n}]"})");
  EXPECT_FALSE(unwanted.as_object().contains("cited_answer"));
  int status = 0;
  const auto wrong = ask(q, R"(,"prompt":{"citation":"[{number}]"})", &status);
  EXPECT_EQ(status, 400);
  EXPECT_EQ(text_at(wrong, "error.param"), "prompt.citation");
}

TEST_F(CitationsTest, AStreamCitesBetweenTheLastPieceAndTheEnd) {
  const Question q = questions(1).front();
  json::array ids;
  for (const auto& id : q.ids) ids.emplace_back(id);
  const auto r = service->call("POST", "/v1/query",
                               R"({"stream":true,"query":)" + quoted(q.text) +
                                   R"(,"document_ids":)" + json::serialize(ids) + "}");
  ASSERT_EQ(r.status, 200);
  const auto last_delta = r.body.rfind("event: delta"), first = r.body.find("event: citation"),
             done = r.body.find("event: done");
  ASSERT_NE(first, std::string::npos) << r.body;
  EXPECT_LT(last_delta, first);
  EXPECT_LT(r.body.rfind("event: citation"), done);
  const auto data = r.body.find("data: ", first) + 6;
  const auto citation = parse(r.body.substr(data, r.body.find('\n', data) - data));
  EXPECT_EQ(json::serialize(citation), json::serialize(at(ask(q, ""), "citations.0")));
}

TEST_F(CitationsTest, OfADocumentThatIsCutAnewSinceNoPlacesAreTold) {
  const Question q = questions(1).front();
  const auto r = ask(q, R"(,"explain":"blocks")");
  const auto placed = [&](const std::string& id) {
    std::size_t n = 0;
    const auto explanation = service->json("GET", text_at(r, "explain_url"));
    for (const auto& b : at(explanation, "blocks").as_array())
      n += text_at(b, "document_id") == id && !at(b, "chars").is_null();
    return n;
  };
  const std::string id = q.ids.at(0), other = q.ids.at(1);
  const std::size_t before = placed(other);
  EXPECT_GT(placed(id), 0u);
  EXPECT_GT(before, 0u);
  const auto d = service->json("GET", "/v1/documents/" + id);
  int status = 0;
  const auto again = service->json(
      "POST", "/v1/documents?wait=true",
      R"({"id":)" + testing::quoted(id) + R"(,"title":)" + testing::quoted(text_at(d, "title")) +
          R"(,"text":)" + testing::quoted(texts[id]) + R"(,"chunking":{"max_tokens":48}})",
      {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(again);
  EXPECT_EQ(text_at(service->json("GET", "/v1/documents/" + id), "content_hash"),
            text_at(d, "content_hash"));
  EXPECT_EQ(placed(id), 0u);
  EXPECT_EQ(placed(other), before);
}

TEST_F(CitationsTest, InlineDocumentsAreQuotedAndQuotesAreNotKept) {
  const Question q = questions(1).front();
  std::string documents;
  for (const auto& id : q.ids)
    documents += std::string(documents.empty() ? "" : ",") + R"({"text":)" +
                 testing::quoted(texts[id]) + "}";
  int status = 0;
  const auto r = service->json(
      "POST", "/v1/query", R"({"query":)" + quoted(q.text) + R"(,"documents":[)" + documents + "]}",
      {}, &status);
  ASSERT_EQ(status, 200) << json::serialize(r);
  const auto& citations = at(r, "citations").as_array();
  ASSERT_FALSE(citations.empty());
  for (const auto& c : citations) {
    EXPECT_TRUE(at(c, "document_id").is_null());
    const std::string& text =
        texts[q.ids.at(static_cast<std::size_t>(int_at(c, "document_index")))];
    EXPECT_EQ(characters(text, int_at(c, "start"), int_at(c, "end")), text_at(c, "quote"));
  }
  const auto kept = service->json("GET", "/v1/queries/" + text_at(r, "id"));
  EXPECT_EQ(at(kept, "citations").as_array().size(), citations.size());
  EXPECT_FALSE(at(kept, "citations.0").as_object().contains("quote"));
}

}  // namespace
}  // namespace quire::testing
