#include "server/protocols/mcp.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/json_parse.h"
#include "base/json_reader.h"
#include "base/utf8.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Versions of the protocol whose messages this server reads and writes, the newest first.
constexpr std::array<std::string_view, 4> kVersions = {"2025-11-25", "2025-06-18", "2025-03-26",
                                                       "2024-11-05"};

/// The most messages of a batch, which counts as one request.
constexpr std::size_t kMostMessages = 16;

enum : int {
  kParseError = -32700,
  kInvalidRequest = -32600,
  kMethodNotFound = -32601,
  kInvalidParams = -32602
};

/// An error of the protocol itself; a tool that fails is a result.
struct RpcError {
  int code;
  std::string message;
};

json::object string_of(std::string_view about) {
  return {{"type", "string"}, {"description", about}};
}

json::object tool(std::string_view name, std::string_view about, json::object properties,
                  json::array required, bool reads) {
  return {{"name", name},
          {"description", about},
          {"inputSchema",
           {{"type", "object"},
            {"properties", std::move(properties)},
            {"required", std::move(required)},
            {"additionalProperties", false}}},
          {"annotations", {{"readOnlyHint", reads}, {"openWorldHint", false}}}};
}

json::array tools() {
  const json::object ids{{"type", "array"},
                         {"items", {{"type", "string"}}},
                         {"description", "Only these documents; without them all"}};
  return {tool("search", "Finds passages of the stored documents for a question.",
               {{"query", string_of("What to look for")},
                {"k",
                 {{"type", "integer"},
                  {"minimum", 1},
                  {"maximum", 50},
                  {"description", "How many passages (5)"}}},
                {"document_ids", ids}},
               {"query"}, true),
          tool("ask",
               "Answers a question from the stored documents, with the passages that support it.",
               {{"question", string_of("The question")},
                {"max_tokens",
                 {{"type", "integer"},
                  {"minimum", 1},
                  {"maximum", 4096},
                  {"description", "Longest answer (256)"}}},
                {"model", string_of("The model that answers; without it the service's own")},
                {"document_ids", ids}},
               {"question"}, true),
          tool("ingest", "Stores a text as a document, which is then read from the cache.",
               {{"text", string_of("The text")},
                {"id", string_of("Its id; one of the same id is replaced")},
                {"title", string_of("Its title")}},
               {"text"}, false)};
}

void read_ids(JsonReader& r, json::object& body) {
  const auto ids = r.strings("document_ids", 64);
  if (!ids.empty()) body["document_ids"] = json::array(ids.begin(), ids.end());
}

Status status_of(const JsonReader& r) {
  return r.ok() ? Status() : Status::invalid(r.error()->path, r.error()->message);
}

std::string text_at(const json::object& o, std::string_view member) {
  const auto* v = o.if_contains(member);
  return v && v->is_string() ? std::string(v->get_string()) : std::string();
}

/// What a call of a tool asks of the service, and how the reply is shown.
struct ToolCall {
  std::string path;
  json::object body;
  std::function<std::string(const json::value& reply)> show;
};

Result<ToolCall> search(const json::object& arguments) {
  JsonReader r(arguments, "");
  std::string query;
  std::int64_t k = 5;
  json::object body;
  r.string("query", query, 64 << 10, JsonNeed::kRequired);
  r.integer("k", k, 1, 50);
  read_ids(r, body);
  r.finish();
  QUIRE_RETURN_IF_ERROR(status_of(r));
  body["query"] = query;
  body["k"] = k;
  body["unit"] = "chunk";
  return ToolCall{"/v1/retrieve", std::move(body), [](const json::value& reply) {
                    std::string out;
                    for (const json::value& item : reply.at("data").as_array()) {
                      const json::object& p = item.as_object();
                      const std::string title = text_at(p, "title");
                      out += (out.empty() ? "" : "\n\n") + ("[" + text_at(p, "document_id") + "]") +
                             (title.empty() ? "" : " " + title) + "\n" + text_at(p, "text");
                    }
                    return out.empty() ? std::string("No passage was found.") : out;
                  }};
}

Result<ToolCall> ask(const json::object& arguments) {
  JsonReader r(arguments, "");
  std::string question, model;
  std::int64_t length = 256;
  json::object body;
  r.string("question", question, 64 << 10, JsonNeed::kRequired);
  r.integer("max_tokens", length, 1, 4096);
  r.string("model", model, 256);
  if (!model.empty()) body["model"] = model;
  read_ids(r, body);
  r.finish();
  QUIRE_RETURN_IF_ERROR(status_of(r));
  body["query"] = question;
  body["max_tokens"] = length;
  return ToolCall{"/v1/query", std::move(body), [](const json::value& reply) {
                    const json::object& answer = reply.as_object();
                    std::string out = text_at(answer, "answer");
                    const auto* citations = answer.if_contains("citations");
                    if (!citations || citations->as_array().empty()) return out;
                    out += "\n\nSupported by:";
                    std::set<std::string> shown;  // sentences may have one passage in common
                    for (const json::value& item : citations->as_array()) {
                      const json::object& c = item.as_object();
                      std::string line = "\n[" + text_at(c, "document_id") + "] " +
                                         text_at(c, "quote");
                      if (shown.insert(line).second) out += line;
                    }
                    return out;
                  }};
}

