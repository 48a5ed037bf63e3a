#include "engine/chat/tool_wording.h"

#include <boost/json.hpp>

#include "base/json_parse.h"
#include "engine/chat/jinja_template.h"
#include "engine/jinja/value.h"

namespace quire {
namespace {

namespace json = boost::json;

/// Writes JSON with numbers as models know them: 0.5, not 5E-1.
std::string written(const json::value& value) {
  std::string text = json::serialize(value);
  const auto plain = tokenizer_internal::jinja_value_of_json(text, jinja::kTemplateMark, "tools");
  if (!plain.ok()) return text;
  const jinja::JsonStyle compact{.item_separator = ",", .key_separator = ":"};
  // 1E15 becomes 1000000000000000.0.
  return to_json(*plain, compact, 8 * text.size()).bytes;
}

/// Writes the calls of an assistant's message as the model would write them itself.
Result<std::string> calls_as_text(const std::string& calls, ToolStyle style,
                                  const std::string& field) {
  json::value parsed;
  if (parse_json(calls, parsed) || !parsed.is_array())
    return Status::invalid(field, field + " must be a JSON array");
  std::vector<std::string> texts;
  for (const json::value& call : parsed.get_array()) {
    const json::object* object = call.if_object();
    const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    const json::value* name = function == nullptr || !function->is_object()
                                  ? nullptr
                                  : function->get_object().if_contains("name");
    if (name == nullptr || !name->is_string())
      return Status::invalid(field, "each tool call must have a 'function' with a 'name'");
    std::string arguments = "{}";
    if (const json::value* given = function->get_object().if_contains("arguments")) {
      if (!given->is_string())
        arguments = written(*given);
      else if (!given->get_string().empty())
        arguments = std::string(given->get_string());
    }
    texts.push_back("{\"name\": " + json::serialize(*name) + ", \"arguments\": " + arguments + "}");
  }
  std::string out;
  if (style == ToolStyle::kSmolLm) {
    for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + text;
    return "<tool_call>[" + out + "]</tool_call>";
  }
  for (const std::string& text : texts)
    out += (out.empty() ? "" : "\n") + ("<tool_call>\n" + text + "\n</tool_call>");
  return out;
}

std::string result_as_text(const ChatMessage& message) {
  const std::string name = message.name.empty() ? "" : " name=\"" + message.name + "\"";
  return "<tool_response" + name + ">\n" + message.content + "\n</tool_response>";
}

}  // namespace

std::string tool_instruction(std::string_view tools, ToolStyle style) {
  json::value parsed;
  std::string listed;
  if (!parse_json(tools, parsed) && parsed.is_array())
    for (const json::value& tool : parsed.get_array()) listed += "\n" + written(tool);
  const bool list = style == ToolStyle::kSmolLm;
  return "You can call functions to answer. These are their descriptions:\n<tools>" + listed +
         "\n</tools>\n\nTo call " +
         (list ? "functions, write a JSON list of calls between tags and nothing else:\n"
                 "<tool_call>[{\"name\": \"function\", \"arguments\": {...}}]</tool_call>"
               : "a function, write its name and arguments as JSON between tags, and nothing "
                 "else:\n<tool_call>\n{\"name\": \"function\", \"arguments\": {...}}\n"
                 "</tool_call>") +
         "\nTheir results follow between <tool_response> tags. "
         "If no function is needed, answer directly.";
}

Result<WordedTools> tools_in_words(std::optional<std::string> system,
                                   std::span<const ChatMessage> messages, std::string_view tools,
                                   ToolStyle style, bool has_system) {
  WordedTools out;
  out.system = std::move(system);
  bool joins_results = false;  ///< the last turn consists of results
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    ChatMessage turn{m.role, m.content};
    if (!m.tool_calls.empty()) {
      const std::string field = "messages[" + std::to_string(i) + "].tool_calls";
      QUIRE_ASSIGN_OR_RETURN(const std::string calls, calls_as_text(m.tool_calls, style, field));
      turn.content += (turn.content.empty() ? "" : "\n") + calls;
    }
    const bool result = m.role == "tool";
    if (result) turn = {"user", result_as_text(m)};
    if (joins_results && turn.role == "user") {
      out.messages.back().content += "\n" + turn.content;
    } else {
      out.messages.push_back(std::move(turn));
      out.origin.push_back(i);
    }
    joins_results = result;
  }
  if (tools.empty() || out.messages.empty()) return out;
  const std::string words = tool_instruction(tools, style);
  if (has_system) {
    out.system = out.system && !out.system->empty() ? *out.system + "\n\n" + words : words;
  } else {
    out.messages.front().content = words + "\n\n" + out.messages.front().content;
  }
  return out;
}

}  // namespace quire
