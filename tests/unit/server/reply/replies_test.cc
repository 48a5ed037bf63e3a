// Every reply that is a table, made of full and of bare values.
#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "server/json/text.h"
#include "server/openapi/openapi.h"
#include "server/reply/admin_reply.h"
#include "server/reply/cache_reply.h"
#include "server/reply/document_reply.h"
#include "server/reply/explain_reply.h"
#include "server/reply/job_reply.h"
#include "server/reply/list_reply.h"
#include "server/reply/query_reply.h"
#include "server/reply/reply_schemas.h"
#include "server/reply/retrieve_reply.h"
#include "server/reply/timings_reply.h"
#include "server/service/route_table.h"
#include "tests/support/json_schema.h"
#include "tests/unit/server/reply/reply_records.h"

namespace quire {
namespace {

namespace json = boost::json;
namespace values = quire::testing;

/// The replies of tests/unit/server/reply/replies_golden.txt: a name, a colon, and the JSON text.
/// Where a reply is meant to change, its line is the text that the failed test shows.
std::map<std::string, std::string> golden() {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR) + "/tests/unit/server/reply/replies_golden.txt");
  std::map<std::string, std::string> out;
  for (std::string line; std::getline(file, line);)
    out[line.substr(0, line.find(": "))] = line.substr(line.find(": ") + 2);
  return out;
}

std::map<std::string, json::value> replies() {
  std::map<std::string, json::value> out;
  for (const bool full : {true, false}) {
    const QueryRecord r = full ? values::full_record() : values::bare_record();
    const std::string n = full ? "full " : "bare ";
    out[n + "usage"] = usage_json(r);
    out[n + "timings"] = timings_json(r);
    out[n + "cache"] = cache_json(r);
    out[n + "query documents"] = query_documents_json(r);
    out[n + "result"] = query_result_reply().json({r});
    out[n + "end"] = query_end_reply().json({r});
    out[n + "plan event"] = plan_event_reply().json(r);
    out[n + "plan"] = plan_result_json(r);
    out[n + "entry"] = query_entry_reply().json({r});
    out[n + "entry without text"] = query_entry_reply().json({r, false});
    out[n + "explanation"] = explain_json(r, {{3, 50, true}, {0, 0, false}});
    out[n + "document"] = document_json(full ? values::full_document() : DocumentInfo{});
    const JobSnapshot job = full ? values::full_job() : JobSnapshot{};
    out[n + "job"] = job_json(job);
    out[n + "ingest"] = ingest_json(join_jobs({job}));
    out[n + "chunk"] = chunk_json(full ? values::full_chunk() : ChunkInfo{});
    out[n + "block"] = block_json(full ? values::full_block() : BlockInfo{});
    out[n + "evict"] = eviction_reply().json(
        {Tier::kDram, false, full ? values::full_evict_report() : EvictReport{}});
    out[n + "verify"] = verification_reply().json(
        {full ? values::full_verify_report() : VerifyReport{}, 8});
  }
  out["full passages"] = retrieve_reply().json(
      {values::passages(), RetrieveScorer::kHybrid, 3, "ms-marco"});
  out["bare passages"] = retrieve_reply().json({{}, RetrieveScorer::kBm25});
  out["list"] = list_json({block_json(values::full_block())}, true, "block_id");
  out["empty list"] = list_json({}, false);
  return out;
}

TEST(Replies, KeepTheirBytes) {
  const auto expected = golden();
  const auto got = replies();
  EXPECT_EQ(expected.size(), got.size());
  for (const auto& [name, value] : got) {
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_EQ(to_text(value), expected.at(name)) << name;
  }
}

/// Checks one table: what it makes fits its schema, full values have every member that the schema
/// lists, and bare values every one that it promises. `elsewhere` names members of other values.
class Tables {
 public:
  template <class T>
  void check(const Reply<T>& reply, const T& full, const T& bare,
             const std::set<std::string>& elsewhere = {}) {
    const std::string name(reply.name());
    checked.insert(name);
    const json::object schema = reply.schema(), made = reply.json(full), least = reply.json(bare);
    for (const auto& value : {made, least})
      for (const std::string& fault :
           values::check_schema(value, schema, document_, values::Unlisted::kWrong))
        ADD_FAILURE() << name << ": " << fault;
    const json::object& properties = schema.at("properties").as_object();
    EXPECT_EQ(properties.size(), reply.fields().size()) << name << " has a member twice";
    for (const auto& [member, _] : properties)
      EXPECT_NE(made.contains(member), elsewhere.contains(std::string(member)))
          << name << "." << member << (made.contains(member) ? " is made" : " is never made");
    for (const ReplyField<T>& field : reply.fields())
      EXPECT_TRUE(least.contains(field.name()) || !field.kind().required)
          << name << "." << field.name();
    const auto& published = document_.at("components").at("schemas").as_object();
    ASSERT_TRUE(published.contains(reply.name())) << name;
    EXPECT_EQ(published.at(reply.name()), json::value(schema)) << name;
  }

