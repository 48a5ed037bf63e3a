/// Reads bodies of Anthropic's Messages API.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/json/query_request.h"

namespace quire {

/// A document block. With a time to live it asks to be cached (`cache_control`).
struct AnthropicDocument {
  std::string title, text;
  std::optional<std::uint64_t> ttl_seconds;
  std::string param;  ///< its place in the request, for error messages
};

struct AnthropicBody {
  /// Without documents. `query` holds the defaults before and the body's values afterwards.
  QueryBody query;
  std::vector<AnthropicDocument> documents;  ///< in the order of the messages
};

/// Reads a body of POST /v1/messages, or with `count` one of POST /v1/messages/count_tokens, which
/// needs no max_tokens. Members of the protocol that are not supported are refused by name.
std::optional<JsonError> read_anthropic(const boost::json::value& body, bool count,
                                        std::size_t max_documents, AnthropicBody& out);

}  // namespace quire
