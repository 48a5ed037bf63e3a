#include "server/protocols/responses_request.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>

#include "engine/sample/json_schema_grammar.h"
#include "server/chat/answer_form.h"
#include "server/chat/tool_codec.h"
#include "server/json/vector_store_codec.h"
#include "server/protocols/chat_builder.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostVectorStores = 16;

/// Replies have objects of nulls for what was not asked, and clients send them back.
bool says_nothing(const json::value& v) {
  if (v.is_array()) return v.get_array().empty();
  return v.is_object() && std::ranges::all_of(v.get_object(), [](const auto& member) {
           return member.value().is_null();
         });
}

void refuse(JsonReader& r, std::string_view member, const json::value& harmless = nullptr) {
  const auto* v = r.raw(member);
  if (!v || *v == harmless || says_nothing(*v)) return;
  r.fail(member, r.path_of(member) + " is not supported; leave it out", "unsupported_parameter");
}

class Reader {
 public:
  Reader(JsonReader& r, ResponsesBody& out) : r_(r), out_(out), chat_{out.query} {}

  void input() {
    std::string instructions;
    r_.string("instructions", instructions);
    if (r_.has("instructions")) chat_.add_system(instructions, "instructions");
    const auto* given = r_.raw("input");
    if (r_.ok() && !given) r_.fail("input", "input is missing; give a text or a list of items");
    if (!r_.ok()) return;
    out_.query.messages_param = "input";
    out_.query.lists_messages = given->is_array();
    if (!given->is_array()) {
      ChatMessage m{"user", ""};
      r_.string("input", m.content);
      return chat_.add(std::move(m), 0);
    }
    const json::array& list = given->get_array();
    for (std::size_t i = 0; i < list.size() && r_.ok(); ++i) {
      JsonReader item(list[i], "input[" + std::to_string(i) + "]");
      if (item.ok()) this->item(item, i);
      r_.adopt(item.error());
    }
    end_calls();
    const auto& all = out_.query.messages;
    if (r_.ok() && (all.empty() || all.back().role == "assistant"))
      r_.fail("input",
              "the last item of input must be a message of the user or a function's output");
  }

  void tools() {
    ToolUse use;
    const auto* list = r_.array("tools", 0, kMaxTools);
    for (std::size_t i = 0; list && r_.ok() && i < list->size(); ++i) {
      JsonReader t((*list)[i], "tools[" + std::to_string(i) + "]");
      const json::object* given = (*list)[i].if_object();
      const json::value* type = given ? given->if_contains("type") : nullptr;
      if (t.ok() && type && *type == "file_search")
        file_search(t);
      else if (t.ok())
        use.tools.push_back(tool(t, use.tools));
      r_.adopt(t.error());
    }
    r_.boolean("parallel_tool_calls", use.parallel);
    const bool may_call = choice(use);
    if (r_.ok() && no_tools_) {
      out_.vector_store_ids.clear();
      out_.query.retrieve.reset();
    }
    if (!r_.ok() || use.tools.empty() || !may_call) return;
    use.json = tools_json(use.tools);
    out_.query.tools = std::move(use);
  }

  void text() {
    const auto* given = r_.object("text");
    if (!given || !r_.ok()) return;
    JsonReader t(*given, "text");
    refuse(t, "verbosity", "medium");
    if (const auto* format = t.object("format")) {
      JsonReader f(*format, "text.format");
      std::string type, name, description;
      bool strict = false;
      f.string("type", type, 64, JsonNeed::kRequired);
      f.string("name", name, 64);
      f.string("description", description);
      f.boolean("strict", strict);
      if (type == "json_object") {
        out_.query.sampling.grammar = json_object_grammar();
      } else if (type == "json_schema") {
        if (f.object("schema", JsonNeed::kRequired))
          out_.query.sampling.grammar = read_json_schema(f, "schema");
      } else if (f.ok() && type != "text") {
        f.fail("type", "text.format.type is '" + type + "'; use text, json_object or json_schema",
               "unsupported_parameter");
      }
      f.finish();
      t.adopt(f.error());
    }
    t.finish();
    r_.adopt(t.error());
  }

 private:
  /// Calls that follow each other are one message of the assistant, as is the text before them.
  void end_calls() {
    if (calls_.empty()) return;
    auto& all = out_.query.messages;
    if (all.empty() || all.back().role != "assistant" || !all.back().tool_calls.empty())
      chat_.add({"assistant", ""}, first_call_);
    all.back().tool_calls = json::serialize(std::exchange(calls_, {}));
  }

