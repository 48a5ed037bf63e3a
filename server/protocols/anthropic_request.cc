#include "server/protocols/anthropic_request.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>

#include "server/chat/answer_form.h"
#include "server/chat/tool_codec.h"
#include "server/json/text.h"
#include "server/protocols/chat_builder.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Agents join the names of a server and of its tool, and fill what this protocol allows.
constexpr std::size_t kMaxToolName = 128;

std::string place(const std::string& list, std::size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

/// Refuses a member unless it is absent, null, empty, or the one value that asks for nothing.
void refuse(JsonReader& r, std::string_view member, const json::value& harmless = nullptr) {
  const auto* v = r.raw(member);
  if (!v || *v == harmless || (v->is_array() && v->get_array().empty()) ||
      (v->is_object() && v->get_object().empty()))
    return;
  r.fail(member, r.path_of(member) + " is not supported; leave it out", "unsupported_parameter");
}

/// Reads cache_control: {"type": "ephemeral", "ttl": "5m" or "1h"}. Returns its seconds.
std::optional<std::uint64_t> read_cache_control(JsonReader& r) {
  const auto* control = r.object("cache_control");
  if (!control) return std::nullopt;
  JsonReader c(*control, r.path_of("cache_control"));
  std::string type, ttl = "5m";
  c.string("type", type, 64, JsonNeed::kRequired);
  if (c.ok() && type != "ephemeral")
    c.fail("type", c.path_of("type") + " is '" + type + "'; use ephemeral");
  c.one_of("ttl", ttl, {"5m", "1h"});
  c.finish();
  r.adopt(c.error());
  return ttl == "1h" ? 3600 : 300;
}

class Reader {
 public:
  Reader(JsonReader& r, std::size_t max_documents, AnthropicBody& out)
      : r_(r), max_documents_(max_documents), out_(out), chat_{out.query} {}

  void system() {
    const auto* given = r_.raw("system");
    if (!given || !r_.ok()) return;
    if (!given->is_array()) {
      std::string text;
      r_.string("system", text);
      return chat_.add_system(std::move(text), "system");
    }
    std::string text;
    for (std::size_t i = 0; i < given->get_array().size() && r_.ok(); ++i) {
      JsonReader block(given->get_array()[i], place("system", i));
      text += (i > 0 ? "\n" : "") + text_block(block);
      block.finish();
      r_.adopt(block.error());
    }
    if (!given->get_array().empty()) chat_.add_system(std::move(text), "system");
  }

  void messages() {
    const auto* list = r_.array("messages", 1, 1024, JsonNeed::kRequired);
    for (std::size_t i = 0; list && r_.ok() && i < list->size(); ++i) {
      JsonReader m((*list)[i], place("messages", i));
      if (m.ok()) message(m, i);
      r_.adopt(m.error());
    }
    if (!r_.ok()) return;
    const auto& all = out_.query.messages;
    if (all.empty() || all.front().role != "user")
      return r_.fail("messages[0].role", "the first message must be the user's");
    out_.query.continue_last = all.back().role == "assistant";
    out_.query.generation_prompt = !out_.query.continue_last;
  }

  /// Reads output_config, and the older name of its format.
  void output() {
    if (const auto* config = r_.object("output_config")) {
      JsonReader c(*config, "output_config");
      refuse(c, "effort", "high");  // which is the protocol's default
      form(c, "format");
      c.finish();
      r_.adopt(c.error());
    }
    form(r_, "output_format");
  }

  void tools() {
    ToolUse use;
    const auto* list = r_.array("tools", 0, kMaxTools);
    for (std::size_t i = 0; list && r_.ok() && i < list->size(); ++i) {
      JsonReader t((*list)[i], place("tools", i));
      if (t.ok()) use.tools.push_back(tool(t, use.tools));
      r_.adopt(t.error());
    }
    const bool may_call = choice(use);
    if (!r_.ok() || use.tools.empty() || !may_call) return;
    if (out_.query.continue_last)
      return r_.fail("tools", "tools cannot be combined with a last message of the assistant",
                     "unsupported_parameter");
    use.json = tools_json(use.tools);
    out_.query.tools = std::move(use);
  }

 private:
  /// Reads {"type": "json_schema", "schema": {...}}.
  void form(JsonReader& r, std::string_view member) {
    const auto* given = r.object(member);
    if (!given || !r.ok()) return;
    JsonReader f(*given, r.path_of(member));
    std::string type;
    f.string("type", type, 64, JsonNeed::kRequired);
    if (f.ok() && type != "json_schema")
      f.fail("type", f.path_of("type") + " is '" + type + "'; use json_schema",
             "unsupported_parameter");
    if (f.object("schema", JsonNeed::kRequired))
      out_.query.sampling.grammar = read_json_schema(f, "schema");
    f.finish();
    r.adopt(f.error());
  }

  std::string text_block(JsonReader& block) {
    std::string type, text;
    block.string("type", type, 64, JsonNeed::kRequired);
    if (block.ok() && type != "text")
      block.fail("type", block.path_of("type") + " is '" + type + "'; only text is supported here",
                 "unsupported_parameter");
    block.string("text", text, SIZE_MAX, JsonNeed::kRequired);
    refuse(block, "citations");
    (void)read_cache_control(block);
    return text;
  }

  /// Adds a message. In this protocol those of one role that follow each other are one turn, and
  /// many models know no other conversations.
  void add(ChatMessage message, std::size_t index) {
    auto& all = out_.query.messages;
    if (all.empty() || all.back().role != message.role || !all.back().tool_calls.empty())
      return chat_.add(std::move(message), index);
    std::string& text = all.back().content;
    text += (text.empty() || message.content.empty() ? "" : "\n") + message.content;
    all.back().tool_calls = std::move(message.tool_calls);
  }

  void message(JsonReader& m, std::size_t index) {
    ChatMessage text;
    m.one_of("role", text.role, {"user", "assistant"});
    if (m.ok() && text.role.empty())
      m.fail("role", m.path_of("role") + " is missing; use user or assistant");
    const auto* content = m.raw("content");
    if (m.ok() && !content) m.fail("content", m.path_of("content") + " is missing");
    if (m.ok() && !content->is_array()) {
      m.string("content", text.content);
      if (m.ok()) add(std::move(text), index);
    } else if (m.ok()) {
      blocks(m, content->get_array(), std::move(text), index);
    }
    m.finish();
  }

  void blocks(JsonReader& m, const json::array& list, ChatMessage text, std::size_t index) {
    json::array calls;
    bool result = false, said = false;
    for (std::size_t i = 0; i < list.size() && m.ok(); ++i) {
      JsonReader b(list[i], place(m.path_of("content"), i));
      std::string type;
      if (b.ok()) b.string("type", type, 64, JsonNeed::kRequired);
      if (!b.ok()) {
      } else if (type == "text") {
        text.content += text_block(b);
        said = true;
      } else if (type == "document" && text.role == "user") {
        document(b, place(m.path_of("content"), i));
      } else if (type == "tool_result" && text.role == "user") {
        if (said) b.fail("type", b.path_of("type") + ": results must stand before text");
        chat_.add(tool_result(b), index);
        result = true;
      } else if (type == "tool_use" && text.role == "assistant") {
        calls.push_back(tool_use(b));
      } else {
        b.fail("type",
               b.path_of("type") + " is '" + type + "', which is not supported in a " +
                   "message of the " + text.role,
               "unsupported_parameter");
      }
      if (text.role == "assistant") b.pass_nulls();
      b.finish();
      m.adopt(b.error());
    }
    if (!calls.empty()) text.tool_calls = json::serialize(calls);
    if (m.ok() && (said || !calls.empty() || !result)) add(std::move(text), index);
  }

  void document(JsonReader& b, std::string path) {
    AnthropicDocument d;
    d.param = std::move(path);
    const auto* source = b.object("source", JsonNeed::kRequired);
    std::string context;
    b.string("title", d.title, 64 << 10);
    b.string("context", context);
    if (b.ok() && !context.empty())
      b.fail("context", b.path_of("context") + " is not supported; write it into the text",
             "unsupported_parameter");
    if (const auto* citations = b.object("citations")) {
      const auto* enabled = citations->if_contains("enabled");
      if (enabled && *enabled == json::value(true))
        b.fail("citations.enabled",
               b.path_of("citations") + " is not supported; POST /v1/query cites",
               "unsupported_parameter");
    }
    d.ttl_seconds = read_cache_control(b);
    if (!source) return;
    JsonReader s(*source, b.path_of("source"));
    std::string type, media = "text/plain";
    s.string("type", type, 64, JsonNeed::kRequired);
    s.string("media_type", media, 64);
    if (s.ok() && (type != "text" || media != "text/plain"))
      s.fail("type",
             s.path_of("type") + " is '" + type + "' of " + media +
                 "; only text of text/plain is supported (POST /v1/documents reads files)",
             "unsupported_parameter");
    s.string("data", d.text, SIZE_MAX, JsonNeed::kRequired);
    if (s.ok() && d.text.empty()) s.fail("data", s.path_of("data") + " is empty");
    s.finish();
    b.adopt(s.error());
    if (!b.ok()) return;
    out_.documents.push_back(std::move(d));
    if (out_.documents.size() > max_documents_)
      b.fail("type", "the request has more than " + std::to_string(max_documents_) + " documents");
  }

  ChatMessage tool_result(JsonReader& b) {
    ChatMessage m{"tool", ""};
    b.string("tool_use_id", m.tool_call_id, 256, JsonNeed::kRequired);
    bool failed = false;
    b.boolean("is_error", failed);
    if (const auto* content = b.raw("content"); content && content->is_array()) {
      for (std::size_t i = 0; i < content->get_array().size() && b.ok(); ++i) {
        JsonReader part(content->get_array()[i], place(b.path_of("content"), i));
        m.content += text_block(part);
        part.finish();
        b.adopt(part.error());
      }
    } else {
      b.string("content", m.content);
    }
    if (failed) m.content = "Error: " + m.content;
    (void)read_cache_control(b);
    if (b.ok()) check_tool_result(b, out_.query.messages, m);
    return m;
  }

  json::value tool_use(JsonReader& b) {
    std::string id, name;
    b.string("id", id, 256, JsonNeed::kRequired);
    b.string("name", name, kMaxToolName, JsonNeed::kRequired);
    check_tool_name(b, name);
    const auto* input = b.object("input", JsonNeed::kRequired);
    (void)read_cache_control(b);
    return json::object{
        {"id", id},
        {"type", "function"},
        {"function", {{"name", name}, {"arguments", input ? to_text(*input) : std::string("{}")}}}};
  }

  ToolSpec tool(JsonReader& t, const std::vector<ToolSpec>& before) {
    ToolSpec out;
    std::string type = "custom";
    t.string("type", type, 64);
    if (t.ok() && type != "custom")
      t.fail("type", t.path_of("type") + " is '" + type + "'; only tools of the client are",
             "unsupported_parameter");
    t.string("name", out.name, kMaxToolName, JsonNeed::kRequired);
    check_tool_name(t, out.name);
    t.string("description", out.description, 64 << 10);
    t.boolean("strict", out.strict);
    read_tool_schema(t, "input_schema", JsonNeed::kRequired, out.parameters);
    (void)read_cache_control(t);
    t.finish();
    if (t.ok() && std::any_of(before.begin(), before.end(),
                              [&](const ToolSpec& other) { return other.name == out.name; }))
      t.fail("name", "the tool '" + out.name + "' is there twice");
    return out;
  }

  /// Returns false where no tool may be called.
  bool choice(ToolUse& use) {
    const auto* given = r_.object("tool_choice");
    if (!given || !r_.ok()) return true;
    JsonReader c(*given, "tool_choice");
    std::string type;
    bool single = false;
    c.one_of("type", type, {"auto", "any", "tool", "none"});
    if (c.ok() && type.empty()) c.fail("type", "tool_choice.type is missing");
    c.boolean("disable_parallel_tool_use", single);
    use.parallel = !single;
    if (type == "any" || type == "tool") use.choice = ToolChoice::kRequired;
    if (type == "tool") {
      c.string("name", use.only, kMaxToolName, JsonNeed::kRequired);
      if (c.ok() && std::none_of(use.tools.begin(), use.tools.end(),
                                 [&](const ToolSpec& t) { return t.name == use.only; }))
        c.fail("name", "tool_choice names the tool '" + use.only + "', which is not there");
    }
    if (c.ok() && use.choice == ToolChoice::kRequired && use.tools.empty())
      c.fail("type", "tool_choice needs tools");
    c.finish();
    r_.adopt(c.error());
    return type != "none";
  }

  JsonReader& r_;
  const std::size_t max_documents_;
  AnthropicBody& out_;
  ChatBuilder chat_;
};

}  // namespace

