/// Requests to rank given texts, in the form of Cohere's and Jina's APIs.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"

namespace quire {

inline constexpr std::size_t kMostRerankTexts = 1000;

/// The body of POST /v1/rerank: {"query", "documents": [text | {"text"}], "model", "top_n",
/// "return_documents"}.
struct RerankBody {
  std::string query, model;
  std::vector<std::string> texts;
  std::size_t top_n = 0;  ///< 1 to the number of texts
  bool return_documents = false;
};
std::optional<JsonError> read_rerank(const boost::json::value& body, RerankBody& out);

}  // namespace quire
