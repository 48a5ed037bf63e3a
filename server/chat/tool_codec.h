/// Reads the members of a chat that concern tools.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/tools.h"

namespace quire {

inline constexpr std::size_t kMaxTools = 128;

/// Reads tools, tool_choice and parallel_tool_calls, as OpenAI's API has them. Nothing where there
/// are no tools or none may be called.
void read_tools(JsonReader& r, std::optional<ToolUse>& out);

/// Returns the functions as OpenAI's API has them, for ToolUse::json.
std::string tools_json(const std::vector<ToolSpec>& tools);
/// Fails on a name that OpenAI's API does not allow, as member "name".
void check_tool_name(JsonReader& r, const std::string& name);
/// Reads the schema of a function's arguments, which must be one of an object.
void read_tool_schema(JsonReader& r, std::string_view member, JsonNeed need, std::string& out);

/// Reads tool_calls of an assistant's message, tool_call_id and name of a tool's. Such messages may
/// have no content.
void read_tool_members(JsonReader& message, ChatMessage& out);

/// Checks that every result follows the call it names, and fills in the names of the functions.
/// `before` are the messages so far.
void check_tool_result(JsonReader& message, const std::vector<ChatMessage>& before,
                       ChatMessage& result);

}  // namespace quire