  void item(JsonReader& item, std::size_t index) {
    std::string type = "message", id, status;
    item.string("type", type, 64);
    item.string("id", id, 256);
    item.string("status", status, 64);
    if (!item.ok()) return;
    if (type == "function_call") {
      std::string call_id, name, arguments;
      item.string("call_id", call_id, 256, JsonNeed::kRequired);
      item.string("name", name, 64, JsonNeed::kRequired);
      check_tool_name(item, name);
      item.string("arguments", arguments, SIZE_MAX, JsonNeed::kRequired);
      if (calls_.empty()) first_call_ = index;
      calls_.push_back(json::object{{"id", call_id},
                                    {"type", "function"},
                                    {"function", {{"name", name}, {"arguments", arguments}}}});
      item.pass_nulls();
      return item.finish();
    }
    end_calls();
    if (type == "function_call_output") {
      ChatMessage m{"tool", ""};
      item.string("call_id", m.tool_call_id, 256, JsonNeed::kRequired);
      content(item, "output", "input_text", m.content);
      if (item.ok()) check_result(item, m);
      if (item.ok()) chat_.add(std::move(m), index);
    } else if (type == "message") {
      message(item, index);
    } else if (type == "file_search_call") {  // of an earlier reply; the answer says what it found
      (void)item.raw("queries");
      (void)item.raw("results");
      item.pass_nulls();
    } else {
      item.fail("type",
                item.path_of("type") + " is '" + type +
                    "'; use message, function_call, function_call_output or file_search_call",
                "unsupported_parameter");
    }
    item.finish();
  }

  /// A result names its call by call_id here.
  void check_result(JsonReader& item, ChatMessage& m) {
    JsonReader words(nothing(), "");
    check_tool_result(words, out_.query.messages, m);
    if (words.error())
      item.fail("call_id", item.path_of("call_id") +
                               " must be the call_id of a function_call right before it");
  }
  static const json::object& nothing() {
    static const json::object empty;
    return empty;
  }

  void message(JsonReader& item, std::size_t index) {
    ChatMessage m;
    item.one_of("role", m.role, {"user", "assistant", "system", "developer"});
    if (item.ok() && m.role.empty()) item.fail("role", item.path_of("role") + " is missing");
    content(item, "content", m.role == "assistant" ? "output_text" : "input_text", m.content);
    if (m.role == "assistant") item.pass_nulls();
    if (!item.ok()) return;
    if (m.role != "system" && m.role != "developer") return chat_.add(std::move(m), index);
    if (!out_.query.messages.empty())
      return item.fail("role", item.path_of("role") +
                                   ": system and developer messages must stand before the first "
                                   "turn");
    chat_.add_system(std::move(m.content), item.path_of("role"));
  }

  void content(JsonReader& item, std::string_view member, std::string_view part_type,
               std::string& out) {
    const auto* given = item.raw(member);
    if (item.ok() && !given) item.fail(member, item.path_of(member) + " is missing");
    if (!item.ok()) return;
    if (!given->is_array()) return item.string(member, out);
    for (std::size_t i = 0; i < given->get_array().size() && item.ok(); ++i) {
      JsonReader part(given->get_array()[i], item.path_of(member) + "[" + std::to_string(i) + "]");
      std::string type, text;
      if (part.ok()) {
        part.string("type", type, 64, JsonNeed::kRequired);
        if (part.ok() && type != part_type)
          part.fail("type",
                    part.path_of("type") + " is '" + type + "'; only " + std::string(part_type) +
                        " is supported here",
                    "unsupported_parameter");
        part.string("text", text, SIZE_MAX, JsonNeed::kRequired);
        (void)part.raw("annotations");
        refuse(part, "logprobs");
        if (type == "output_text") part.pass_nulls();
        part.finish();
      }
      item.adopt(part.error());
      out += text;
    }
  }

  /// The documents are searched for each answer, not when the model asks for it.
  void file_search(JsonReader& t) {
    std::string type;
    t.string("type", type);
    if (out_.query.retrieve) t.fail("type", t.path_of("type") + ": file_search is there twice");
    QueryRetrieval search;
    search.asked = true;
    auto ids = t.strings("vector_store_ids", kMostVectorStores, JsonNeed::kRequired);
    if (t.ok() && ids.empty())
      t.fail("vector_store_ids", t.path_of("vector_store_ids") + " names no vector store");
    t.integer("max_num_results", search.k, 1, 50);
    if (const auto* ranking = t.object("ranking_options")) {
      JsonReader o(*ranking, t.path_of("ranking_options"));
      std::string ranker;
      o.one_of("ranker", ranker, {"auto", "default-2024-11-15"});
      o.number("score_threshold", search.min_score, 0);
      o.finish();
      t.adopt(o.error());
    }
    MetadataCondition in;
    in.key = kVectorStoresMember;
    in.any_of = ids;
    search.metadata.push_back(std::move(in));
    read_openai_filter(t, "filters", search.metadata);
    t.finish();
    out_.vector_store_ids = std::move(ids);
    out_.query.retrieve = std::move(search);
    out_.query.citations = true;
    out_.query.skip_missing = true;  // where nothing is found, the answer does without
  }

