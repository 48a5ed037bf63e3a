#include "server/json/query_request.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "ingest/document/utf8.h"
#include "server/chat/answer_form.h"
#include "server/chat/tool_codec.h"
#include "server/json/generation_codec.h"

namespace quire {
namespace json = boost::json;
namespace {

void read_messages(JsonReader& parent, QueryBody& out) {
  const auto* list = parent.array("messages", 1, 1024);
  if (!list || !parent.ok()) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    JsonReader r((*list)[i], "messages[" + std::to_string(i) + "]");
    ChatMessage m;
    if (r.ok()) {
      r.one_of("role", m.role, {"system", "user", "assistant", "tool"});
      if (r.ok() && m.role.empty())
        r.fail("role", r.path_of("role") + " is missing; use system, user, assistant or tool");
      r.string("content", m.content);
      read_tool_members(r, m);
      if (r.ok() && m.role == "tool") check_tool_result(r, out.messages, m);
      if (r.ok() && !r.has("content") && m.tool_calls.empty())
        r.fail("content", r.path_of("content") + " is missing");
      r.finish();
      if (r.ok() && m.role == "system" && i > 0)
        r.fail("role", r.path_of("role") + " is system; only the first message may be");
      if (r.ok() && m.role == "system" && out.system)
        r.fail("role", "system is given twice: beside messages and in them");
    }
    parent.adopt(r.error());
    if (!parent.ok()) return;
    if (m.role == "system") {
      out.system = m.content;
      out.system_param = r.path_of("role");
      continue;
    }
    out.messages.push_back(std::move(m));
    out.message_index.push_back(i);
  }
  if (out.messages.empty()) parent.fail("messages", "messages has no turn of the user");
}

void read_inline_documents(JsonReader& parent, std::size_t max_documents, QueryBody& out) {
  const auto* list = parent.array("documents", 0, max_documents);
  if (!list || !parent.ok()) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    JsonReader r((*list)[i], "documents[" + std::to_string(i) + "]");
    InlineDocument d;
    if (r.ok()) {
      r.string("title", d.title, 64 << 10);
      r.string("text", d.text);
      if (r.ok() && d.text.empty() && r.has("id")) {
        r.fail("id", r.path_of("id") +
                         " is no field of an inline document; name stored documents "
                         "in document_ids");
      }
      if (r.ok() && d.text.empty()) r.fail("text", r.path_of("text") + " is missing or empty");
      r.finish();
    }
    parent.adopt(r.error());
    if (!parent.ok()) return;
    d.after_ids = out.document_ids.size();
    d.param = "documents[" + std::to_string(i) + "]";
    out.documents.push_back(std::move(d));
  }
}

/// Stored documents hold tokens of their words, so these are not the query's to choose.
void read_wording(JsonReader& parent, QueryBody& out) {
  const auto* value = parent.raw("prompt");
  if (!value || !parent.ok()) return;
  constexpr std::size_t kMostBytes = 16 << 10;
  JsonReader r(*value, "prompt");
  if (r.ok()) {
    r.string("intro", out.wording.intro, kMostBytes);
    r.string("document", out.wording.document, kMostBytes);
    r.string("question", out.wording.question, kMostBytes);
    if (std::string pattern; r.has("citation")) {
      r.string("citation", pattern, kMostBytes);
      out.citation_style = std::move(pattern);
    }
    r.finish();
  }
  if (r.ok() && r.has("document") && (!out.document_ids.empty() || out.retrieve)) {
    r.fail("document",
           "prompt.document is given, but stored documents are cached with the words of the "
           "service or the namespace (prompt.document, prompt.namespaces_file); leave it out, or "
           "ask over inline documents alone");
  }
  parent.adopt(r.error());
}

}  // namespace

std::optional<JsonError> read_query(const json::value& body, const QueryDefaults& defaults,
                                    QueryBody& out) {
  out.cache.strategy = defaults.strategy;
  out.cache.compress = defaults.compress;
  out.cache.decode = defaults.decode;
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  if (r.has("query")) {
    std::string q;
    r.string("query", q);
    if (r.ok() && is_blank(q)) r.fail("query", q.empty() ? "query is empty" : "query has no text");
    out.query = std::move(q);
  }
  if (r.has("system")) {
    std::string s;
    r.string("system", s);
    out.system = std::move(s);
  }
  read_messages(r, out);
  if (r.ok() && out.query.has_value() == !out.messages.empty())
    r.fail("query", out.query ? "query and messages are both given; give one"
                              : "query is missing; give query or messages");
  out.document_ids = r.strings("document_ids", defaults.max_documents);
  for (std::size_t i = 0; i < out.document_ids.size(); ++i)
    out.document_params.push_back("document_ids[" + std::to_string(i) + "]");
  read_inline_documents(r, defaults.max_documents, out);
  if (r.ok() && out.document_ids.size() + out.documents.size() > defaults.max_documents)
    r.fail("documents",
           "the query names " + std::to_string(out.document_ids.size() + out.documents.size()) +
               " documents; at most " + std::to_string(defaults.max_documents) + " are taken");
  read_query_retrieval(r, defaults.max_documents, out.retrieve);
  const bool named = r.has("document_ids") || r.has("documents");
  if (r.ok() && out.retrieve && r.has("documents"))
    r.fail("retrieve",
           "retrieve chooses from stored documents, and inline documents are always used whole; "
           "leave retrieve or documents out");
  if (r.ok() && out.retrieve && r.has("document_ids") && out.document_ids.empty())
    r.fail("retrieve",
           "retrieve has nothing to choose from: document_ids is empty; leave one of them out");
  if (!named && !out.retrieve) {
    out.retrieve.emplace();
    out.retrieve->k = std::min(out.retrieve->k, static_cast<std::int64_t>(defaults.max_documents));
  }
  read_wording(r, out);
  read_tools(r, out.tools);
  if (r.ok() && out.tools && out.query)
    r.fail("tools", "tools need messages: give the question as a message of the user");
  r.string("model", out.model, 256);
  r.boolean("stream", out.stream);
  std::int64_t max_tokens = out.sampling.max_tokens;
  r.integer("max_tokens", max_tokens, 1, 1 << 20);
  out.sampling.max_tokens = static_cast<std::int32_t>(max_tokens);
  out.sampling.max_tokens_asked = r.has("max_tokens");
  read_sampling(r, out.sampling);
  read_logprobs(r, out.sampling);
  read_answer_form(r, out.sampling);
  read_cache_and_policies(r, out);
  r.integer("timeout_ms", out.timeout_ms, 1, 3'600'000);
  r.finish();
  return r.error();
}

}  // namespace quire
