/// Reads OpenAI-style requests into the service's own values. The table of
/// server/chat/openai_fields says which members there are; the others are refused.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>

#include "base/json_reader.h"
#include "server/json/query_request.h"

namespace quire {

inline constexpr std::int64_t kMaxChoices = 8;

/// OpenAiBody is a checked body of POST /v1/chat/completions or /v1/completions.
struct OpenAiBody {
  QueryBody query;
  std::int32_t n = 1;          ///< choices of each prompt; prompts times n is at most kMaxChoices
  bool include_usage = false;  ///< for a stream
  std::string user;            ///< who asks, for the log; empty: not said
};

/// `window` is the answer's length if the request names none. The temperature defaults to 1, as in
/// OpenAI's protocol.
std::optional<JsonError> read_chat_completion(const boost::json::value& body,
                                              const QueryDefaults& defaults, std::int64_t window,
                                              OpenAiBody& out);
/// The answer's length defaults to 16 tokens, as in OpenAI's protocol.
std::optional<JsonError> read_completion(const boost::json::value& body,
                                         const QueryDefaults& defaults, std::int64_t window,
                                         OpenAiBody& out);
/// Reads one message: content as text or as text parts; `developer` becomes `system`.
void read_openai_message(JsonReader& message, ChatMessage& out);
/// Reads messages into out.system, out.messages and out.message_index. Leading system messages are
/// joined by an empty line.
void read_openai_messages(JsonReader& parent, QueryBody& out);

}  // namespace quire