  std::set<std::string> checked;

 private:
  const json::object document_ = openapi_document(all_routes()).value();
};

TEST(Replies, HaveTheMembersOfTheirSchemas) {
  const QueryRecord full = values::full_record(), bare = values::bare_record();
  Tables t;
  t.check(fates_reply(), full.plan.fates, {});
  t.check(usage_reply(), full, bare);
  t.check(timings_reply(), full, bare);
  t.check(cache_reply(), full, bare);
  t.check(tier_use_reply(), {full.stats, Tier::kDram}, {bare.stats, Tier::kNone});
  t.check(sparse_prefill_reply(), *full.plan.sparse_prefill, {});
  t.check(citation_reply(), {full.citations[0]}, {full.citations[1], 2, QuoteUse::kHide});
  QueryDocument partly = full.documents[0];
  partly.chunks = {0, 2};
  partly.all_chunks = 5;
  DocumentUse use{partly};
  use.keep_share = use.bias_weight = 0.5;
  t.check(query_document_reply(), use, {bare.documents[0]}, {"title"});
  QueryAnswer answer{full};
  answer.logprobs = json::object{{"content", json::array()}};
  answer.explanation = explain_json(full, {});
  t.check(plan_event_reply(), full, bare);
  auto stopped = bare;
  stopped.finish_reason = "length";
  const QueryAnswer ended{.record = stopped, .texts = true, .explain_url = false};
  t.check(query_result_reply(), answer, ended);
  t.check(query_end_reply(), answer, ended);
  t.check(query_entry_reply(), answer, {.record = stopped, .texts = false});
  t.check(policy_reply(), full.plan, bare.plan);
  const PlannedContext &context = full.plan.contexts[0], &cut = full.plan.contexts[2];
  ExplainedBlock block{cut, context.blocks[0], 0, {0, 90}};
  block.text = "text";
  t.check(explained_block_reply(), block, {context, context.blocks[1], 1, {16, 32}});
  t.check(kept_part_reply(), full.plan.prompt_cut->parts[1], full.plan.prompt_cut->parts[0]);
  t.check(explanation_reply(), {full}, {bare});
  t.check(wording_reply(), full, bare);
  t.check(query_plan_reply(), {full}, {bare});

  const ItemError error{"internal", "it broke", "text"};
  t.check(item_error_reply(), {error, "d"}, {error});
  t.check(document_reply(), values::full_document(), {});
  t.check(document_counts_reply(), {}, {});
  t.check(chunk_reply(), values::full_chunk(), {});
  t.check(stored_block_reply(), values::full_block(), {});
  const BulkDeleteResult deleted{{"a"}, {"b"}, {}};
  t.check(bulk_deletion_reply(), {true, deleted, {{"c", error}}}, {false, {}, {}});
  const JobSnapshot job = values::full_job();
  t.check(job_counts_reply(), job.counts, {});
  t.check(job_item_reply(), job.results[1], job.results[0]);
  t.check(ingest_usage_reply(), job.usage, {});
  t.check(job_reply(), job, {});
  t.check(ingest_reply(), join_jobs({job}), {});
  const auto passages = values::passages();
  t.check(passage_reply(), passages[0], passages[1]);
  t.check(retrieve_reply(), {passages, RetrieveScorer::kHybrid, 3, "ms-marco"}, {passages});
  const RankedText ranked{1, 0.5, "text"};
  t.check(ranked_text_reply(), ranked, {});
  t.check(rerank_reply(), {"req_1", "minilm", "encoder", {ranked}, 7}, {"", "bm25", "bm25", {}, 0});

  t.check(tier_stats_reply(), {"dram", "full", {}, {}}, {"disk", "ok", {}, {}});
  CacheUseNow cache;
  cache.tiers = {{"dram", "full", {}, {}}};
  t.check(
      cache_stats_reply(),
      [&] {
        CacheUseNow by = cache;
        by.namespaces = {{{"default", 1, 2, 3},
                          values::full_evict_report(),
                          NamespaceUse::Quota{{1, 2}, {3, 4, 5, 0.5}}}};
        return by;
      }(),
      cache);
  t.check(eviction_reply(), {Tier::kDisk, true, values::full_evict_report()}, {});
  t.check(verification_reply(), {values::full_verify_report(), 1}, {VerifyReport{}});
  t.check(pins_reply(), {}, {false});
  ImportReport import;
  import.rejected = {{ "d", "its id" }};
  t.check(import_reply(), import, {});
  t.check(backup_reply(), {1, 2000, 3, 4, 5}, {});
  RequestInfo running;
  running.queue_position = 1;
  t.check(running_request_reply(), running, {});

  const auto listed = [&](const Reply<ListPage>& reply, json::object item, std::string_view id) {
    t.check(reply,
            {{std::move(item)},
             true,
             id,
             reply.name() == "DocumentList"
                 ? std::optional(document_counts_reply().json(DocumentCounts{}))
                 : std::nullopt},
            {});
  };
  listed(document_list_reply(), document_json(values::full_document()), "id");
  listed(list_reply("JobList", job_reply().kind()), job_json(job), "id");
  listed(list_reply("QueryList", query_entry_reply().kind()), query_entry_reply().json({full}),
         "id");
  listed(list_reply("RunningRequestList", running_request_reply().kind()),
         running_request_reply().json(running), "id");
  listed(list_reply("ChunkList", chunk_reply().kind(), kind::whole_number()),
         chunk_json(values::full_chunk()), "index");
  listed(list_reply("BlockList", stored_block_reply().kind()), block_json(values::full_block()),
         "block_id");

  for (const auto& [name, schema] : reply_schemas())
    EXPECT_TRUE(t.checked.contains(std::string(name)) || !schema.contains("properties"))
        << name << " is not checked here";
}

