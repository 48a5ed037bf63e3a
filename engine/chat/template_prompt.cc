#include "engine/chat/template_prompt.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "base/json_parse.h"

namespace quire::tokenizer_internal {
namespace {

namespace json = boost::json;

constexpr jinja::Mark kContentMark = 1, kAskedMark = 2, kCutMark = 3;
/// A character for private use, so that no template trims or changes it.
constexpr std::string_view kCutText = "\xEE\x80\x80";
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

/// Bytes [begin, end) of the text with one mark; `pieces` counts how many runs of it there are.
struct Found {
  std::size_t begin = 0, end = 0, pieces = 0;
};
Found find_mark(const jinja::Text& text, jinja::Mark mark) {
  Found found;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.mark_at(i) != mark) continue;
    if (found.pieces == 0 || text.mark_at(i - 1) != mark) {
      ++found.pieces;
      found.begin = i;
    }
    found.end = i + 1;
  }
  return found;
}

jinja::Value text_value(std::string_view text, jinja::Mark mark = jinja::kTemplateMark) {
  return jinja::Value::text(text, mark);
}

void put(jinja::Dict& dict, std::string_view key, jinja::Value value) {
  dict.set(text_value(key), std::move(value));
}

/// OpenAI's API has the arguments of a call as a text that holds JSON; templates want the JSON.
Result<jinja::Value> tool_calls_value(const std::string& calls, const std::string& field) {
  json::value parsed;
  if (parse_json(calls, parsed) || !parsed.is_array())
    return Status::invalid(field, "tool_calls must be a JSON array");
  for (json::value& call : parsed.get_array()) {
    json::object* object = call.if_object();
    json::value* function = object == nullptr ? nullptr : object->if_contains("function");
    if (function == nullptr || !function->is_object()) {
      return Status::invalid(field, "each tool call must have a 'function'");
    }
    json::value* arguments = function->get_object().if_contains("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    json::value inner;
    // A model wrote this text, so a repeated key is not the client's fault.
    JsonLimits limits = kOutsideJson;
    limits.repeated_keys = true;
    const auto wrong = parse_json(arguments->get_string(), inner, limits);
    if (!wrong && inner.is_object()) *arguments = std::move(inner);
  }
  return jinja_value_of_json(json::serialize(parsed), kContentMark, field);
}

std::string field_of(std::size_t i, std::string_view member) {
  return "messages[" + std::to_string(i) + "]." + std::string(member);
}

TemplateTurn turn(std::string role, std::string_view text, jinja::Mark mark = kContentMark) {
  return {.role = std::move(role), .content = jinja::Text(std::string(text), mark)};
}

/// Tells the form of a call from how a template shows one behind the descriptions of the tools.
std::optional<ToolStyle> style_of_call(std::string_view shown) {
  // What stands behind the question is the call.
  const std::size_t asked = shown.rfind("Who?");
  if (asked != std::string_view::npos) shown.remove_prefix(asked);
  if (shown.find("[TOOL_CALLS]") != std::string_view::npos) return ToolStyle::kMistral;
  if (shown.find("<tool_call>[") != std::string_view::npos) return ToolStyle::kSmolLm;
  const auto json = shown.find("{\"name\"");
  if (json == std::string_view::npos) return std::nullopt;
  if (shown.find("<tool_call>") != std::string_view::npos) return ToolStyle::kHermes;
  if (shown.find("\"parameters\"", json) != std::string_view::npos) return ToolStyle::kLlama3;
  return std::nullopt;
}

/// Cuts a rendered conversation behind the content of its last message, which has kAskedMark.
Result<jinja::Text> up_to_content(jinja::Text text) {
  const Found found = find_mark(text, kAskedMark);
  if (found.pieces != 1) {
    return Status::invalid("messages",
                           "the chat template shows the message to continue not once as it is");
  }
  return text.substr(0, found.end);
}

}  // namespace

Result<TemplatePrompt> TemplatePrompt::make(std::string_view source, TemplateContext context) {
  QUIRE_ASSIGN_OR_RETURN(JinjaTemplate parsed, JinjaTemplate::parse(source));
  TemplatePrompt prompt(std::move(parsed), std::move(context));
  QUIRE_RETURN_IF_ERROR(prompt.probe());
  return prompt;
}

