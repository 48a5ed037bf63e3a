/// Retrieval between JSON and values.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ingest/retrieval.h"
#include "server/json/reader.h"

namespace quire {

inline constexpr std::int64_t kMostPassages = 100;  ///< k of POST /v1/retrieve
inline constexpr std::size_t kMostRetrieveIds = 1000;

/// What a query without documents takes: `"retrieve": {"k": 4, "metadata": {}, "scorer": "bm25"}`.
struct QueryRetrieval {
  bool asked = false;  ///< the body says so itself
  std::int64_t k = 4;  ///< documents, at most
  std::vector<std::pair<std::string, std::string>> metadata;
  RetrieveScorer scorer = RetrieveScorer::kBm25;
};

/// The body of POST /v1/retrieve.
std::optional<ReadError> read_retrieve(const boost::json::value& body, RetrieveRequest& out);
/// The member `retrieve` of a query, if it is there.
void read_query_retrieval(ObjectReader& query, std::size_t max_documents,
                          std::optional<QueryRetrieval>& out);

/// "bm25", "embedding" or "hybrid".
std::string_view scorer_name(RetrieveScorer scorer);

/// `pending_documents`: of a scorer that uses embeddings, those without one yet.
boost::json::object retrieve_result_json(const std::vector<Passage>& passages,
                                         RetrieveScorer scorer,
                                         std::optional<std::uint64_t> pending_documents);

}  // namespace quire
