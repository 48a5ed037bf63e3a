#include "server/json/query_codec.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <map>
#include <string>

#include "server/json/parse.h"

namespace quire {
namespace {

PlugOptions options(std::map<std::string, std::string, std::less<>> given) {
  return PlugOptions(std::move(given));
}

QueryDefaults defaults() { return {"auto", "auto", "auto", 4}; }

TEST(QueryCodec, ReadsAWholeBody) {
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

TEST(QueryCodec, ReadsPenaltiesBiasAndLogprobs) {
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

TEST(QueryCodec, OptionsAreWordsNumbersAndSwitches) {
  QueryBody q;
  const auto e = read_query(
      *parse_json(R"({"query":"q","cache":{"strategy":"samkv","options":{"keep_rule":"budget",)"
                  R"("token_budget":550,"bias":false}}})"),
      defaults(), q);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(q.cache.options,
            options({{"keep_rule", "budget"}, {"token_budget", "550"}, {"bias", "off"}}));
}

TEST(QueryCodec, SystemMessageIsTakenOutOfMessages) {
  QueryBody q;
  ASSERT_FALSE(read_query(
      *parse_json(
          R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"}]})"),
      defaults(), q));
  EXPECT_EQ(q.system, "s");
  ASSERT_EQ(q.messages.size(), 1u);
  EXPECT_EQ(q.messages[0].role, "user");
}

TEST(QueryCodec, ErrorsNameThePath) {
  std::string ids = "[";
  for (int i = 0; i < 10000; ++i) ids += (i ? ",\"" : "\"") + std::to_string(i) + "\"";
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {R"({})", "invalid_value", "query"},
      {R"({"query":""})", "invalid_value", "query"},
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
    EXPECT_EQ(e->param, param) << text << e->message;
  }
}

QueryRecord record() {
  QueryRecord r;
  r.id = "qry_1";
  r.model = "default";
  r.plan.strategy = "reuse";
  r.plan.prompt_tokens = 100;
  r.plan.fates = {60, 10, 25, 5};
  r.plan.num_layers = 6;
  PlannedContext cached, missed;
  cached.document_id = missed.document_id = "d";
  cached.num_tokens = 32;
  cached.cached = true;
  PlannedBlock b;
  b.num_tokens = 16;
  b.kept_layers = 6;
  cached.blocks = {b, b};
  cached.blocks[1].first_token = 16;
  missed.index = 1;
  missed.chunk = 1;
  missed.num_tokens = 8;
  missed.miss = MissReason::kEvicted;
  r.plan.contexts = {cached, missed};
  QueryDocument d;
  d.id = "d";
  d.num_contexts = 2;
  r.documents = {d};
  r.stats.completion_tokens = 4;
  r.stats.decode_ms = 30;
  return r;
}

TEST(QueryCodec, UsageAddsUp) {
  const auto u = usage_json(record());
  const auto& f = u.at("cache_details").as_object();
  const auto n = [&](const char* k) { return f.at(k).as_int64(); };
  EXPECT_EQ(
      n("reused_tokens") + n("recomputed_tokens") + n("computed_tokens") + n("dropped_tokens"),
      u.at("prompt_tokens").as_int64());
  EXPECT_EQ(u.at("prompt_cache_hit_tokens").as_int64(), 65);
  EXPECT_EQ(
      u.at("prompt_cache_hit_tokens").as_int64() + u.at("prompt_cache_miss_tokens").as_int64(),
      100);
  EXPECT_EQ(u.at("total_tokens").as_int64(), 104);
}

TEST(QueryCodec, MissesAndDocumentsAreNamed) {
  const auto r = record();
  const auto c = cache_json(r);
  const auto& misses = c.at("misses").as_array();
  ASSERT_EQ(misses.size(), 1u);
  EXPECT_EQ(misses[0].as_object().at("reason").as_string(), "evicted");
  EXPECT_EQ(misses[0].as_object().at("tokens").as_int64(), 8);
  const auto d = query_documents_json(r);
  EXPECT_EQ(d.at(0).as_object().at("tokens").as_int64(), 40);
  EXPECT_EQ(d.at(0).as_object().at("kept_blocks").as_int64(), 2);
  EXPECT_EQ(cache_header(r.plan), "PARTIAL");
  Plan p = r.plan;
  p.strategy = "recompute";
  EXPECT_EQ(cache_header(p), "BYPASS");
}

TEST(QueryCodec, AReasonKnownBeforeTheLookupWins) {
  auto r = record();
  r.documents[0].miss = MissReason::kModelChanged;
  const auto c = cache_json(r);
  EXPECT_EQ(c.at("misses").as_array().at(0).as_object().at("reason").as_string(), "model_changed");
}

TEST(QueryCodec, ExplainListsEveryBlock) {
  const auto o = explain_json(record(), {{0, 50, true}});
  const auto& blocks = o.at("blocks").as_array();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(to_text(blocks[0].as_object().at("chars")), "[0,50]");
  EXPECT_TRUE(blocks[1].as_object().at("chars").is_null());
  EXPECT_EQ(to_text(blocks[1].as_object().at("tokens")), "[16,32]");
  EXPECT_EQ(blocks[0].as_object().at("action").as_string(), "reused");
}

TEST(QueryCodec, ExplainTellsWhatTheSelectorFound) {
  auto r = record();
  EXPECT_FALSE(query_documents_json(r).at(0).as_object().contains("keep_share"));
  r.plan.options = options({{"bias", "off"}});
  r.plan.contexts[0].keep_share = 0.25f;
  r.plan.contexts[0].bias_weight = 0.125f;
  r.stats.sketch_bytes = 77;
  const auto o = explain_json(r, {});
  EXPECT_EQ(o.at("policy").at("options").at("bias").as_string(), "off");
  const auto& d = o.at("documents").at(0).as_object();
  EXPECT_EQ(d.at("keep_share").as_double(), 0.25);
  EXPECT_EQ(d.at("bias_weight").as_double(), 0.125);
  EXPECT_TRUE(d.contains("kept_tokens") && d.contains("recomputed_tokens"));
  EXPECT_EQ(cache_json(r).at("sketches").at("bytes").as_int64(), 77);
  EXPECT_EQ(plan_result_json(r).at("selection_pending").as_bool(), false);
}

TEST(QueryCodec, CompressionSaysByWhomAndHowMuch) {
  auto r = record();
  EXPECT_FALSE(cache_json(r).contains("compression"));
  EXPECT_FALSE(explain_json(r, {}).at("blocks").at(0).as_object().contains("hot_share"));
  r.plan.compression = Compression{.by = "speckv",
                                   .dropped = true,
                                   .rows = 400,
                                   .hot_rows = 100,
                                   .lookahead_tokens = 7,
                                   .note = ""};
  r.plan.contexts[0].blocks[0].hot_share = 0.5f;
  r.stats.compress_ms = 1.25;
  r.stats.draft_ms = 30;
  const auto c = cache_json(r).at("compression").as_object();
  EXPECT_EQ(c.at("by").as_string(), "speckv");
  EXPECT_EQ(c.at("mode").as_string(), "drop");
  EXPECT_EQ(c.at("hot_rows").as_int64(), 100);
  EXPECT_EQ(c.at("ratio").as_double(), 0.25);
  EXPECT_EQ(c.at("lookahead_tokens").as_int64(), 7);
  EXPECT_TRUE(c.at("note").is_null());
  EXPECT_EQ(explain_json(r, {}).at("blocks").at(0).at("hot_share").as_double(), 0.5);
  EXPECT_TRUE(timings_json(r).contains("compress_ms") && timings_json(r).contains("draft_ms"));
}

TEST(QueryCodec, ASparsePrefillSaysHowMuchItSaw) {
  auto r = record();
  EXPECT_FALSE(cache_json(r).contains("sparse_prefill"));
  r.plan.sparse_prefill = SparsePrefill{
      .band = 2048, .columns = 1024, .tokens = 5000, .attended_share = 0.25, .note = ""};
  for (const auto& o : {cache_json(r).at("sparse_prefill").as_object(),
                        explain_json(r, {}).at("sparse_prefill").as_object()}) {
    EXPECT_EQ(o.at("band").as_int64(), 2048);
    EXPECT_EQ(o.at("columns").as_int64(), 1024);
    EXPECT_EQ(o.at("tokens").as_int64(), 5000);
    EXPECT_EQ(o.at("attended_share").as_double(), 0.25);
    EXPECT_TRUE(o.at("note").is_null());
  }
}

TEST(QueryCodec, PromptCompressionIsANameOrAMethodWithSettings) {
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

TEST(QueryCodec, PromptCompressionSaysWhatStayed) {
  auto r = record();
  EXPECT_FALSE(cache_json(r).contains("prompt_compression"));
  EXPECT_FALSE(explain_json(r, {}).contains("prompt_compression"));
  const CutText left{100, {{4, 10}, {90, 100}}};
  r.plan.prompt_cut = PromptCut{.by = "specpc",
                                .tokens = 200,
                                .kept_tokens = 50,
                                .removed_tokens = 150,
                                .lookahead_tokens = 0,
                                .note = "",
                                .parts = {{PromptCut::Part::kContext, 0, left},
                                          {PromptCut::Part::kQuestion, -1, {9, {{0, 9}}}}}};
  PlannedContext& c = r.plan.contexts[0];
  c.cut = left;
  c.num_tokens = 16;
  c.blocks.resize(1);
  c.blocks[0].first_token = 2;
  c.blocks[0].num_tokens = 6;
  const auto cut = cache_json(r).at("prompt_compression").as_object();
  EXPECT_EQ(cut.at("by").as_string(), "specpc");
  EXPECT_EQ(cut.at("ratio").as_double(), 0.25);
  EXPECT_EQ(cut.at("removed_tokens").as_int64(), 150);
  EXPECT_TRUE(cut.at("note").is_null());
  const auto explained = explain_json(r, {});
  EXPECT_EQ(boost::json::serialize(explained.at("prompt_compression")),
            R"([{"part":"document","document":0,"tokens":100,"kept":[[4,10],[90,100]]},{)"
            R"("part":"question","tokens":9,"kept":[[0,9]]}])");
  // Tokens 2 to 7 of the kept ones are tokens 6 to 9, 90 and 91 of the text.
  const auto block = explained.at("blocks").at(0).as_object();
  EXPECT_EQ(boost::json::serialize(block.at("tokens")), "[6,92]");
  EXPECT_EQ(block.at("cut_tokens").as_int64(), 80);
  EXPECT_EQ(query_documents_json(r).at(0).at("tokens").as_int64(), 108);
}

TEST(QueryCodec, StreamedEndHasNoAnswer) {
  EXPECT_FALSE(query_result_json(record(), false).contains("answer"));
  EXPECT_TRUE(query_result_json(record(), true).contains("answer"));
}

}  // namespace
}  // namespace quire