Status TemplatePrompt::probe() {
  const TemplateTurn user = turn("user", "Who?", kAskedMark);
  Status refused;
  bool shown = false;
  for (int attempt = 0; attempt < 4 && !shown; ++attempt) {
    parts_ = (attempt & 1) != 0;
    empty_tools_ = (attempt & 2) != 0;
    const auto text = render_turns(std::span(&user, 1), true, {});
    if (!text.ok() && attempt == 0) refused = text.status();
    shown = text.ok() && find_mark(*text, kAskedMark).pieces > 0;
  }
  if (!shown) {
    if (!refused.ok()) return refused;
    return Status::invalid("", "the chat template does not show what the user says");
  }
  const TemplateTurn with_system[] = {turn("system", "Kind."), user};
  const auto system = render_turns(with_system, true, {});
  shows_system_ = system.ok() && find_mark(*system, kContentMark).pieces > 0 &&
                  find_mark(*system, kAskedMark).pieces > 0;
  constexpr std::string_view kTool =
      R"([{"type": "function", "function": {"name": "f", "description": "d",)"
      R"( "parameters": {"type": "object", "properties": {}, "required": []}}}])";
  const auto tools = render_turns(std::span(&user, 1), true, kTool);
  shows_tools_ = tools.ok() && find_mark(*tools, kContentMark).pieces > 0;
  // Mistral's templates demand an id of nine letters.
  ChatMessage calling{"assistant", ""};
  calling.tool_calls = R"([{"id": "abcdefghi", "type": "function", "function": {"name": "f",)"
                       R"( "arguments": "{}"}}])";
  ChatMessage result{"tool", "Yes."};
  result.tool_call_id = "abcdefghi";
  result.name = "f";
  TemplateTurn called[] = {user, turn("assistant", ""), turn("tool", result.content)};
  called[1].message = &calling;
  called[2].message = &result;
  const std::span<const TemplateTurn> without_result(called, 2);
  // A template may read the content only of a message that is not the last.
  empty_content_ = needs_content(without_result, kTool) || needs_content(called, kTool);
  const auto call = render_turns(without_result, false, kTool);
  if (shows_tools_ && call.ok()) tool_style_ = style_of_call(call->bytes);
  const TemplateTurn answered[] = {user, turn("assistant", "Me.")};
  const auto whole = render_turns(answered, false, {});
  if (whole.ok()) {
    const Found answer = find_mark(*whole, kContentMark);
    if (answer.pieces == 1) after_answer_ = whole->bytes.substr(answer.end);
  }
  return {};
}

bool TemplatePrompt::needs_content(std::span<const TemplateTurn> turns, std::string_view tools) {
  const auto shown = [&](bool empty_content) {
    empty_content_ = empty_content;
    return render_turns(turns, false, tools);
  };
  const auto without = shown(false), with = shown(true);
  constexpr std::string_view kNone = "None";  // as Jinja writes what is not there
  return with.ok() && (!without.ok() || (without->bytes.find(kNone) != std::string::npos &&
                                         with->bytes.find(kNone) == std::string::npos));
}