Result<ToolCall> ingest(const json::object& arguments) {
  JsonReader r(arguments, "");
  json::object body;
  for (const char* member : {"text", "id", "title"}) {
    std::string value;
    r.string(member, value, SIZE_MAX,
             std::string_view(member) == "text" ? JsonNeed::kRequired : JsonNeed::kOptional);
    if (!value.empty()) body[member] = value;
  }
  r.finish();
  QUIRE_RETURN_IF_ERROR(status_of(r));
  return ToolCall{"/v1/documents?wait=true", std::move(body),
                  [](const json::value& reply) { return to_text(reply); }};
}

/// Throws for what is no call of a tool; wrong arguments are a failure of the tool.
Result<ToolCall> tool_call(const json::object& params) {
  JsonReader r(params, "params");
  std::string name;
  r.string("name", name, 64, JsonNeed::kRequired);
  const auto* given = r.object("arguments");
  if (!r.ok()) throw RpcError{kInvalidParams, r.error()->message};
  const json::object none;
  const json::object& arguments = given ? *given : none;
  if (name == "search") return search(arguments);
  if (name == "ask") return ask(arguments);
  if (name == "ingest") return ingest(arguments);
  throw RpcError{kInvalidParams, "there is no tool '" + name + "'"};
}

json::object tool_result(const Result<std::string>& text) {
  const std::string shown = text.ok() ? *text : text.status().message();
  return {{"content", json::array{json::object{{"type", "text"}, {"text", shown}}}},
          {"isError", !text.ok()}};
}

}  // namespace

bool McpServer::speaks(std::string_view version) {
  return std::find(kVersions.begin(), kVersions.end(), version) != kVersions.end();
}

json::object McpServer::initialize(const json::object& params) const {
  const std::string asked = text_at(params, "protocolVersion");
  return {{"protocolVersion", speaks(asked) ? std::string_view(asked) : kVersions.front()},
          {"capabilities", {{"tools", json::object()}}},
          {"serverInfo", {{"name", "quire"}, {"title", "Quire"}, {"version", version_}}},
          {"instructions",
           "search finds passages of the stored documents, ask answers from them, ingest stores a "
           "text."}};
}

json::object McpServer::refusal(int code, std::string_view message) {
  return {{"jsonrpc", "2.0"}, {"id", nullptr}, {"error", {{"code", code}, {"message", message}}}};
}

void McpServer::handle(std::string_view text, Done done) const {
  json::value message;
  if (const auto wrong = parse_json(text, message))
    return done(to_text(refusal(kParseError, "the message is no JSON: " + wrong->reason)));
  if (const json::array* all = message.if_array()) {
    if (all->empty() || all->size() > kMostMessages)
      return done(to_text(refusal(
          kInvalidRequest, "a batch needs 1 to " + std::to_string(kMostMessages) + " messages")));
    return answer_next(
        std::make_shared<Batch>(Batch{*this, std::move(message.get_array()), 0, {}, done}));
  }
  answer(message, [done](std::optional<json::object> reply) {
    done(reply ? std::optional(to_text(*reply)) : std::nullopt);
  });
}

/// One after another, so that a batch takes no more of the service than one request does.
void McpServer::answer_next(const std::shared_ptr<Batch>& batch) {
  if (batch->next == batch->messages.size())
    return batch->done(batch->replies.empty() ? std::nullopt
                                              : std::optional(to_text(batch->replies)));
  const json::value& message = batch->messages[batch->next++];
  batch->server.answer(message, [batch](std::optional<json::object> reply) {
    if (reply) batch->replies.push_back(std::move(*reply));
    answer_next(batch);
  });
}

void McpServer::answer(const json::value& message, Answered done) const {
  json::object reply{{"jsonrpc", "2.0"}, {"id", nullptr}};
  try {
    const json::object* o = message.if_object();
    if (!o) throw RpcError{kInvalidRequest, "a message must be one object"};
    const json::value* id = o->if_contains("id");
    if (id && (id->is_string() || id->is_number())) reply["id"] = *id;
    const std::string method = text_at(*o, "method");
    // What has no method is a reply to a request, of which this server makes none.
    if (method.empty() && (o->contains("result") || o->contains("error")))
      return done(std::nullopt);
    if (text_at(*o, "jsonrpc") != "2.0" || method.empty())
      throw RpcError{kInvalidRequest, "a message needs \"jsonrpc\": \"2.0\" and a method"};
    if (!id) return done(std::nullopt);
    const json::value* given = o->if_contains("params");
    if (given && !given->is_object()) throw RpcError{kInvalidParams, "params must be an object"};
    const json::object params = given ? given->get_object() : json::object();
    if (method == "ping") {
      reply["result"] = json::object();
    } else if (method == "tools/list") {
      reply["result"] = json::object{{"tools", tools()}};
    } else if (method == "initialize") {
      reply["result"] = initialize(params);
    } else if (method == "tools/call") {
      auto call = tool_call(params);
      if (call.ok())
        return post_(call->path, call->body,
                     [reply, show = call->show, done](const Result<json::value>& body) mutable {
                       reply["result"] = tool_result(body.ok() ? Result<std::string>(show(*body))
                                                               : body.status());
                       done(std::move(reply));
                     });
      reply["result"] = tool_result(call.status());
    } else {
      const std::string_view shown = std::string_view(method).substr(0, 64);
      throw RpcError{
          kMethodNotFound,
          "there is no method '" +
              std::string(shown.substr(0, tokenizer_internal::valid_utf8_prefix(shown))) + "'"};
    }
  } catch (const RpcError& e) {
    reply["error"] = json::object{{"code", e.code}, {"message", e.message}};
  }
  done(std::move(reply));
}

}  // namespace quire
