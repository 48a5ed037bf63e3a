#include "server/json/query_request.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/json_parse.h"

namespace quire {
namespace {

PlugOptions options(std::map<std::string, std::string, std::less<>> given) {
  return PlugOptions(std::move(given));
}

QueryDefaults defaults() { return {"auto", "auto", "auto", 4}; }

TEST(QueryRequest, ReadsAWholeBody) {
  QueryBody q;
  const auto e = read_query(
      *parse_json(
          R"({"query":"How?","document_ids":["a","b"],"documents":[{"title":"N","text":"t"}],)"
          R"("system":"s","model":"default","stream":true,
    "max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":3,"min_p":0.1,"stop":["x"],"seed":7,
    "cache":{"strategy":"reuse","recompute_ratio":null,"keep_ratio":0.5,"compress":"none",)"
          R"("decode":"dense","write":false,"positions":"naive"},"cache_salt":"12345678",
    "on_missing":"skip","on_not_ready":"compute","citations":true,"explain":"blocks",)"
          R"("timeout_ms":5})"),
      defaults(), q);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(q.query, "How?");
  EXPECT_EQ(q.document_ids.size(), 2u);
  EXPECT_EQ(q.documents[0].text, "t");
  EXPECT_EQ(q.sampling.max_tokens, 7);
  EXPECT_EQ(q.sampling.seed, 7u);
  EXPECT_EQ(q.sampling.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(q.cache.strategy, "reuse");
  EXPECT_FALSE(q.cache.recompute_ratio);
  EXPECT_EQ(q.cache.keep_ratio, 0.5);
  EXPECT_EQ(q.cache.positions, PositionMode::kLocalNaive);
  EXPECT_FALSE(q.cache.write);
  EXPECT_TRUE(q.skip_missing && q.stream);
  EXPECT_EQ(q.on_not_ready, OnNotReady::kCompute);
  EXPECT_EQ(q.explain, ExplainLevel::kBlocks);
}

TEST(QueryRequest, ReadsPenaltiesBiasAndLogprobs) {
  QueryBody q;
  const auto e = read_query(
      *parse_json(
          R"({"query":"q","frequency_penalty":0.5,"presence_penalty":-2,"logit_bias":{"7":-100,)"
          R"("9":1.5},"stop_token_ids":[3,4],"logprobs":true,"top_logprobs":5})"),
      defaults(), q);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(q.sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(q.sampling.presence_penalty, -2);
  EXPECT_EQ(q.sampling.logit_bias,
            (std::vector<std::pair<std::int32_t, float>>{{7, -100}, {9, 1.5f}}));
  EXPECT_EQ(q.sampling.stop_token_ids, (std::vector<std::int32_t>{3, 4}));
  EXPECT_EQ(q.sampling.top_logprobs, 5);
  QueryBody off;
  ASSERT_FALSE(read_query(*parse_json(R"({"query":"q","logprobs":false})"), defaults(), off));
  EXPECT_FALSE(off.sampling.top_logprobs);
}

TEST(QueryRequest, TellsWhetherALengthWasAskedFor) {
  QueryBody given, absent;
  ASSERT_FALSE(read_query(*parse_json(R"({"query":"q","max_tokens":128})"), defaults(), given));
  EXPECT_TRUE(given.sampling.max_tokens_asked);
  ASSERT_FALSE(read_query(*parse_json(R"({"query":"q"})"), defaults(), absent));
  EXPECT_EQ(absent.sampling.max_tokens, 128);
  EXPECT_FALSE(absent.sampling.max_tokens_asked);
}

TEST(QueryRequest, OptionsAreWordsNumbersAndSwitches) {
  QueryBody q;
  const auto e = read_query(
      *parse_json(R"({"query":"q","cache":{"strategy":"samkv","options":{"keep_rule":"budget",)"
                  R"("token_budget":550,"bias":false}}})"),
      defaults(), q);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(q.cache.options,
            options({{"keep_rule", "budget"}, {"token_budget", "550"}, {"bias", "off"}}));
}

TEST(QueryRequest, SystemMessageIsTakenOutOfMessages) {
  QueryBody q;
  ASSERT_FALSE(read_query(
      *parse_json(
          R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]})"),
      defaults(), q));
  EXPECT_EQ(q.system, "s");
  ASSERT_EQ(q.messages.size(), 1u);
  EXPECT_EQ(q.messages[0].role, "user");
}

TEST(QueryRequest, ErrorsNameThePath) {
  std::string ids = "[";
  for (int i = 0; i < 10000; ++i) ids += (i ? ",\"" : "\"") + std::to_string(i) + "\"";
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {R"({})", "invalid_value", "query"},
      {R"({"query":""})", "invalid_value", "query"},
      {R"({"query":" \n\t"})", "invalid_value", "query"},
      {R"({"query":5})", "invalid_value", "query"},
      {R"({"query":"q","messages":[{"role":"user","content":"u"}]})", "invalid_value", "query"},
      {R"({"messages":[]})", "invalid_value", "messages"},
      {R"({"messages":[{"role":"robot","content":"u"}]})", "invalid_value", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "invalid_value", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"system","content":"a"}]})",
       "invalid_value", "messages[1].role"},
      {R"({"query":"q","document_ids":)" + ids + "]}", "invalid_value", "document_ids"},
      {R"({"query":"q","document_ids":["a",null]})", "invalid_value", "document_ids[1]"},
      {R"({"query":"q","document_ids":["1","2","3"],"documents":[{"text":"a"},{"text":"b"}]})",
       "invalid_value", "documents"},
      {R"({"query":"q","documents":[{"title":"a"}]})", "invalid_value", "documents[0].text"},
      {R"({"query":"q","documents":[{"id":"a"}]})", "invalid_value", "documents[0].id"},
      {R"({"query":"q","frequency_penalty":2.5})", "invalid_value", "frequency_penalty"},
      {R"({"query":"q","presence_penalty":"1"})", "invalid_value", "presence_penalty"},
      {R"({"query":"q","logit_bias":[]})", "invalid_value", "logit_bias"},
      {R"({"query":"q","logit_bias":{"word":1}})", "invalid_value", "logit_bias.word"},
      {R"({"query":"q","logit_bias":{"7":101}})", "invalid_value", "logit_bias.7"},
      {R"({"query":"q","logit_bias":{"7":1,"07":1}})", "invalid_value", "logit_bias.07"},
      {R"({"query":"q","stop_token_ids":[1,-1]})", "invalid_value", "stop_token_ids[1]"},
      {R"({"query":"q","top_logprobs":2})", "invalid_value", "top_logprobs"},
      {R"({"query":"q","logprobs":true,"top_logprobs":21})", "invalid_value", "top_logprobs"},
      {R"({"query":"q","qury":1})", "unknown_field", "qury"},
      {R"({"query":"q","max_tokens":0})", "invalid_value", "max_tokens"},
      {R"({"query":"q","temperature":-1})", "invalid_value", "temperature"},
      {R"({"query":"q","top_p":0})", "invalid_value", "top_p"},
      {R"({"query":"q","stop":["a","b","c","d","e"]})", "invalid_value", "stop"},
      {R"({"query":"q","stop":[""]})", "invalid_value", "stop"},
      {R"({"query":"q","cache":{"strategie":"x"}})", "unknown_field", "cache.strategie"},
      {R"({"query":"q","cache":{"keep_ratio":2}})", "invalid_value", "cache.keep_ratio"},
      {R"({"query":"q","cache":{"options":["bias"]}})", "invalid_value", "cache.options"},
      {R"({"query":"q","cache":{"options":{"bias":{}}}})", "invalid_value", "cache.options.bias"},
      {R"({"query":"q","cache":{"prompt_compression":7}})", "invalid_value",
       "cache.prompt_compression"},
      {R"({"query":"q","cache":{"prompt_compression":{"capacity":512}}})", "invalid_value",
       "cache.prompt_compression.method"},
      {R"({"query":"q","cache":{"prompt_compression":{"method":"specpc","pool":["max"]}}})",
       "invalid_value", "cache.prompt_compression.pool"},
      {R"({"query":"q","cache_salt":"short"})", "invalid_value", "cache_salt"},
      {R"({"query":"q","explain":"all"})", "invalid_value", "explain"},
      {R"({"query":"q","timeout_ms":0})", "invalid_value", "timeout_ms"},
      {R"({"query":"q","stream":"yes"})", "invalid_value", "stream"},
  };
  for (const auto& [text, code, param] : cases) {
    QueryBody q;
    const auto e = read_query(*parse_json(text), defaults(), q);
    ASSERT_TRUE(e) << text;
    EXPECT_EQ(e->code, code) << text;
    EXPECT_EQ(e->path, param) << text << e->message;
  }
}

TEST(QueryRequest, PromptCompressionIsANameOrAMethodWithSettings) {
  QueryBody named, set;
  ASSERT_FALSE(read_query(*parse_json(R"({"query":"q","cache":{"prompt_compression":"specpc"}})"),
                          defaults(), named));
  EXPECT_EQ(named.cache.prompt_compression, "specpc");
  EXPECT_TRUE(named.cache.prompt_options.given().empty());
  ASSERT_FALSE(read_query(
      *parse_json(R"({"query":"q","cache":{"prompt_compression":{"capacity":512,"method":"specpc",)"
                  R"("weighted":false},"options":{"capacity":9}}})"),
      defaults(), set));
  EXPECT_EQ(set.cache.prompt_compression, "specpc");
  EXPECT_EQ(set.cache.prompt_options, options({{"capacity", "512"}, {"weighted", "off"}}));
  EXPECT_EQ(set.cache.options, options({{"capacity", "9"}}));
}

}  // namespace
}  // namespace quire
