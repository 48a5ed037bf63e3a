/// OpenAI-style requests to the service's own values. Unknown fields are ignored; known ones that
/// are not supported and differ from their default are `unsupported_parameter`.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>

#include "server/json/query_codec.h"
#include "server/json/reader.h"

namespace quire {

inline constexpr std::int64_t kMaxChoices = 8;

/// A body of POST /v1/chat/completions or /v1/completions, checked.
struct OpenAiBody {
  QueryBody query;
  std::int32_t n = 1;          ///< choices of each prompt; prompts times n is at most kMaxChoices
  bool include_usage = false;  ///< of a stream
};

/// `window`: the answer's length where the request names none. Temperature is 1 where it is not
/// given, as the protocol has it.
std::optional<ReadError> read_chat_completion(const boost::json::value& body,
                                              const QueryDefaults& defaults, std::int64_t window,
                                              OpenAiBody& out);
/// 16 tokens where the request names no length, as the protocol has it.
std::optional<ReadError> read_completion(const boost::json::value& body,
                                         const QueryDefaults& defaults, OpenAiBody& out);
/// One message: content as text or as text parts, `developer` as `system`.
void read_openai_message(ObjectReader& message, ChatMessage& out);
/// OpenAI-style messages into out.system, out.messages and out.message_index, leading system
/// messages joined by an empty line.
void read_openai_messages(ObjectReader& parent, QueryBody& out);

}  // namespace quire
