#include "server/json/openai_codec.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <limits>

#include "server/chat/answer_form.h"
#include "server/chat/openai_fields.h"
#include "server/chat/tool_codec.h"
#include "server/json/generation_codec.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Reads a message's content: a string, or parts of type text, which are joined. A message with
/// calls needs none.
void read_content(JsonReader& m, bool calls, std::string& out) {
  const auto* content = m.raw("content");
  if (!content) {
    if (!calls) m.fail("content", m.path_of("content") + " is missing");
    return;
  }
  if (!content->is_array()) return m.string("content", out);
  const auto& parts = content->as_array();
  for (std::size_t i = 0; i < parts.size() && m.ok(); ++i) {
    JsonReader part(parts[i], m.path_of("content") + "[" + std::to_string(i) + "]");
    std::string type = "text", text;
    part.string("type", type, 64);
    if (part.ok() && type != "text")
      part.fail("type", part.path_of("type") + " is '" + type + "'; only text is supported",
                "unsupported_parameter");
    part.string("text", text);
    if (part.ok() && !part.has("text")) part.fail("text", part.path_of("text") + " is missing");
    part.finish();
    m.adopt(part.error());
    out += text;
  }
}

/// Reads a `documents` item: an id, {"id"} (cached), {"title","text"} (inline), or
/// {"id","data":{"title","text"}} (inline).
void read_document_item(JsonReader& parent, const json::value& item, const std::string& path,
                        QueryBody& out) {
  const auto cached = [&](std::string id) {
    out.document_ids.push_back(std::move(id));
    out.document_params.push_back(path);
  };
  if (item.is_string()) return cached(std::string(item.as_string()));
  JsonReader r(item, path);
  InlineDocument d;
  std::string id;
  if (r.ok()) {
    r.string("id", id, 256);
    if (const auto* data = r.object("data"); data && r.ok()) {
      JsonReader inner(*r.raw("data"), r.path_of("data"));
      d.title = id;
      inner.string("title", d.title, 64 << 10);
      inner.string("text", d.text);
      if (inner.ok() && d.text.empty())
        inner.fail("text", inner.path_of("text") + " is missing or empty");
      inner.finish();
      r.adopt(inner.error());
    } else {
      d.title = id;
      r.string("title", d.title, 64 << 10);
      r.string("text", d.text);
      if (r.ok() && d.text.empty() && id.empty())
        r.fail("", path + " needs an id (a cached document) or a text (an inline one)");
    }
    r.finish();
  }
  parent.adopt(r.error());
  if (!r.ok()) return;
  if (d.text.empty()) return cached(std::move(id));
  d.after_ids = out.document_ids.size();
  d.param = path;
  out.documents.push_back(std::move(d));
}

void read_documents(JsonReader& r, std::size_t max_documents, QueryBody& out) {
  out.document_ids = r.strings("document_ids", max_documents);
  for (std::size_t i = 0; i < out.document_ids.size(); ++i)
    out.document_params.push_back("document_ids[" + std::to_string(i) + "]");
  if (const auto* list = r.array("documents", 0, max_documents); list && r.ok()) {
    for (std::size_t i = 0; i < list->size() && r.ok(); ++i)
      read_document_item(r, (*list)[i], "documents[" + std::to_string(i) + "]", out);
  }
  const std::size_t total = out.document_ids.size() + out.documents.size();
  if (r.ok() && total > max_documents)
    r.fail("documents", "the request names " + std::to_string(total) + " documents; at most " +
                            std::to_string(max_documents) + " are taken");
}

/// Reads the members common to chat and plain completions.
void read_common(JsonReader& r, const QueryDefaults& defaults, OpenAiBody& out) {
  QueryBody& q = out.query;
  q.cache.strategy = defaults.strategy;
  q.cache.compress = defaults.compress;
  q.cache.decode = defaults.decode;
  q.sampling.temperature = 1;
  r.string("user", out.user, 512);
  r.string("model", q.model, 256);
  std::int64_t n = 1;
  r.integer("n", n, 1, kMaxChoices);
  out.n = static_cast<std::int32_t>(n);
  r.boolean("stream", q.stream);
  if (const auto* options = r.object("stream_options"); options && r.ok()) {
    if (!q.stream) r.fail("stream_options", "stream_options needs \"stream\": true");
    JsonReader o(*r.raw("stream_options"), "stream_options");
    o.boolean("include_usage", out.include_usage);
    bool obfuscated = false;
    o.boolean("include_obfuscation", obfuscated);
    if (o.ok() && obfuscated)
      o.fail("include_obfuscation", "stream_options.include_obfuscation is not supported",
             "unsupported_parameter");
    o.finish();
    r.adopt(o.error());
  }
  read_sampling(r, q.sampling);
  if (r.has("repeat_penalty")) {
    double repeated = 1;
    r.number("repeat_penalty", repeated, 0.01, 10);
    if (r.has("repetition_penalty"))
      r.fail("repeat_penalty", "repeat_penalty and repetition_penalty are the same; give one");
    q.sampling.repetition_penalty = static_cast<float>(repeated);
  }
  read_documents(r, defaults.max_documents, q);
  read_cache_and_policies(r, q);
}

