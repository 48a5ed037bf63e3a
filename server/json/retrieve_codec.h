/// Reads retrieval requests from JSON.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "cachestore/format/metadata.h"
#include "ingest/search/retrieval.h"

namespace quire {

inline constexpr std::int64_t kMostPassages = 100;  ///< largest k of POST /v1/retrieve
inline constexpr std::size_t kMostRetrieveIds = 1000;

/// What of the found documents goes into the prompt.
enum class QueryUnit : std::uint8_t {
  kAuto,      ///< the best chunks with neighbours; short documents whole
  kDocument,  ///< whole documents; if they do not fit the window, as kAuto
  kChunk,     ///< the best chunks
};

/// Where found documents stand in the prompt. Documents that a request names without `retrieve`
/// stay in its order.
enum class FoundOrder : std::uint8_t {
  kBestFirst,
  kBestLast,  ///< the best right before the question
};

/// QueryRetrieval is how a query finds documents, of all or of those it names: `"retrieve": {"k":
/// 4, "unit": "auto", "neighbours": 1, "max_tokens": 4096, "min_score": 0, "links": 0.4,
/// "metadata": {}, "scorer": "auto", "order": "best_last"}`.
struct QueryRetrieval {
  bool asked = false;  ///< the body contains `retrieve`
  std::int64_t k = 4;  ///< most documents, or with kChunk most found chunks
  QueryUnit unit = QueryUnit::kAuto;
  std::optional<std::int64_t> neighbours;  ///< of each found chunk; none: 1, with kChunk 0
  std::int64_t max_tokens = 4096;          ///< of documents in the prompt; not for kDocument
  double min_score = 0;                    ///< scores must be above it
  std::optional<double> links;             ///< as RetrieveRequest's
  MetadataFilter metadata;
  RetrieveScorer scorer = RetrieveScorer::kAuto;
  std::optional<std::int64_t> rerank;  ///< as RetrieveBody's
  std::optional<FoundOrder> order;     ///< none: as retrieve.order says
};

struct RetrieveBody {
  RetrieveRequest request;
  double min_score = 0;  ///< scores must be above it
  /// Number of best texts that a cross-encoder ranks anew; 0: it is not asked; none: as
  /// retrieve.rerank says.
  std::optional<std::int64_t> rerank;
};
/// Reads the body of POST /v1/retrieve.
std::optional<JsonError> read_retrieve(const boost::json::value& body, RetrieveBody& out);
/// Reads the member `retrieve` of a query, if present.
void read_query_retrieval(JsonReader& query, std::size_t max_documents,
                          std::optional<QueryRetrieval>& out);

/// Returns the order of a name; none: there is none of that name.
std::optional<FoundOrder> found_order(std::string_view name);
/// Returns "auto", "bm25", "embedding" or "hybrid".
std::string_view scorer_name(RetrieveScorer scorer);

}  // namespace quire