std::optional<JsonError> read_anthropic(const json::value& body, bool count,
                                        std::size_t max_documents, AnthropicBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  QueryBody& q = out.query;
  SamplingOptions& sampling = q.sampling;
  r.string("model", q.model, 256, JsonNeed::kRequired);
  Reader reader(r, max_documents, out);
  reader.system();
  reader.messages();
  reader.tools();
  reader.output();
  refuse(r, "thinking", json::object{{"type", "disabled"}});
  refuse(r, "mcp_servers");
  refuse(r, "speed", "standard");
  refuse(r, "thread");
  refuse(r, "user_profile_id");
  refuse(r, "workspace_id");
  refuse(r, "context_management");
  (void)read_cache_control(r);
  if (!count) {
    std::int64_t length = 0, top_k = 0;
    double temperature = 1, top_p = 1;
    r.integer("max_tokens", length, 1, std::numeric_limits<std::int32_t>::max(),
              JsonNeed::kRequired);
    r.number("temperature", temperature, 0, 1);
    r.number("top_p", top_p, 0.0001, 1);
    r.integer("top_k", top_k, 0, 1 << 20);
    sampling.max_tokens = static_cast<std::int32_t>(length);
    sampling.max_tokens_asked = true;
    sampling.temperature = static_cast<float>(temperature);
    sampling.top_p = static_cast<float>(top_p);
    sampling.top_k = static_cast<std::int32_t>(top_k);
    sampling.stop = r.strings("stop_sequences", 16);
    for (const std::string& stop : sampling.stop)
      if (stop.empty() || stop.size() > 256)
        r.fail("stop_sequences", "stop_sequences have 1 to 256 bytes each");
    if (sampling.grammar && !sampling.stop.empty())
      r.fail("stop_sequences",
             "stop_sequences cannot be combined with a schema of the answer: one that is cut would "
             "not have it",
             "unsupported_parameter");
    r.boolean("stream", q.stream);
    if (const auto* metadata = r.object("metadata")) {
      JsonReader m(*metadata, "metadata");
      std::string user;
      m.string("user_id", user, 512);
      m.finish();
      r.adopt(m.error());
    }
    if (const auto* tier = r.raw("service_tier"); tier && *tier != "standard_only")
      refuse(r, "service_tier", "auto");
    refuse(r, "container");
    refuse(r, "diagnostics");
    refuse(r, "inference_geo");
  }
  r.finish();
  return r.error();
}

}  // namespace quire
