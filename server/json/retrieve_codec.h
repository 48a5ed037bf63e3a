/// Reads retrieval requests from JSON.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "ingest/retrieval.h"

namespace quire {

inline constexpr std::int64_t kMostPassages = 100;  ///< largest k of POST /v1/retrieve
inline constexpr std::size_t kMostRetrieveIds = 1000;

/// QueryRetrieval is how a query without documents finds them: `"retrieve": {"k": 4, "metadata":
/// {}, "scorer": "bm25"}`.
struct QueryRetrieval {
  bool asked = false;  ///< the body contains `retrieve`
  std::int64_t k = 4;  ///< most documents to use
  std::vector<std::pair<std::string, std::string>> metadata;
  RetrieveScorer scorer = RetrieveScorer::kBm25;
};

/// Reads the body of POST /v1/retrieve.
std::optional<JsonError> read_retrieve(const boost::json::value& body, RetrieveRequest& out);
/// Reads the member `retrieve` of a query, if present.
void read_query_retrieval(JsonReader& query, std::size_t max_documents,
                          std::optional<QueryRetrieval>& out);

/// Returns "bm25", "embedding" or "hybrid".
std::string_view scorer_name(RetrieveScorer scorer);

}  // namespace quire
