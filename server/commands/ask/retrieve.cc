#include <CLI/CLI.hpp>
#include <boost/json/array.hpp>
#include <cstdio>
#include <optional>

#include "base/utf8.h"
#include "server/commands/ask/answer.h"
#include "server/commands/ask/conditions.h"
#include "server/commands/client.h"
#include "server/commands/commands.h"
#include "server/commands/model_files/model_path.h"
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
  double min_score = 0;
  std::optional<double> links;
  std::vector<std::string> metadata;
  std::optional<std::int64_t> rerank;
  bool whole_documents = false, full = false, as_json = false;
};

/// Returns the beginning of a text on one line.
std::string excerpt(std::string_view text) {
  constexpr std::size_t kMostBytes = 300;
  std::string out;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (space && (out.empty() || out.back() == ' ')) continue;
    if (out.size() == kMostBytes) {
      out.resize(tokenizer_internal::valid_utf8_prefix(out));  // a character may be cut
      return out + " ...";
    }
    out += space ? ' ' : c;
  }
  if (out.ends_with(' ')) out.pop_back();
  return out;
}

void print(const json::object& p, bool full) {
  const std::string_view text = p.at("text").as_string();
  std::printf("%8.3f  %s%s  (chunk %s, characters %s-%s)\n%s\n\n",
              p.at("score").to_number<double>(),
              std::string(p.at("document_id").as_string()).c_str(),
              printable(place_text(p), false).c_str(), member_text(p, "chunk").c_str(),
              member_text(p, "start").c_str(), member_text(p, "end").c_str(),
              printable(full ? std::string(text) : excerpt(text), true).c_str());
}

int retrieve(const RetrieveFlags& f) {
  json::object body;
  body["query"] = f.question;
  body["k"] = f.k;
  body["unit"] = f.whole_documents ? "document" : "chunk";
  body["scorer"] = f.scorer;
  body["min_score"] = f.min_score;
  if (json::object metadata = metadata_of(f.metadata); !metadata.empty())
    body["metadata"] = std::move(metadata);
  if (f.rerank) body["rerank"] = *f.rerank;
  if (f.links) body["links"] = *f.links;
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
  const auto& found = reply->at("data").as_array();
  for (const auto& item : found) print(item.as_object(), f.full);
  if (found.empty()) std::fprintf(stderr, "nothing was found for the question\n");
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
  c->add_option("--links", flags->links,
                "Part of a text's score that goes on to documents whose titles it names")
      ->check(CLI::Range(0.0, 1.0))
      ->check(check_finite);
  c->add_option("--min-score", flags->min_score, "Only what scores above this")
      ->check(CLI::Range(0.0, 1e6))
      ->check(check_finite)
      ->capture_default_str();
  add_metadata_flag(*c, flags->metadata);
  c->add_option("--rerank", flags->rerank,
                "How many of the best the service's cross-encoder ranks anew (retrieve.reranker); "
                "0: none")
      ->check(CLI::Range(0, 100));
  add_client_flags(*c, flags->client);
  c->add_flag("--full", flags->full, "Print the whole texts, not their beginnings");
  c->add_flag("--json", flags->as_json, "Print the whole reply as JSON");
  c->callback([flags, &run] { run = [flags] { return retrieve(*flags); }; });
}

}  // namespace quire
