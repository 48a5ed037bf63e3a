#include "server/json/retrieve_codec.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/json_parse.h"
#include "server/json/embedding_codec.h"
#include "server/json/query_request.h"
#include "server/json/rerank_codec.h"
#include "server/reply/retrieve_reply.h"

namespace quire {
namespace {

std::string refused(const std::string& body) {
  RetrieveBody out;
  const auto e = read_retrieve(*parse_json(body), out);
  return e ? e->code + " " + e->path : "";
}

TEST(RetrieveCodec, ReadsAllMembers) {
  RetrieveBody body;
  const auto e = read_retrieve(
      *parse_json(R"({"query":"q","document_ids":["a"],"k":7,"unit":"document","scorer":"bm25",)"
                  R"("metadata":{"a":"x","n":2025,"b":true,"z":null},"min_score":0.5,"rerank":9,)"
                  R"("links":0.25})"),
      body);
  ASSERT_FALSE(e) << e->message;
  const RetrieveRequest& out = body.request;
  EXPECT_EQ(out.k, 7u);
  EXPECT_EQ(out.unit, RetrieveUnit::kDocument);
  EXPECT_EQ(out.document_ids, std::vector<std::string>{"a"});
  const MetadataFilter metadata = {{"a", "x"}, {"n", "2025"}, {"b", "true"}, {"z", "null"}};
  EXPECT_EQ(out.metadata, metadata);
  EXPECT_EQ(out.scorer, RetrieveScorer::kBm25);
  EXPECT_DOUBLE_EQ(body.min_score, 0.5);
  EXPECT_EQ(body.request.links, 0.25);
  EXPECT_EQ(body.rerank, 9);
}

TEST(RetrieveCodec, UnitsHaveNamesInTheSingularAndThePlural) {
  const std::pair<std::string, QueryUnit> names[] = {{"auto", QueryUnit::kAuto},
                                                     {"chunk", QueryUnit::kChunk},
                                                     {"chunks", QueryUnit::kChunk},
                                                     {"document", QueryUnit::kDocument},
                                                     {"documents", QueryUnit::kDocument}};
  for (const auto& [name, unit] : names) {
    const std::string member = R"({"query":"q","unit":")" + name + R"("})";
    RetrieveBody body;
    EXPECT_EQ(!read_retrieve(*parse_json(member), body), name != "auto") << name;
    EXPECT_EQ(body.request.unit == RetrieveUnit::kDocument, unit == QueryUnit::kDocument);
    QueryBody query;
    ASSERT_FALSE(read_query(*parse_json(R"({"query":"q","retrieve":{"unit":")" + name + R"("}})"),
                            QueryDefaults{"auto", "auto", "auto", 3}, query));
    ASSERT_TRUE(query.retrieve);
    EXPECT_EQ(query.retrieve->unit, unit) << name;
  }
  EXPECT_NE(refused(R"({"query":"q","unit":"page"})"), "");
}

TEST(RetrieveCodec, ScorersHaveNamesInBothRequestsAndTheReply) {
  for (const RetrieveScorer scorer : {RetrieveScorer::kAuto, RetrieveScorer::kBm25,
                                      RetrieveScorer::kEmbedding, RetrieveScorer::kHybrid}) {
    const std::string name(scorer_name(scorer));
    RetrieveBody body;
    ASSERT_FALSE(read_retrieve(*parse_json(R"({"query":"q","scorer":")" + name + R"("})"), body));
    EXPECT_EQ(body.request.scorer, scorer);
    EXPECT_FALSE(body.rerank);
    QueryBody query;
    ASSERT_FALSE(read_query(*parse_json(R"({"query":"q","retrieve":{"scorer":")" + name + R"("}})"),
                            QueryDefaults{"auto", "auto", "auto", 3}, query));
    ASSERT_TRUE(query.retrieve);
    EXPECT_EQ(query.retrieve->scorer, scorer);
    EXPECT_EQ(std::string(retrieve_reply().json({{}, scorer}).at("scorer").as_string()), name);
  }
  EXPECT_FALSE(retrieve_reply().json({{}, RetrieveScorer::kBm25}).contains("pending_documents"));
  EXPECT_EQ(retrieve_reply()
                .json({{}, RetrieveScorer::kHybrid, 3})
                .at("pending_documents")
                .to_number<int>(),
            3);
}

TEST(RetrieveCodec, NamesWhatIsWrong) {
  EXPECT_EQ(refused("[]"), "invalid_value ");
  EXPECT_EQ(refused(R"({"query":"q","k":1.5})"), "invalid_value k");
  EXPECT_EQ(refused(R"({"query":"q","metadata":[]})"), "invalid_value metadata");
  EXPECT_EQ(refused(R"({"query":"q","metadata":{"a":{}}})"), "invalid_value metadata.a");
  EXPECT_EQ(refused(R"({"query":"q","metadata":{"a":[]}})"), "invalid_value metadata.a");
  EXPECT_EQ(refused(R"({"query":"q","metadata":{"a":[[1]]}})"), "invalid_value metadata.a");
  EXPECT_EQ(refused(R"({"query":"q","metadata":{"a":{"gte":null}}})"),
            "invalid_value metadata.a.gte");
  EXPECT_EQ(refused(R"({"query":"q","metadata":{"a":{"ge":1}}})"), "unknown_field metadata.a.ge");
  EXPECT_EQ(refused(R"({"query":"q","metadata":{"a":{"exists":1}}})"),
            "invalid_value metadata.a.exists");
  EXPECT_EQ(refused(R"({"query":"q","min_score":-1})"), "invalid_value min_score");
  EXPECT_EQ(refused(R"({"query":"q","links":1.5})"), "invalid_value links");
  EXPECT_EQ(refused(R"({"query":"q","links":0,"scorer":"embedding"})"), "invalid_value links");
  EXPECT_EQ(refused(R"({"query":"q","scorer":"x"})"), "unsupported_parameter scorer");
}

TEST(RetrieveCodec, AQueryNamesDocumentsOrHasThemChosen) {
  const auto read = [](const std::string& body) {
    QueryBody q;
    const auto e = read_query(*parse_json(body), QueryDefaults{"auto", "auto", "auto", 3}, q);
    if (e) return e->path;
    return q.retrieve ? "k=" + std::to_string(q.retrieve->k) + (q.retrieve->asked ? " asked" : "")
                      : std::string("named");
  };
  EXPECT_EQ(read(R"({"query":"q"})"), "k=3");
  EXPECT_EQ(read(R"({"query":"q","document_ids":null})"), "k=3");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"k":2}})"), "k=2 asked");
  EXPECT_EQ(read(R"({"query":"q","document_ids":[]})"), "named");
  EXPECT_EQ(read(R"({"query":"q","documents":[{"text":"t"}]})"), "named");
  // Of the documents that it names, too, but not of inline ones, and not of none.
  EXPECT_EQ(read(R"({"query":"q","document_ids":["a"],"retrieve":{}})"), "k=4 asked");
  EXPECT_EQ(read(R"({"query":"q","documents":[{"text":"t"}],"retrieve":{}})"), "retrieve");
  EXPECT_EQ(read(R"({"query":"q","document_ids":[],"retrieve":{}})"), "retrieve");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"k":4}})"), "retrieve.k");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"unit":"page"}})"), "retrieve.unit");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"unit":"document","max_tokens":9}})"),
            "retrieve.max_tokens");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"neighbours":65}})"), "retrieve.neighbours");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"min_score":-1}})"), "retrieve.min_score");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"links":-1}})"), "retrieve.links");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"scorer":"x"}})"), "retrieve.scorer");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"order":"x"}})"), "retrieve.order");
  EXPECT_EQ(read(R"({"query":"q","retrieve":{"order":""}})"), "retrieve.order");
}

