#include "server/json/retrieve_codec.h"

#include "base/index.h"
#include "server/json/metadata_filter.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kLongestQuery = 64 << 10;

void read_scorer(JsonReader& r, RetrieveScorer& out) {
  if (!r.has("scorer")) return;
  std::string name;
  r.string("scorer", name, 64);
  if (!r.ok()) return;
  for (const RetrieveScorer scorer : {RetrieveScorer::kAuto, RetrieveScorer::kBm25,
                                      RetrieveScorer::kEmbedding, RetrieveScorer::kHybrid}) {
    if (name == scorer_name(scorer)) {
      out = scorer;
      return;
    }
  }
  r.fail("scorer",
         r.path_of("scorer") + " is '" + name +
             "', which this build does not have; use auto, bm25, embedding or hybrid",
         "unsupported_parameter");
}

/// Reads a unit by its name, in the singular or the plural.
void read_unit(JsonReader& r, std::string& unit, std::initializer_list<std::string_view> names) {
  r.one_of("unit", unit, names);
  if (unit.ends_with('s')) unit.pop_back();
}

void read_rerank(JsonReader& r, std::optional<std::int64_t>& out) {
  if (r.has("rerank")) r.integer("rerank", out.emplace(0), 0, kMostPassages);
}

/// Reads `links`; call it behind the scorer.
void read_links(JsonReader& r, RetrieveScorer scorer, std::optional<double>& out) {
  if (!r.has("links")) return;
  r.number("links", out.emplace(0), 0, 1);
  if (r.ok() && scorer == RetrieveScorer::kEmbedding)
    r.fail("links", r.path_of("links") + " belongs to scorers bm25 and hybrid");
}

}  // namespace

std::string_view scorer_name(RetrieveScorer scorer) {
  switch (scorer) {
    case RetrieveScorer::kAuto:
      return "auto";
    case RetrieveScorer::kBm25:
      return "bm25";
    case RetrieveScorer::kEmbedding:
      return "embedding";
    case RetrieveScorer::kHybrid:
      return "hybrid";
  }
  return "bm25";
}

std::optional<FoundOrder> found_order(std::string_view name) {
  if (name == "best_first") return FoundOrder::kBestFirst;
  if (name == "best_last") return FoundOrder::kBestLast;
  return std::nullopt;
}

std::optional<JsonError> read_retrieve(const json::value& body, RetrieveBody& read) {
  RetrieveRequest& out = read.request;
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  r.string("query", out.query, kLongestQuery);
  if (r.ok() && out.query.empty())
    r.fail("query", r.has("query") ? "query is empty" : "query is missing");
  out.document_ids = r.strings("document_ids", kMostRetrieveIds);
  std::int64_t k = static_cast<std::int64_t>(out.k);
  r.integer("k", k, 1, kMostPassages);
  out.k = to_size(k);
  std::string unit = "chunk";
  read_unit(r, unit, {"chunk", "document", "chunks", "documents"});
  out.unit = unit == "document" ? RetrieveUnit::kDocument : RetrieveUnit::kChunk;
  r.number("min_score", read.min_score, 0, 1e9);
  read_scorer(r, out.scorer);
  read_links(r, out.scorer, out.links);
  read_rerank(r, read.rerank);
  read_metadata_filter(r, "metadata", out.metadata);
  r.finish();
  return r.error();
}

void read_query_retrieval(JsonReader& query, std::size_t max_documents,
                          std::optional<QueryRetrieval>& out) {
  const auto* value = query.raw("retrieve");
  if (!value || !query.ok()) return;
  JsonReader r(*value, "retrieve");
  QueryRetrieval read;
  read.asked = true;
  r.integer("k", read.k, 1, static_cast<std::int64_t>(max_documents));
  std::string unit = "auto";
  read_unit(r, unit, {"auto", "document", "chunk", "documents", "chunks"});
  read.unit = unit == "document" ? QueryUnit::kDocument
              : unit == "chunk"  ? QueryUnit::kChunk
                                 : QueryUnit::kAuto;
  if (r.has("neighbours")) r.integer("neighbours", read.neighbours.emplace(0), 0, 64);
  r.integer("max_tokens", read.max_tokens, 1, 1 << 20);
  if (r.has("max_tokens") && read.unit == QueryUnit::kDocument)
    r.fail("max_tokens", r.path_of("max_tokens") +
                             " bounds chunks, and unit document takes whole documents: use unit "
                             "auto or chunk, or a smaller k");
  r.number("min_score", read.min_score, 0, 1e9);
  read_metadata_filter(r, "metadata", read.metadata);
  read_scorer(r, read.scorer);
  read_links(r, read.scorer, read.links);
  read_rerank(r, read.rerank);
  if (r.has("order")) {
    std::string order = "best_first";
    r.one_of("order", order, {"best_first", "best_last"});
    read.order = found_order(order);
  }
  r.finish();
  query.adopt(r.error());
  out = std::move(read);
}

}  // namespace quire
