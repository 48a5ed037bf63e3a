#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <cstdio>
#include <utility>

#include "server/commands/ask/answer.h"
#include "server/commands/ask/conditions.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

struct QueryFlags {
  ClientFlags client;
  QuestionFlags asked;
  std::string question;
  bool as_json = false, plan = false;
  // What the service chooses; empty and 0: as it likes.
  std::string unit, scorer, order;
  std::int64_t rerank = -1;  ///< below 0: as the service does
  std::vector<std::string> metadata;
  std::int64_t k = 0, max_document_tokens = 0, neighbours = -1;
};

/// Returns the member `retrieve`; empty: nothing of it was asked for.
json::object retrieve_of(const QueryFlags& f) {
  json::object o;
  if (f.k > 0) o["k"] = f.k;
  if (!f.unit.empty()) o["unit"] = f.unit;
  if (!f.scorer.empty()) o["scorer"] = f.scorer;
  if (f.rerank >= 0) o["rerank"] = f.rerank;
  if (!f.order.empty()) o["order"] = f.order;
  if (f.max_document_tokens > 0) o["max_tokens"] = f.max_document_tokens;
  if (f.neighbours >= 0) o["neighbours"] = f.neighbours;
  if (json::object metadata = metadata_of(f.metadata); !metadata.empty())
    o["metadata"] = std::move(metadata);
  return o;
}

json::object body_of(const QueryFlags& f) {
  json::object o = question_body(f.asked);
  o["query"] = f.question;
  if (json::object retrieve = retrieve_of(f); !retrieve.empty())
    o["retrieve"] = std::move(retrieve);
  return o;
}

void print_fates(const json::object& done) {
  const auto& usage = done.at("usage").as_object();
  const auto& fates = usage.at("cache_details").as_object();
  const auto& timings = done.at("timings").as_object();
  const auto& cache = done.at("cache").as_object();
  std::fprintf(
      stderr,
      "\n%s prompt tokens: %s reused, %s recomputed, %s computed, %s dropped  (strategy %s)\n",
      member_text(usage, "prompt_tokens").c_str(), member_text(fates, "reused_tokens").c_str(),
      member_text(fates, "recomputed_tokens").c_str(),
      member_text(fates, "computed_tokens").c_str(), member_text(fates, "dropped_tokens").c_str(),
      std::string(cache.at("strategy").as_string()).c_str());
  if (cache.at("fallback").is_string())
    std::fprintf(stderr, "fallback: %s\n", std::string(cache.at("fallback").as_string()).c_str());
  for (const auto& m : cache.at("misses").as_array()) {
    const auto& miss = m.as_object();
    std::fprintf(stderr, "miss: %s (%s, %s tokens)\n",
                 std::string(miss.at("document_id").as_string()).c_str(),
                 std::string(miss.at("reason").as_string()).c_str(),
                 member_text(miss, "tokens").c_str());
  }
  std::fprintf(
      stderr, "first token after %s ms, %s tokens in %s ms; explain: %s\n",
      member_text(timings, "ttft_ms").c_str(), member_text(usage, "completion_tokens").c_str(),
      member_text(timings, "total_ms").c_str(),
      done.contains("explain_url") ? std::string(done.at("explain_url").as_string()).c_str() : "-");
}

/// Prints an error in the command line's own words where the service names fields of the request.
int refused(const Status& status) {
  const int code = complain(status);
  if (status.field() == "retrieve")
    std::fprintf(stderr,
                 "hint: other words or fewer conditions (--metadata) may find documents; "
                 "--no-documents asks without any\n");
  return code;
}

int stream(const QueryFlags& flags, json::object body) {
  const auto done = stream_answer(flags.client, std::move(body));
  if (!done.ok()) return refused(done.status());
  print_citations(*done);
  const auto* used = done->if_contains("documents");
  const bool none = used && used->is_array() && used->as_array().empty();
  if (none && !flags.asked.no_documents)  // the answer is the model's own, which nobody asked for
    std::fprintf(stderr,
                 "no document was used: none fits the question; 'quire documents list' shows those "
                 "that are there, and -d names some\n");
  print_fates(*done);
  return 0;
}

int query(const QueryFlags& flags) {
  ClientRequest request;
  request.method = "POST";
  request.target = flags.plan ? "/v1/query/plan" : "/v1/query";
  request.content_type = "application/json";
  json::object body = body_of(flags);
  if (!flags.plan && !flags.as_json) return stream(flags, std::move(body));
  request.body = to_text(body);
  add_affinity(flags.client, flags.asked.documents, request);
  const auto reply = client_call(flags.client, std::move(request));
  if (!reply.ok()) return refused(reply.status());
  std::printf("%s\n", reply->body.c_str());
  return 0;
}

}  // namespace

void add_query_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<QueryFlags>();
  auto* c = app.add_subcommand(
      "query",
      "Ask a running service.\nThe answer is streamed to standard output; citations and the fate "
      "of every prompt token follow on standard error");
  c->add_option("QUESTION", flags->question, "The question")->required();
  add_question_flags(*c, flags->asked);
  c->add_option("-k", flags->k, "Most documents that the service takes")
      ->check(CLI::Range(1, 1 << 20));
  c->add_option(
       "--unit", flags->unit,
       "What it takes: auto (best chunks with neighbours, short documents whole), document "
       "or chunk")
      ->check(CLI::IsMember({"auto", "document", "chunk", "documents", "chunks"}));
  c->add_option("--neighbours", flags->neighbours, "Chunks beside each found one")
      ->check(CLI::Range(0, 64));
  c->add_option("--document-tokens", flags->max_document_tokens,
                "Most tokens of documents that it takes")
      ->check(CLI::Range(1, 1 << 20));
  add_metadata_flag(*c, flags->metadata);
  c->add_option("--scorer", flags->scorer, "How documents are ranked")
      ->check(CLI::IsMember({"auto", "bm25", "embedding", "hybrid"}));
  c->add_option("--rerank", flags->rerank,
                "How many of the best the service's cross-encoder ranks anew (retrieve.reranker); "
                "0: none")
      ->check(CLI::Range(0, 100));
  c->add_option("--order", flags->order,
                "Where found documents stand in the prompt: the best first, or last, right before "
                "the question; default: as retrieve.order says")
      ->check(CLI::IsMember({"best_first", "best_last"}));
  add_client_flags(*c, flags->client);
  c->add_flag("--json", flags->as_json, "Print the whole reply as JSON");
  c->add_flag("--plan", flags->plan, "Only say what would be used, without generating");
  c->callback([flags, &run] { run = [flags] { return query(*flags); }; });
}

}  // namespace quire