void read_length(JsonReader& r, std::string_view member, std::int32_t& out) {
  std::int64_t tokens = out;
  r.integer(member, tokens, 1, std::numeric_limits<std::int32_t>::max());
  out = static_cast<std::int32_t>(tokens);
}

/// Reads the answer's length under all its names, the newest last. `out` has the default of the
/// path.
void read_lengths(JsonReader& r, std::int64_t window, bool chat, SamplingOptions& out) {
  const auto whole = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(window, 1, std::numeric_limits<std::int32_t>::max()));
  std::int64_t predict = out.max_tokens;
  r.integer("n_predict", predict, -1, std::numeric_limits<std::int32_t>::max());
  if (r.ok() && predict == 0) r.fail("n_predict", "n_predict is 0; it must be above 0, or -1");
  if (r.ok()) out.max_tokens = predict < 0 ? whole : static_cast<std::int32_t>(predict);
  read_length(r, "max_tokens", out.max_tokens);
  if (chat) read_length(r, "max_completion_tokens", out.max_tokens);
  out.max_tokens_asked = (r.has("n_predict") && predict > 0) || r.has("max_tokens") ||
                         (chat && r.has("max_completion_tokens"));
}

bool is_token_id(const json::value& v) {
  return v.is_int64() && v.get_int64() >= 0 &&
         v.get_int64() <= std::numeric_limits<std::int32_t>::max();
}

RawPrompt prompt_of_ids(JsonReader& r, const json::array& ids, const std::string& path) {
  RawPrompt prompt;
  prompt.param = path;
  for (std::size_t i = 0; i < ids.size() && r.ok(); ++i) {
    if (!is_token_id(ids[i]))
      r.fail(path + "[" + std::to_string(i) + "]",
             path + "[" + std::to_string(i) + "] is no token id");
    else
      prompt.token_ids.push_back(static_cast<std::int32_t>(ids[i].get_int64()));
  }
  if (r.ok() && ids.empty()) r.fail(path, path + " is empty");
  return prompt;
}

/// Reads a text, several texts, the token ids of one, or those of several.
void read_prompts(JsonReader& r, std::int64_t n, std::vector<RawPrompt>& out) {
  const auto* prompt = r.raw("prompt");
  if (!prompt) return r.fail("prompt", "prompt is missing; give a text, or the token ids of one");
  const auto add_text = [&](const json::value& v, const std::string& path) {
    if (v.as_string().empty())
      r.fail(path, path + " is empty");
    else
      out.push_back({std::string(v.as_string()), {}, path});
  };
  if (prompt->is_string()) return add_text(*prompt, "prompt");
  const auto* list = prompt->if_array();
  if (!list || list->empty())
    return r.fail("prompt", "prompt must be a text, an array of texts, or an array of token ids");
  if (list->front().is_number()) {
    out.push_back(prompt_of_ids(r, *list, "prompt"));
    return;
  }
  if (static_cast<std::int64_t>(list->size()) * n > kMaxChoices)
    return r.fail("prompt", "prompt has " + std::to_string(list->size()) +
                                " items; prompts times n may be at most " +
                                std::to_string(kMaxChoices));
  const bool texts = list->front().is_string();
  for (std::size_t i = 0; i < list->size() && r.ok(); ++i) {
    const std::string path = "prompt[" + std::to_string(i) + "]";
    const auto& item = (*list)[i];
    if (texts ? !item.is_string() : !item.is_array())
      r.fail(path, path + " must be " + (texts ? "a text" : "an array of token ids") +
                       " as the first is");
    else if (texts)
      add_text(item, path);
    else
      out.push_back(prompt_of_ids(r, item.as_array(), path));
  }
}

}  // namespace

