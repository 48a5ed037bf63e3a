#include "server/protocols/mcp.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <stdexcept>
#include <utility>

#include "base/json_parse.h"
#include "base/json_reader.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Versions of the protocol whose messages this server reads and writes, the newest first.
constexpr std::array<std::string_view, 3> kVersions = {"2025-06-18", "2025-03-26", "2024-11-05"};

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

}  // namespace

Result<std::string> McpServer::search(const json::object& arguments) {
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
  QUIRE_ASSIGN_OR_RETURN(const json::value reply, post_("/v1/retrieve", body));
  std::string out;
  for (const json::value& item : reply.at("data").as_array()) {
    const json::object& p = item.as_object();
    const std::string title = text_at(p, "title");
    out += (out.empty() ? "" : "\n\n") + ("[" + text_at(p, "document_id") + "]") +
           (title.empty() ? "" : " " + title) + "\n" + text_at(p, "text");
  }
  return out.empty() ? std::string("No passage was found.") : out;
}

Result<std::string> McpServer::ask(const json::object& arguments) {
  JsonReader r(arguments, "");
  std::string question;
  std::int64_t length = 256;
  json::object body;
  r.string("question", question, 64 << 10, JsonNeed::kRequired);
  r.integer("max_tokens", length, 1, 4096);
  read_ids(r, body);
  r.finish();
  QUIRE_RETURN_IF_ERROR(status_of(r));
  body["query"] = question;
  body["max_tokens"] = length;
  QUIRE_ASSIGN_OR_RETURN(const json::value reply, post_("/v1/query", body));
  const json::object& answer = reply.as_object();
  std::string out = text_at(answer, "answer");
  const auto* citations = answer.if_contains("citations");
  if (!citations || citations->as_array().empty()) return out;
  out += "\n\nSupported by:";
  for (const json::value& item : citations->as_array()) {
    const json::object& c = item.as_object();
    out += "\n[" + text_at(c, "document_id") + "] " + text_at(c, "quote");
  }
  return out;
}

Result<std::string> McpServer::ingest(const json::object& arguments) {
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
  QUIRE_ASSIGN_OR_RETURN(const json::value reply, post_("/v1/documents?wait=true", body));
  return to_text(reply);
}

json::object McpServer::call_tool(const json::object& params) {
  JsonReader r(params, "params");
  std::string name;
  r.string("name", name, 64, JsonNeed::kRequired);
  const auto* given = r.object("arguments");
  if (!r.ok()) throw RpcError{kInvalidParams, r.error()->message};
  const json::object none;
  const json::object& arguments = given ? *given : none;
  Result<std::string> text = Status::invalid("name", "there is no tool '" + name + "'");
  if (name == "search")
    text = search(arguments);
  else if (name == "ask")
    text = ask(arguments);
  else if (name == "ingest")
    text = ingest(arguments);
  else
    throw RpcError{kInvalidParams, text.status().message()};
  const std::string shown = text.ok() ? *text : text.status().message();
  return {{"content", json::array{json::object{{"type", "text"}, {"text", shown}}}},
          {"isError", !text.ok()}};
}

json::value McpServer::result_of(std::string_view method, const json::object& params) {
  if (method == "ping") return json::object();
  if (method == "tools/list") return json::object{{"tools", tools()}};
  if (method == "tools/call") return call_tool(params);
  if (method != "initialize")
    throw RpcError{kMethodNotFound,
                   "there is no method '" + std::string(method.substr(0, 64)) + "'"};
  const std::string asked = text_at(params, "protocolVersion");
  const bool known = std::find(kVersions.begin(), kVersions.end(), asked) != kVersions.end();
  return json::object{
      {"protocolVersion", known ? std::string_view(asked) : kVersions.front()},
      {"capabilities", {{"tools", json::object()}}},
      {"serverInfo", {{"name", "quire"}, {"title", "Quire"}, {"version", version_}}},
      {"instructions",
       "search finds passages of the stored documents, ask answers from them, ingest stores a "
       "text."}};
}

std::optional<std::string> McpServer::handle(std::string_view line) {
  json::object reply{{"jsonrpc", "2.0"}, {"id", nullptr}};
  json::value message;
  try {
    if (const auto wrong = parse_json(line, message))
      throw RpcError{kParseError, "the message is no JSON: " + wrong->reason};
    const json::object* o = message.if_object();
    if (!o) throw RpcError{kInvalidRequest, "a message must be one object"};
    const json::value* id = o->if_contains("id");
    if (id && (id->is_string() || id->is_number())) reply["id"] = *id;
    const std::string method = text_at(*o, "method");
    // What has no method is a reply to a request, of which this server makes none.
    if (method.empty() && (o->contains("result") || o->contains("error"))) return std::nullopt;
    if (text_at(*o, "jsonrpc") != "2.0" || method.empty())
      throw RpcError{kInvalidRequest, "a message needs \"jsonrpc\": \"2.0\" and a method"};
    if (!id) return std::nullopt;
    const json::value* params = o->if_contains("params");
    if (params && !params->is_object()) throw RpcError{kInvalidParams, "params must be an object"};
    reply["result"] = result_of(method, params ? params->get_object() : json::object());
  } catch (const RpcError& e) {
    reply["error"] = json::object{{"code", e.code}, {"message", e.message}};
  }
  return to_text(reply);
}

}  // namespace quire
