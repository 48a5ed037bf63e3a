#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <cstdio>
#include <optional>

#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/commands/model_path.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

struct RetrieveFlags {
  ClientFlags client;
  std::string question;
  std::vector<std::string> documents;
  std::string scorer = "auto";
  std::int64_t k = 4;
  std::optional<std::int64_t> rerank;
  bool whole_documents = false, as_json = false;
};

int retrieve(const RetrieveFlags& f) {
  json::object body;
  body["query"] = f.question;
  body["k"] = f.k;
  body["unit"] = f.whole_documents ? "document" : "chunk";
  body["scorer"] = f.scorer;
  if (f.rerank) body["rerank"] = *f.rerank;
  json::array ids;
  for (const auto& id : f.documents) ids.emplace_back(id);
  if (!ids.empty()) body["document_ids"] = std::move(ids);
  ClientRequest request;
  request.method = "POST";
  request.target = "/v1/retrieve";
  request.content_type = "application/json";
  request.body = to_text(body);
  const auto reply = client_json(f.client, std::move(request));
  if (!reply.ok()) return complain(reply.status());
  if (f.as_json) {
    std::printf("%s\n", to_text(*reply).c_str());
    return 0;
  }
  for (const auto& item : reply->at("data").as_array()) {
    const auto& p = item.as_object();
    std::printf("%8.3f  %s  chunk %lld  [%lld, %lld)\n%s\n\n", p.at("score").to_number<double>(),
                std::string(p.at("document_id").as_string()).c_str(),
                static_cast<long long>(p.at("chunk").to_number<std::int64_t>()),
                static_cast<long long>(p.at("start").to_number<std::int64_t>()),
                static_cast<long long>(p.at("end").to_number<std::int64_t>()),
                std::string(p.at("text").as_string()).c_str());
  }
  return 0;
}

}  // namespace

void add_retrieve_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<RetrieveFlags>();
  auto* c = app.add_subcommand("retrieve",
                               "Find passages in a running service, without generating");
  c->add_option("QUESTION", flags->question, "What to look for")->required();
  c->add_option("-k", flags->k, "How many")->capture_default_str();
  c->add_option("-d,--document", flags->documents,
                "Only in these documents (repeat, or separate by commas)")
      ->delimiter(',')
      ->allow_extra_args(false);
  c->add_flag("--documents", flags->whole_documents, "Whole documents instead of chunks");
  c->add_option(
       "--scorer", flags->scorer,
       "bm25, or embedding or hybrid where the service embeds (retrieve.encoder); auto: as "
       "retrieve.scorer says")
      ->check(CLI::IsMember({"auto", "bm25", "embedding", "hybrid"}))
      ->capture_default_str();
  c->add_option("--rerank", flags->rerank,
                "How many of the best the service's cross-encoder ranks anew (retrieve.reranker); "
                "0: none")
      ->check(CLI::Range(0, 100));
  add_client_flags(*c, flags->client);
  c->add_flag("--json", flags->as_json, "Print the whole reply as JSON");
  c->callback([flags, &run] { run = [flags] { return retrieve(*flags); }; });
}

}  // namespace quire