void read_openai_message(JsonReader& m, ChatMessage& out) {
  m.string("role", out.role, 64);
  if (!m.ok()) return;
  if (out.role == "function")
    return m.fail("role", m.path_of("role") + " is function, which the role tool has replaced",
                  "unsupported_parameter");
  if (out.role == "developer") out.role = "system";
  if (out.role != "system" && out.role != "user" && out.role != "assistant" && out.role != "tool")
    return m.fail("role", m.path_of("role") +
                              (out.role.empty() ? " is missing" : " is '" + out.role + "'") +
                              "; use system, developer, user, assistant or tool");
  for (const std::string_view name : {"function_call", "audio", "refusal"}) {
    const auto* v = m.raw(name);
    const bool nothing = v == nullptr || *v == "" || (v->is_object() && v->get_object().empty());
    if (!nothing)
      return m.fail(name, m.path_of(name) + " is not supported; leave it out",
                    "unsupported_parameter");
  }
  read_tool_members(m, out);
  read_content(m, !out.tool_calls.empty(), out.content);
  // Clients send answers back as they came; the model reads the text alone.
  if (out.role == "assistant") {
    for (const std::string_view name : {"citations", "annotations"}) (void)m.raw(name);
    m.pass_nulls();
  }
  m.finish();
}

void read_openai_messages(JsonReader& parent, QueryBody& out) {
  const auto* list = parent.array("messages", 1, 1024);
  if (!list && parent.ok()) parent.fail("messages", "messages is missing");
  if (!parent.ok()) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    JsonReader m((*list)[i], "messages[" + std::to_string(i) + "]");
    ChatMessage message;
    if (m.ok()) read_openai_message(m, message);
    if (m.ok() && message.role == "tool") check_tool_result(m, out.messages, message);
    if (m.ok() && message.role == "system" && !out.messages.empty())
      m.fail("role", m.path_of("role") +
                         ": system and developer messages must stand before the first turn");
    parent.adopt(m.error());
    if (!parent.ok()) return;
    if (message.role == "system") {
      if (!out.system) out.system_param = m.path_of("role");
      out.system = out.system ? *out.system + "\n\n" + message.content : message.content;
      continue;
    }
    out.messages.push_back(std::move(message));
    out.message_index.push_back(i);
  }
  if (out.messages.empty()) return parent.fail("messages", "messages has no turn of the user");
  const std::string& last = out.messages.back().role;
  const std::string place = "messages[" + std::to_string(list->size() - 1) + "].role";
  if (out.continue_last && last != "assistant")
    parent.fail(place, "continue_final_message needs a last message of the assistant");
  else if (!out.continue_last && out.generation_prompt && last == "assistant")
    parent.fail(place,
                "the last message must be the user's or a tool's; continue_final_message continues "
                "one of the assistant");
}

std::optional<JsonError> read_chat_completion(const json::value& body,
                                              const QueryDefaults& defaults, std::int64_t window,
                                              OpenAiBody& out) {
  JsonReader r(body, "");
  check_openai_fields(r, body, OpenAiPath::kChat);
  if (!r.ok()) return r.error();
  QueryBody& q = out.query;
  r.boolean("continue_final_message", q.continue_last);
  q.generation_prompt = !q.continue_last;
  r.boolean("add_generation_prompt", q.generation_prompt);
  if (r.ok() && q.continue_last && q.generation_prompt)
    r.fail("add_generation_prompt",
           "add_generation_prompt and continue_final_message exclude each other");
  read_openai_messages(r, q);
  q.chat_template = true;
  read_common(r, defaults, out);
  SamplingOptions& sampling = q.sampling;
  sampling.max_tokens = static_cast<std::int32_t>(
      std::clamp<std::int64_t>(window, 1, std::numeric_limits<std::int32_t>::max()));
  read_lengths(r, window, true, sampling);
  read_logprobs(r, sampling);
  read_answer_form(r, sampling);
  read_tools(r, q.tools);
  if (r.ok() && q.tools && q.continue_last)
    r.fail("tools", "tools cannot be combined with continue_final_message",
           "unsupported_parameter");
  return r.error();
}

std::optional<JsonError> read_completion(const json::value& body, const QueryDefaults& defaults,
                                         std::int64_t window, OpenAiBody& out) {
  JsonReader r(body, "");
  check_openai_fields(r, body, OpenAiPath::kCompletion);
  if (!r.ok()) return r.error();
  read_common(r, defaults, out);
  read_prompts(r, out.n, out.query.prompts);
  SamplingOptions& sampling = out.query.sampling;
  sampling.max_tokens = 16;
  read_lengths(r, window, false, sampling);
  if (r.has("logprobs")) {
    std::int64_t top = 0;
    r.integer("logprobs", top, 0, kMaxTopLogprobs);
    sampling.top_logprobs = static_cast<std::int32_t>(top);
  }
  read_answer_form(r, sampling);
  if (const auto* best = r.raw("best_of"); best && *best != out.n)
    r.fail("best_of", "best_of is supported with the value of n only; n gives several answers",
           "unsupported_parameter");
  return r.error();
}

}  // namespace quire
