/// Reads bodies of OpenAI's Responses API.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "server/json/query_request.h"

namespace quire {

struct ResponsesBody {
  /// `query` holds the defaults before and the body's values afterwards.
  QueryBody query;
  /// Vector stores of the tool file_search, whose search `query.retrieve` describes; empty: the
  /// tool is not there.
  std::vector<std::string> vector_store_ids;
  /// Members that the reply repeats as they were given: instructions, tools, text, metadata, ...
  boost::json::object echoed;
};

/// Reads a body of POST /v1/responses. Members of the protocol that are not supported are refused
/// by name.
std::optional<JsonError> read_responses(const boost::json::value& body, ResponsesBody& out);

}  // namespace quire
