#include "server/chat/tool_codec.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>

#include "base/json_parse.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxName = 64, kMaxCalls = 128, kMaxId = 256;

/// Reads {"type": "function", "function": {...}}.
ToolSpec read_tool(JsonReader& tool) {
  ToolSpec out;
  std::string type = "function";
  tool.string("type", type, 64);
  if (tool.ok() && type != "function")
    tool.fail("type", tool.path_of("type") + " is '" + type + "'; only functions are supported",
              "unsupported_parameter");
  const auto* function = tool.object("function", JsonNeed::kRequired);
  if (!function) return out;
  JsonReader f(*function, tool.path_of("function"));
  f.string("name", out.name, kMaxName);
  check_tool_name(f, out.name);
  f.string("description", out.description, 64 << 10);
  f.boolean("strict", out.strict);
  read_tool_schema(f, "parameters", JsonNeed::kOptional, out.parameters);
  f.finish();
  tool.adopt(f.error());
  tool.finish();
  return out;
}

/// What the model's template gets: members it may not know are left out.
json::object described(const ToolSpec& tool) {
  json::object function{{"name", tool.name}};
  if (!tool.description.empty()) function["description"] = tool.description;
  json::value parameters = json::object{{"type", "object"}, {"properties", json::object()}};
  if (!tool.parameters.empty()) (void)parse_json(tool.parameters, parameters);
  function["parameters"] = std::move(parameters);
  return {{"type", "function"}, {"function", std::move(function)}};
}

/// Reads "none", "auto", "required" or {"type": "function", "function": {"name"}}. Returns false
/// where no tool may be called.
bool read_choice(JsonReader& r, ToolUse& use) {
  const auto* choice = r.raw("tool_choice");
  if (!choice) return true;
  if (const auto* word = choice->if_string()) {
    if (*word == "required") use.choice = ToolChoice::kRequired;
    if (*word == "none") return false;
    if (*word != "required" && *word != "auto")
      r.fail("tool_choice", "tool_choice is '" + std::string(word->subview(0, 64)) +
                                "'; use none, auto, required or {\"type\": \"function\", "
                                "\"function\": {\"name\": ...}}");
    return true;
  }
  JsonReader c(*choice, "tool_choice");
  std::string type;
  c.string("type", type, 64, JsonNeed::kRequired);
  if (c.ok() && type != "function")
    c.fail("type", "tool_choice.type is '" + type + "'; only function is supported",
           "unsupported_parameter");
  if (const auto* function = c.ok() ? c.object("function", JsonNeed::kRequired) : nullptr) {
    JsonReader f(*function, "tool_choice.function");
    f.string("name", use.only, kMaxName, JsonNeed::kRequired);
    f.finish();
    c.adopt(f.error());
  }
  c.finish();
  r.adopt(c.error());
  if (!r.ok()) return true;
  use.choice = ToolChoice::kRequired;
  if (std::none_of(use.tools.begin(), use.tools.end(),
                   [&](const ToolSpec& t) { return t.name == use.only; }))
    r.fail("tool_choice.function.name",
           "tool_choice names the function '" + use.only + "', which is not among the tools");
  return true;
}

}  // namespace

void check_tool_name(JsonReader& r, const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  if (!r.ok()) return;
  if (name.empty()) return r.fail("name", r.path_of("name") + " is missing or empty");
  if (!std::all_of(name.begin(), name.end(), allowed))
    r.fail("name", r.path_of("name") + " may have letters, digits, '_', '-' and '.' only");
}

void read_tool_schema(JsonReader& r, std::string_view member, JsonNeed need, std::string& out) {
  const auto* schema = r.object(member, need);
  if (!schema) return;
  const auto* type = schema->if_contains("type");
  if (type != nullptr && *type != "object") {
    const std::string field = std::string(member) + ".type";
    return r.fail(field, r.path_of(field) + " must be object: arguments are a JSON object");
  }
  out = json::serialize(*schema);
}

