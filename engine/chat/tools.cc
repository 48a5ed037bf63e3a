#include "engine/chat/tools.h"

#include <algorithm>

namespace quire {

std::string_view tool_style_name(ToolStyle style) {
  switch (style) {
    case ToolStyle::kHermes:
      return "hermes";
    case ToolStyle::kSmolLm:
      return "smollm";
    case ToolStyle::kLlama3:
      return "llama3";
    case ToolStyle::kMistral:
      return "mistral";
  }
  return "unknown";
}

std::vector<std::int32_t> tool_marker_ids(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (const std::string_view marker :
       {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<tool_call>", "</tool_call>"}) {
    const auto id = tokenizer.token_id(marker);
    if (id && tokenizer.is_special(*id)) ids.push_back(*id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace quire