Result<jinja::Text> TemplatePrompt::render_turns(std::span<const TemplateTurn> turns,
                                                 bool add_generation_prompt,
                                                 std::string_view tools) const {
  std::size_t size = tools.size();
  std::vector<jinja::Value> messages;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const TemplateTurn& t = turns[i];
    auto dict = std::make_shared<jinja::Dict>();
    put(*dict, "role", text_value(t.role));
    const ChatMessage* more = t.message;
    const bool calls = more != nullptr && !more->tool_calls.empty();
    jinja::Value content(t.content);
    if (calls && t.content.empty() && !empty_content_) {
      content = jinja::None{};  // as clients of OpenAI's API send it
    } else if (parts_) {
      auto part = std::make_shared<jinja::Dict>();
      put(*part, "type", text_value("text"));
      put(*part, "text", std::move(content));
      content = jinja::Value::list({jinja::Value(std::move(part))});
    }
    put(*dict, "content", std::move(content));
    size += t.content.size();
    if (more != nullptr) {
      if (calls) {
        QUIRE_ASSIGN_OR_RETURN(jinja::Value value,
                               tool_calls_value(more->tool_calls, field_of(i, "tool_calls")));
        put(*dict, "tool_calls", std::move(value));
        size += more->tool_calls.size();
      }
      const auto text = [&](std::string_view key, const std::string& value) {
        if (!value.empty()) put(*dict, key, text_value(value, kContentMark));
        size += value.size();
      };
      text("name", more->name);
      text("tool_call_id", more->tool_call_id);
      text("reasoning_content", more->reasoning_content);
    }
    messages.emplace_back(std::move(dict));
  }
  JinjaTemplate::Inputs inputs;
  inputs.emplace_back("tools", empty_tools_ ? jinja::Value::list({}) : jinja::Value(jinja::None{}));
  if (!tools.empty()) {
    QUIRE_ASSIGN_OR_RETURN(inputs.back().second, jinja_value_of_json(tools, kContentMark, "tools"));
    if (inputs.back().second.as_list() == nullptr) {
      return Status::invalid("tools", "tools must be a JSON array");
    }
  }
  inputs.emplace_back("messages", jinja::Value::list(std::move(messages)));
  inputs.emplace_back("documents", jinja::None{});
  inputs.emplace_back("add_generation_prompt", add_generation_prompt);
  inputs.emplace_back("enable_thinking", context_.enable_thinking);
  std::vector<jinja::Value> additional;
  for (const std::string& text : context_.additional_special_tokens)
    additional.push_back(text_value(text));
  if (!additional.empty()) {
    inputs.emplace_back("additional_special_tokens", jinja::Value::list(std::move(additional)));
  }
  for (const auto& [name, text] : context_.special_tokens) {
    inputs.emplace_back(name, text_value(text));
  }
  return template_.render(std::move(inputs), size);
}

Result<jinja::Text> TemplatePrompt::render(std::span<const ChatMessage> messages,
                                           bool add_generation_prompt, std::string_view tools,
                                           bool continue_last) const {
  if (!tools.empty() && !shows_tools_) {
    return Status::invalid("tools", "this model's chat template has no place for tools");
  }
  std::vector<TemplateTurn> turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    if (std::find(kRoles.begin(), kRoles.end(), m.role) == kRoles.end()) {
      return Status::invalid(field_of(i, "role"), "unknown role '" + m.role.substr(0, 80) +
                                                      "'; must be system, user, assistant or tool");
    }
    const bool open = continue_last && i + 1 == messages.size();
    turns.push_back(turn(m.role, m.content, open ? kAskedMark : kContentMark));
    turns.back().message = &m;
  }
  auto text = render_turns(turns, add_generation_prompt && !continue_last, tools);
  if (!text.ok() && text.status().field().empty()) return text.status().with_field("messages");
  if (text.ok() && continue_last) return up_to_content(std::move(*text));
  return text;
}

Result<TemplatePrompt::Cut> TemplatePrompt::cut(std::optional<std::string_view> system,
                                                std::string_view before_cut,
                                                std::string_view after_cut,
                                                std::span<const ChatMessage> messages,
                                                std::string_view tools, bool continue_last) const {
  std::vector<TemplateTurn> turns;
  if (system) turns.push_back(turn("system", *system));
  const std::size_t first = turns.size();
  for (const ChatMessage& m : messages) {
    const bool open = continue_last && &m == &messages.back();
    turns.push_back(turn(m.role, m.content, open ? kAskedMark : kContentMark));
    turns.back().message = &m;
  }
  jinja::Text asked;
  asked.append(before_cut);
  asked.append(kCutText, kCutMark);
  asked.append(after_cut);
  asked.append(turns[first].content);
  turns[first].content = std::move(asked);
  auto text = render_turns(turns, !continue_last, tools);
  if (!text.ok()) {
    const Status& status = text.status();
    return status.field().empty() ? status.with_field("messages") : status;
  }
  if (continue_last) {
    QUIRE_ASSIGN_OR_RETURN(*text, up_to_content(std::move(*text)));
  }
  const Found found = find_mark(*text, kCutMark);
  if (found.pieces != 1 || text->bytes.substr(found.begin, found.end - found.begin) != kCutText) {
    return Status::invalid(
        "messages", "the chat template shows the user's text " +
                        std::string(found.pieces == 0 ? "not at all" : "changed or several times"));
  }
  return Cut{text->substr(0, found.begin), text->substr(found.end)};
}

}  // namespace quire::tokenizer_internal
