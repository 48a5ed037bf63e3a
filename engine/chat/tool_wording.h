/// Tools for models whose chat template has no place for them: the functions, their calls and their
/// results are written as text of ordinary turns.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/tools.h"

namespace quire {

/// A conversation of system, user and assistant turns alone.
struct WordedTools {
  std::optional<std::string> system;
  std::vector<ChatMessage> messages;
  /// For each of `messages`, the place of the first message that it stands for.
  std::vector<std::size_t> origin;
};

/// Returns the words that describe the functions to the model. `tools` is a JSON array as
/// OpenAI's API has it.
std::string tool_instruction(std::string_view tools, ToolStyle style);

/// Writes a conversation without tools. The instruction follows the system message, or stands
/// before the first question where the model has none (`has_system`). Calls of the assistant become
/// its text; results, and a question right behind them, become one turn of the user. `tools` may be
/// empty: there is no instruction then. Errors: kInvalidArgument with field
/// "messages[i].tool_calls".
Result<WordedTools> tools_in_words(std::optional<std::string> system,
                                   std::span<const ChatMessage> messages, std::string_view tools,
                                   ToolStyle style, bool has_system);

}  // namespace quire