  ToolSpec tool(JsonReader& t, const std::vector<ToolSpec>& before) {
    ToolSpec out;
    std::string type;
    t.string("type", type, 64, JsonNeed::kRequired);
    if (t.ok() && type != "function")
      t.fail("type", t.path_of("type") + " is '" + type + "'; use function or file_search",
             "unsupported_parameter");
    t.string("name", out.name, 64, JsonNeed::kRequired);
    check_tool_name(t, out.name);
    t.string("description", out.description, 64 << 10);
    t.boolean("strict", out.strict);
    read_tool_schema(t, "parameters", JsonNeed::kOptional, out.parameters);
    t.finish();
    if (t.ok() && std::any_of(before.begin(), before.end(),
                              [&](const ToolSpec& other) { return other.name == out.name; }))
      t.fail("name", "the function '" + out.name + "' is there twice");
    return out;
  }

  bool choice(ToolUse& use) {
    const auto* given = r_.raw("tool_choice");
    if (!given || !r_.ok()) return true;
    if (given->is_string()) {
      std::string word;
      r_.one_of("tool_choice", word, {"none", "auto", "required"});
      if (word == "required") use.choice = ToolChoice::kRequired;
      no_tools_ = word == "none";
      if (r_.ok() && word == "required" && use.tools.empty() && out_.vector_store_ids.empty())
        r_.fail("tool_choice", "tool_choice needs tools");
      return word != "none";
    }
    JsonReader c(*given, "tool_choice");
    std::string type;
    if (c.ok()) c.string("type", type, 64, JsonNeed::kRequired);
    const bool searches = type == "file_search" && !out_.vector_store_ids.empty();
    if (c.ok() && type != "function" && !searches)
      c.fail("type", "tool_choice.type is '" + type + "'; use the type of one of the tools",
             "unsupported_parameter");
    if (searches) {
      c.finish();
      r_.adopt(c.error());
      return false;  // it searches, and calls no function
    }
    if (c.ok()) c.string("name", use.only, 64, JsonNeed::kRequired);
    if (c.ok() && std::none_of(use.tools.begin(), use.tools.end(),
                               [&](const ToolSpec& t) { return t.name == use.only; }))
      c.fail("name", "tool_choice names the function '" + use.only + "', which is not there");
    c.finish();
    r_.adopt(c.error());
    use.choice = ToolChoice::kRequired;
    return true;
  }

  JsonReader& r_;
  bool no_tools_ = false;
  ResponsesBody& out_;
  ChatBuilder chat_;
  json::array calls_;
  std::size_t first_call_ = 0;
};

}  // namespace

std::optional<JsonError> read_responses(const json::value& body, ResponsesBody& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  QueryBody& q = out.query;
  r.string("model", q.model, 256);
  r.boolean("stream", q.stream);
  std::int64_t length = q.sampling.max_tokens;
  double temperature = 1, top_p = 1;
  r.integer("max_output_tokens", length, 1, std::numeric_limits<std::int32_t>::max());
  r.number("temperature", temperature, 0, 2);
  r.number("top_p", top_p, 0.0001, 1);
  q.sampling.max_tokens = static_cast<std::int32_t>(length);
  q.sampling.max_tokens_asked = r.has("max_output_tokens");
  q.sampling.temperature = static_cast<float>(temperature);
  q.sampling.top_p = static_cast<float>(top_p);
  Reader reader(r, out);
  reader.input();
  reader.text();
  reader.tools();
  if (const auto* options = r.object("stream_options")) {
    JsonReader o(*options, "stream_options");
    bool obfuscated = false;
    o.boolean("include_obfuscation", obfuscated);
    if (o.ok() && obfuscated)
      o.fail("include_obfuscation", "stream_options.include_obfuscation is not supported",
             "unsupported_parameter");
    o.finish();
    r.adopt(o.error());
  }
  for (const char* label :
       {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
    (void)r.raw(label);
  refuse(r, "store", false);
  refuse(r, "background", false);
  refuse(r, "truncation", "disabled");
  if (const auto* tier = r.raw("service_tier"); tier && *tier != "default")
    refuse(r, "service_tier", "auto");
  refuse(r, "top_logprobs", 0);
  for (const char* member : {"previous_response_id", "conversation", "prompt", "include",
                             "reasoning", "max_tool_calls", "context_management"})
    refuse(r, member);
  r.finish();
  if (!r.ok()) return r.error();
  for (const char* member : {"instructions", "max_output_tokens", "metadata", "temperature", "text",
                             "tool_choice", "tools", "top_p", "user"})
    if (const auto* given = r.raw(member)) out.echoed[member] = *given;
  return r.error();
}

}  // namespace quire