std::string tools_json(const std::vector<ToolSpec>& tools) {
  json::array out;
  for (const ToolSpec& tool : tools) out.push_back(described(tool));
  return json::serialize(out);
}

void read_tools(JsonReader& r, std::optional<ToolUse>& out) {
  ToolUse use;
  const auto* list = r.array("tools", 0, kMaxTools);
  r.boolean("parallel_tool_calls", use.parallel);
  if (!r.ok()) return;
  for (std::size_t i = 0; list && i < list->size(); ++i) {
    JsonReader tool((*list)[i], "tools[" + std::to_string(i) + "]");
    ToolSpec spec;
    if (tool.ok()) spec = read_tool(tool);
    if (tool.ok() && std::any_of(use.tools.begin(), use.tools.end(),
                                 [&](const ToolSpec& t) { return t.name == spec.name; }))
      tool.fail("function.name", "the function '" + spec.name + "' is there twice");
    r.adopt(tool.error());
    if (!r.ok()) return;
    use.tools.push_back(std::move(spec));
  }
  if (use.tools.empty()) {
    const auto* choice = r.raw("tool_choice");
    if (choice && *choice != "none" && *choice != "auto")
      r.fail("tool_choice", "tool_choice needs tools");
    return;
  }
  if (!read_choice(r, use) || !r.ok()) return;
  use.json = tools_json(use.tools);
  out = std::move(use);
}

void read_tool_members(JsonReader& m, ChatMessage& out) {
  m.string("name", out.name, kMaxName);
  if (out.role == "tool") {
    m.string("tool_call_id", out.tool_call_id, kMaxId, JsonNeed::kRequired);
    return;
  }
  if (out.role != "assistant") return;
  const auto* calls = m.array("tool_calls", 0, kMaxCalls);
  if (!calls || calls->empty()) return;
  json::array kept;
  for (std::size_t i = 0; i < calls->size(); ++i) {
    JsonReader c((*calls)[i], m.path_of("tool_calls") + "[" + std::to_string(i) + "]");
    std::string id, type = "function", name, arguments = "{}";
    if (c.ok()) {
      c.string("id", id, kMaxId, JsonNeed::kRequired);
      c.string("type", type, 64);
      if (c.ok() && type != "function")
        c.fail("type", c.path_of("type") + " is '" + type + "'; only function is supported",
               "unsupported_parameter");
      if (const auto* function = c.object("function", JsonNeed::kRequired)) {
        JsonReader f(*function, c.path_of("function"));
        f.string("name", name, kMaxName);
        check_tool_name(f, name);
        const auto* given = f.raw("arguments");
        if (given && given->is_object())
          arguments = json::serialize(*given);
        else
          f.string("arguments", arguments);
        f.pass_nulls();
        f.finish();
        c.adopt(f.error());
      }
      (void)c.raw("index");  // of a call that was put together from a stream
      c.pass_nulls();
      c.finish();
    }
    m.adopt(c.error());
    if (!m.ok()) return;
    kept.push_back(json::object{{"id", id},
                                {"type", "function"},
                                {"function", {{"name", name}, {"arguments", arguments}}}});
  }
  out.tool_calls = json::serialize(kept);
}

void check_tool_result(JsonReader& m, const std::vector<ChatMessage>& before, ChatMessage& result) {
  for (auto earlier = before.rbegin(); earlier != before.rend(); ++earlier) {
    if (earlier->role == "tool") continue;
    json::value calls;
    if (earlier->tool_calls.empty() || parse_json(earlier->tool_calls, calls)) break;
    for (const json::value& call : calls.get_array()) {
      if (call.at("id").as_string() != result.tool_call_id) continue;
      if (result.name.empty())
        result.name = std::string(call.at("function").at("name").as_string());
      return;
    }
    break;
  }
  m.fail("tool_call_id",
         m.path_of("tool_call_id") +
             " must be the id of a call in the tool_calls of the assistant's message before it");
}

}  // namespace quire