TEST(RetrieveCodec, AQuerySaysWhatIsShownOfWhatWasFound) {
  QueryBody q;
  ASSERT_FALSE(read_query(
      *parse_json(R"({"query":"q","retrieve":{"unit":"chunk","neighbours":2,"max_tokens":900,)"
                  R"("min_score":1.5,"links":0,"order":"best_last"}})"),
      QueryDefaults{"auto", "auto", "auto", 8}, q));
  EXPECT_EQ(q.retrieve->unit, QueryUnit::kChunk);
  EXPECT_EQ(q.retrieve->neighbours, 2);
  EXPECT_EQ(q.retrieve->max_tokens, 900);
  EXPECT_DOUBLE_EQ(q.retrieve->min_score, 1.5);
  EXPECT_EQ(q.retrieve->links, 0.0);
  EXPECT_EQ(q.retrieve->order, FoundOrder::kBestLast);
  QueryBody plain;
  ASSERT_FALSE(
      read_query(*parse_json(R"({"query":"q"})"), QueryDefaults{"auto", "auto", "auto", 8}, plain));
  EXPECT_EQ(plain.retrieve->unit, QueryUnit::kAuto);
  EXPECT_FALSE(plain.retrieve->neighbours);
  EXPECT_FALSE(plain.retrieve->order);
}