TEST(Replies, EveryRetrieverStatisticIsShown) {
  const auto retrieval = cache_json(values::full_record()).at("retrieval").as_object();
  std::set<std::string> numbers;
  for (const RetrieveStat& stat : kRetrieveStats) {
    ASSERT_TRUE(retrieval.contains(stat.name)) << stat.name;
    EXPECT_TRUE(numbers.insert(json::serialize(retrieval.at(stat.name))).second)
        << stat.name << " shows another's number";
  }
}

TEST(IngestReply, ErrorsNameDocumentsByTheirPlaceInTheCall) {
  JobSnapshot first, second;
  first.counts.total = 3;
  first.results.resize(3);
  second.counts.total = 2;
  second.results.resize(2);
  second.results[1].index = 1;
  second.results[1].error = ItemError{"invalid_value", "documents[1].text is not valid UTF-8",
                                      "documents[1].text"};
  second.results[0].error = ItemError{"cache_full", "a document has no room", ""};
  const IngestOutcome all = join_jobs({first, second});
  ASSERT_EQ(all.results.size(), 5u);
  EXPECT_EQ(all.results[4].index, 4);
  EXPECT_EQ(all.results[4].error->param, "documents[4].text");
  EXPECT_EQ(all.results[4].error->message, "documents[4].text is not valid UTF-8");
  EXPECT_EQ(all.results[3].error, second.results[0].error);
}

TEST(RetrieveReply, TheTextOfPassagesIsThatOfTheTableAndTakesThem) {
  std::vector<Passage> passages = values::passages();
  passages.push_back(passages.front());
  Passage& odd = passages.back();
  odd.document_id = odd.title = R"("text":"")";
  odd.metadata_json = R"({"text":"","data":[]})";
  odd.text = std::string("\"quoted\" \n\t\x01 \xC3\xA9 ");
  while (odd.text.size() < 200'000) odd.text += odd.text + "\xE4\xB8\xAD";
  for (const std::string reranker : {"", R"("data":[])"}) {
    const RankedPassages reply{passages, RetrieveScorer::kHybrid, 3, reranker};
    const std::string expected = to_text(retrieve_reply().json(reply));
    std::vector<Passage> taken = passages;
    EXPECT_EQ(take_retrieve_text(taken, reply), expected);
    for (const Passage& p : taken) EXPECT_LT(p.text.capacity(), 64u);
  }
  std::vector<Passage> none;
  const RankedPassages reply{none};
  EXPECT_EQ(take_retrieve_text(none, reply), to_text(retrieve_reply().json(reply)));
}

TEST(IngestReply, ResultsAreInTheOrderOfTheCall) {
  JobSnapshot texts, headings;
  texts.counts.total = headings.counts.total = 2;
  for (JobSnapshot* job : {&texts, &headings}) {
    job->results.resize(2);
    job->results[1].index = 1;
  }
  texts.results[0].id = "b";
  texts.results[1].id = "d";
  texts.results[1].error = ItemError{"empty_document", "documents[1] is empty", "documents[1]"};
  headings.results[0].id = "a";
  headings.results[1].id = "c";
  headings.results[0].error = ItemError{"empty_document", "is empty", "documents[0].text"};
  const IngestOutcome all = join_jobs({texts, headings}, {1, 3, 0, 2});
  ASSERT_EQ(all.results.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(all.results[static_cast<std::size_t>(i)].id, std::string(1, "abcd"[i]));
    EXPECT_EQ(all.results[static_cast<std::size_t>(i)].index, i);
  }
  EXPECT_EQ(all.results[3].error->param, "documents[3]");
  EXPECT_EQ(all.results[3].error->message, "documents[3] is empty");
  EXPECT_EQ(all.results[0].error->param, "documents[0].text");
}

}  // namespace
}  // namespace quire
