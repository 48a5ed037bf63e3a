#include "server/reply/query_reply.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <string>

#include "server/json/text.h"
#include "server/reply/cache_reply.h"
#include "server/reply/explain_reply.h"
#include "server/reply/timings_reply.h"

namespace quire {
namespace {

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

// A block says which layers keep it only where some do and others do not.
TEST(QueryReply, BlocksNameTheLayersThatKeepThem) {
  QueryRecord r = record();
  const auto layers = [&](std::size_t block) {
    const auto blocks = explain_json(r, {}).at("blocks").as_array();
    const auto* found = blocks.at(block).as_object().if_contains("layers");
    return found ? to_text(*found) : "none";
  };
  EXPECT_EQ(layers(0), "none");
  r.plan.contexts[0].kept_in = {true, true,  true, true, true,  true,  // the first block
                                true, false, true, true, false, true};
  EXPECT_EQ(layers(0), "none");
  EXPECT_EQ(layers(1), "[[0,1],[2,4],[5,6]]");
  r.plan.contexts[0].kept_in.assign(12, false);
  EXPECT_EQ(layers(1), "none");
  r.plan.contexts[0].kept_in[11] = true;
  EXPECT_EQ(layers(1), "[[5,6]]");
}

TEST(QueryReply, UsageAddsUp) {
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

TEST(QueryReply, MissesAndDocumentsAreNamed) {
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

TEST(QueryReply, AReasonKnownBeforeTheLookupWins) {
  auto r = record();
  r.documents[0].miss = MissReason::kModelChanged;
  const auto c = cache_json(r);
  EXPECT_EQ(c.at("misses").as_array().at(0).as_object().at("reason").as_string(), "model_changed");
}

TEST(QueryReply, ExplainListsEveryBlock) {
  const auto o = explain_json(record(), {{0, 50, true}});
  const auto& blocks = o.at("blocks").as_array();
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(to_text(blocks[0].as_object().at("chars")), "[0,50]");
  EXPECT_TRUE(blocks[1].as_object().at("chars").is_null());
  EXPECT_EQ(to_text(blocks[1].as_object().at("tokens")), "[16,32]");
  EXPECT_EQ(blocks[0].as_object().at("action").as_string(), "reused");
}

TEST(QueryReply, ExplainTellsWhatTheSelectorFound) {
  auto r = record();
  EXPECT_FALSE(query_documents_json(r).at(0).as_object().contains("keep_share"));
  r.plan.options = PlugOptions(PlugOptions::Values{{"bias", "off"}});
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

TEST(QueryReply, CompressionSaysByWhomAndHowMuch) {
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

TEST(QueryReply, ASparsePrefillSaysHowMuchItSaw) {
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

TEST(QueryReply, PromptCompressionSaysWhatStayed) {
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

TEST(QueryReply, StreamedEndHasNoAnswer) {
  EXPECT_FALSE(query_end_reply().json({record()}).contains("answer"));
  EXPECT_TRUE(query_result_reply().json({record()}).contains("answer"));
}

}  // namespace
}  // namespace quire