TEST(EmbeddingCodec, ReadsTextsAndTokensInEveryShape) {
  const auto read = [](const std::string& body) {
    EmbeddingBody out;
    const auto e = read_embedding(*parse_json(body), out);
    if (e) return e->code + " " + e->path;
    std::string shape;
    for (const auto& input : out.inputs)
      shape += std::holds_alternative<std::string>(input)
                   ? "t"
                   : std::to_string(std::get<1>(input).size());
    return shape;
  };
  EXPECT_EQ(read(R"({"input":"text"})"), "t");
  EXPECT_EQ(read(R"({"input":["a","b"]})"), "tt");
  EXPECT_EQ(read(R"({"input":[1,2,3]})"), "3");
  EXPECT_EQ(read(R"({"input":[[1,2],[3]],"user":"u","unknown":1})"), "21");
  EXPECT_EQ(read(R"({"input":{}})"), "invalid_value input");
  EXPECT_EQ(read(R"({"input":[[]]})"), "invalid_value input[0]");
  EXPECT_EQ(read(R"({"input":[-1]})"), "invalid_value input");
  EXPECT_EQ(read(R"({"input":["a",5]})"), "invalid_value input[1]");
  EXPECT_EQ(read(R"({"input":"x","encoding_format":"int8"})"), "invalid_value encoding_format");
  EXPECT_EQ(read(R"({"input":"x","dimensions":3})"), "unsupported_parameter dimensions");
  EXPECT_EQ(read(R"({"input":"x","normalize":true,"add_special_tokens":true,"embd_normalize":2,)"
                 R"("truncate_prompt_tokens":null})"),
            "t");
  for (const auto& [member, value] :
       {std::pair("normalize", "false"), std::pair("add_special_tokens", "false"),
        std::pair("embd_normalize", "-1"), std::pair("truncate_prompt_tokens", "64")})
    EXPECT_EQ(read(std::string(R"({"input":"x",")") + member + "\":" + value + "}"),
              std::string("unsupported_parameter ") + member);
}

TEST(EmbeddingCodec, Base64IsLittleEndianFloats) {
  const auto o = embeddings_json({{1.0f, -2.5f}}, EmbeddingFormat::kBase64, "m", 3);
  EXPECT_EQ(o.at("data").at(0).at("embedding"), "AACAPwAAIMA=");
  EXPECT_EQ(o.at("usage").at("total_tokens"), 3);
  EXPECT_EQ(embeddings_json({{0.5f}}, EmbeddingFormat::kFloat, "m", 1)
                .at("data")
                .at(0)
                .at("embedding")
                .at(0),
            0.5);
}

TEST(RerankCodec, ReadsTextsInBothForms) {
  RerankBody out;
  const auto e = read_rerank(*parse_json(R"({"query":"q","documents":["a",{"text":"b"},""],)"
                                         R"("top_n":9,"return_documents":true,"model":"m"})"),
                             out);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(out.query, "q");
  EXPECT_EQ(out.model, "m");
  EXPECT_EQ(out.texts, (std::vector<std::string>{"a", "b", ""}));
  EXPECT_EQ(out.top_n, 3u) << "there are no more";
  EXPECT_TRUE(out.return_documents);
  RerankBody bare;
  ASSERT_FALSE(read_rerank(*parse_json(R"({"query":"q","documents":["a","b"],"top_n":1})"), bare));
  EXPECT_EQ(bare.top_n, 1u);
  EXPECT_FALSE(bare.return_documents);
}

TEST(RerankCodec, NamesWhatIsWrong) {
  const auto refused_rerank = [](const std::string& body) {
    RerankBody out;
    const auto e = read_rerank(*parse_json(body), out);
    return e ? e->code + " " + e->path : "";
  };
  EXPECT_EQ(refused_rerank("[]"), "invalid_value ");
  EXPECT_EQ(refused_rerank(R"({"documents":["a"]})"), "invalid_value query");
  EXPECT_EQ(refused_rerank(R"({"query":"","documents":["a"]})"), "invalid_value query");
  EXPECT_EQ(refused_rerank(R"({"query":"q"})"), "invalid_value documents");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":[]})"), "invalid_value documents");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":["a",1]})"), "invalid_value documents[1]");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":[{}]})"), "invalid_value documents[0].text");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":[{"text":"a","x":1}]})"),
            "unknown_field documents[0].x");
  const std::string longest(64 << 10, 'a');
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":[")" + longest + "\"]}"), "");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":[")" + longest + "a\"]}"),
            "invalid_value documents[0]");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":[{"text":")" + longest + "a\"}]}"),
            "invalid_value documents[0].text");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":["a"],"top_n":0})"), "invalid_value top_n");
  EXPECT_EQ(refused_rerank(R"({"query":"q","documents":["a"],"rank_fields":["t"]})"),
            "unknown_field rank_fields");
}

}  // namespace
}  // namespace quire
