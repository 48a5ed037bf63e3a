#include "server/handlers/prompt.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/index.h"
#include "cachestore/format/key.h"
#include "engine/chat/question_words.h"
#include "engine/chat/text_bound.h"
#include "engine/chat/tool_wording.h"
#include "engine/sample/tool_grammar.h"
#include "server/handlers/common.h"

namespace quire {
namespace {

Status add_inline(const InlineDocument& d, const PromptFormat& format, QueryRequest& request,
                  std::vector<QueryDocument>& shown) {
  auto tokens = format.document(d.title, d.text);
  if (!tokens.ok()) return tokens.status().with_field(d.param);
  QueryDocument entry;
  entry.title = d.title;
  entry.content_hash = "sha256:" + sha256(d.text).hex();
  entry.first_context = request.contexts.size();
  entry.num_contexts = 1;
  shown.push_back(std::move(entry));
  QueryContext context;
  context.title = d.title;
  context.param = d.param;
  context.token_ids = std::move(tokens->ids);
  request.contexts.push_back(std::move(context));
  return {};
}

void add_cached(ResolvedDocument d, const std::string& param, QueryRequest& request,
                std::vector<QueryDocument>& shown) {
  QueryDocument entry;
  entry.id = d.id;
  entry.title = d.title;
  entry.content_hash = d.content_hash;
  entry.chunking = d.chunking;
  entry.miss = d.stale        ? MissReason::kModelChanged
               : d.other_salt ? MissReason::kSaltMismatch
                              : MissReason::kNone;
  entry.first_context = request.contexts.size();
  entry.num_contexts = d.contexts.size();
  if (!d.contexts.empty()) entry.read_behind = d.contexts.front().read_behind;
  shown.push_back(std::move(entry));
  for (auto& c : d.contexts) {
    c.param = param;
    request.contexts.push_back(std::move(c));
  }
}

/// Returns the place of a turn in the client's request.
std::string message_param(const QueryBody& body, std::size_t turn) {
  if (!body.lists_messages) return body.messages_param;
  return body.messages_param + "[" + std::to_string(body.message_index[turn]) + "]";
}

/// Returns the list that an item is part of: "documents" for "documents[1]".
std::string list_of(const std::string& param) { return param.substr(0, param.find('[')); }

/// Translates an error of the prompt format: its message indices become those of the client's
/// request.
Status in_clients_words(const Status& status, const QueryBody& body, std::size_t skipped) {
  constexpr std::string_view kOpen = "messages[";
  const std::string& field = status.field();
  if (field == "system") return status.with_field(body.system_param);
  if (field == "messages") return status.with_field(body.messages_param);
  if (!field.starts_with(kOpen)) return status;
  std::size_t index = 0;
  const char* begin = field.data() + kOpen.size();
  const auto [end, ec] = std::from_chars(begin, field.data() + field.size(), index);
  if (ec != std::errc() || index < skipped || index - skipped >= body.message_index.size())
    return status;
  const std::size_t member = std::min(field.size(), to_size(end - field.data()) + 1);
  return status.with_field(message_param(body, index - skipped) +
                           (body.lists_messages ? field.substr(member) : std::string()));
}

/// The turns of a body as the model's format takes them.
struct Turns {
  std::optional<std::string> system;
  std::vector<ChatMessage> messages;
  std::string_view tools;  ///< JSON; empty: none, or described in the messages
  bool special = false;    ///< tools, calls or results are there, which only a template renders
};

Result<Turns> turns_of(QueryBody& body, const PromptFormat& format, bool with_documents) {
  Turns out;
  if (body.tools) out.tools = body.tools->json;
  out.special = body.tools.has_value() ||
                std::any_of(body.messages.begin(), body.messages.end(), [](const ChatMessage& m) {
                  return m.role == "tool" || !m.tool_calls.empty();
                });
  if (!out.special || format.renders_tools(with_documents)) {
    out.system = body.system;
    out.messages = body.messages;
    return out;
  }
  auto worded = tools_in_words(body.system, body.messages, out.tools, format.tool_style(),
                               format.supports_system());
  if (!worded.ok()) return worded.status();
  std::vector<std::size_t> index;
  for (const std::size_t origin : worded->origin) index.push_back(body.message_index[origin]);
  body.message_index = std::move(index);
  out.system = std::move(worded->system);
  out.messages = std::move(worded->messages);
  out.tools = {};
  out.special = false;
  return out;
}

Result<std::vector<std::int32_t>> conversation(const QueryBody& body, const Turns& turns,
                                               const PromptFormat& format) {
  std::vector<ChatMessage> messages;
  if (turns.system) {
    // This is checked first, so that the error names the system message and not a turn.
    if (!format.supports_system())
      return format.prefix(*turns.system).status().with_field(body.system_param);
    messages.push_back({"system", *turns.system});
  }
  const std::size_t skipped = messages.size();
  messages.insert(messages.end(), turns.messages.begin(), turns.messages.end());
  auto ids = format.chat(messages, body.generation_prompt, turns.tools, body.continue_last);
  if (!ids.ok()) return in_clients_words(ids.status(), body, skipped);
  return ids;
}

/// Builds what stands before the documents and behind them.
Result<AroundDocuments> around(const QueryBody& body, const Turns& turns,
                               const PromptFormat& format) {
  std::optional<std::string_view> system;
  if (turns.system) system = *turns.system;
  if (turns.special) {
    auto made = format.around_documents(system, turns.messages, turns.tools, body.continue_last);
    if (!made.ok()) return in_clients_words(made.status(), body, 0);
    return made;
  }
  AroundDocuments out;
  auto before = format.prefix(system);
  if (!before.ok()) return in_clients_words(before.status(), body, 0);
  out.before = std::move(*before);
  auto after = body.query ? format.suffix(*body.query)
                          : format.suffix(turns.messages, body.continue_last);
  if (!after.ok())
    return body.query ? after.status().with_field("query")
                      : in_clients_words(after.status(), body, 0);
  out.after = std::move(*after);
  return out;
}

std::vector<std::int32_t> raw_ids(const RawPrompt& prompt, const Tokenizer& tokenizer,
                                  bool after_documents) {
  std::vector<std::int32_t> ids = prompt.token_ids;
  if (ids.empty())
    ids = tokenizer.encode(prompt.text, Special::kParse,
                           after_documents ? Start::kMiddle : Start::kText);
  // BOS is already first; a prompt that spells it out means the same one.
  if (!ids.empty() && prompt.token_ids.empty() && tokenizer.add_bos() &&
      tokenizer.bos_id() == ids.front())
    ids.erase(ids.begin());
  return ids;
}

}  // namespace

std::optional<Problem> check_lengths(const QueryBody& body, const Engine& engine) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const EngineInfo& info = engine.info();
  // A prompt compressor reads what does not fit the model's own window.
  const std::int64_t window = body.cache.prompt_compression == "none"
                                  ? info.max_model_len
                                  : std::max(info.max_model_len, info.draft_max_model_len);
  TextBound conversation(tokenizer, window);
  const auto check = [](TextBound& bound, std::string_view text, std::string_view subject,
                        const std::string& param) -> std::optional<Problem> {
    const auto excess = bound.add(text);
    if (!excess) return std::nullopt;
    return too_long_problem(*excess, subject,
                            "the window (the model's own, or model.max_model_len) takes no more; "
                            "send a shorter text, or store it as a document",
                            param);
  };
  if (body.system)
    if (auto p = check(conversation, *body.system, "the system message", body.system_param))
      return p;
  for (std::size_t i = 0; i < body.messages.size(); ++i)
    if (auto p = check(conversation, body.messages[i].content, "the conversation",
                       message_param(body, i)))
      return p;
  if (body.query)
    if (auto p = check(conversation, *body.query, "the question", "query")) return p;
  for (const RawPrompt& prompt : body.prompts) {
    TextBound alone(tokenizer, window);
    if (auto p = check(alone, prompt.text, "the prompt", prompt.param)) return p;
  }
  for (const InlineDocument& d : body.documents) {
    TextBound alone(tokenizer, window);
    if (auto p = check(alone, d.title, d.param, d.param)) return p;
    if (auto p = check(alone, d.text, d.param, d.param)) return p;
  }
  return std::nullopt;
}

void name_fields(const QueryBody& body, QueryRequest& request) {
  request.question_param = !body.prompts.empty() ? body.prompts.front().param
                           : body.query          ? "query"
                                                 : body.messages_param;
  // Documents that the service chose for the question have no field of their own.
  request.documents_param = !body.document_params.empty() ? list_of(body.document_params.front())
                            : !body.documents.empty()     ? list_of(body.documents.front().param)
                                                          : request.question_param;
}

Status add_documents(const QueryBody& body, const PromptFormat& format,
                     std::vector<ResolvedDocument> resolved, QueryRequest& request,
                     std::vector<QueryDocument>& shown) {
  std::size_t next_inline = 0, next_cached = 0;
  for (std::size_t i = 0; i <= body.document_ids.size(); ++i) {
    for (; next_inline < body.documents.size() && body.documents[next_inline].after_ids <= i;
         ++next_inline) {
      QUIRE_RETURN_IF_ERROR(add_inline(body.documents[next_inline], format, request, shown));
    }
    // Missing documents that may be skipped were not resolved.
    if (i < body.document_ids.size() && next_cached < resolved.size() &&
        resolved[next_cached].id == body.document_ids[i]) {
      add_cached(
          std::move(resolved[next_cached++]),
          i < body.document_params.size() ? body.document_params[i] : request.documents_param,
          request, shown);
    }
  }
  return {};
}

Result<PromptFormat> prompt_format(const QueryBody& body, const Engine& engine,
                                   std::string_view ns) {
  return engine.prompt_format_of(ns).with(body.wording);
}

Status build_prompt(QueryBody& body, const Engine& engine, const PromptFormat& format,
                    QueryRequest& request, std::vector<std::vector<std::int32_t>>& suffixes) {
  request.sampling.continues = !body.prompts.empty() || body.continue_last;
  if (!body.prompts.empty()) {
    const Tokenizer& tokenizer = engine.tokenizer();
    // Token ids are used as they are: their sender has placed BOS.
    const bool bos = tokenizer.add_bos() && tokenizer.bos_id() &&
                     body.prompts.front().token_ids.empty();
    if (bos) request.prefix_ids.push_back(*tokenizer.bos_id());
    for (const RawPrompt& p : body.prompts)
      suffixes.push_back(raw_ids(p, tokenizer, !request.contexts.empty()));
    return {};
  }
  const bool with_documents = !(body.chat_template && request.contexts.empty());
  auto turns = turns_of(body, format, with_documents);
  if (!turns.ok()) return in_clients_words(turns.status(), body, 0);
  if (!with_documents) {
    QUIRE_ASSIGN_OR_RETURN(suffixes.emplace_back(), conversation(body, *turns, format));
    return {};
  }
  if (!body.generation_prompt && !body.continue_last)
    return Status::invalid("add_generation_prompt", "must be true where there are documents");
  QUIRE_ASSIGN_OR_RETURN(AroundDocuments made, around(body, *turns, format));
  request.prefix_ids = std::move(made.before);
  suffixes.push_back(std::move(made.after));
  // Where tools or an open answer are part of the prompt, all of the suffix counts as the question.
  if (request.contexts.empty() || turns->special || body.continue_last) return {};
  const ChatMessage asked{"user", body.query.value_or("")};
  const auto messages = body.query ? std::span(&asked, 1)
                                   : std::span<const ChatMessage>(turns->messages);
  QUIRE_ASSIGN_OR_RETURN(const auto words, question_words(format, messages, 0, suffixes.back()));
  request.question_words = {words.first, words.second};
  return {};
}

Status constrain_calls(const QueryBody& body, const Engine& engine, SamplingOptions& sampling) {
  if (!body.tools) return {};
  const ToolUse& use = *body.tools;
  sampling.shown_tokens = tool_marker_ids(engine.tokenizer());
  const bool strict = std::any_of(use.tools.begin(), use.tools.end(),
                                  [](const ToolSpec& t) { return t.strict; });
  const bool must_call = use.choice == ToolChoice::kRequired;
  if (!must_call && !strict && !sampling.grammar) return {};
  if (!sampling.stop.empty())
    return Status(Code::kUnimplemented,
                  "stop cannot be combined with calls that must follow a schema", "stop");
  ToolAnswer answer{.style = engine.prompt_format().tool_style(),
                    .only = use.only,
                    .must_call = must_call,
                    .parallel = use.parallel,
                    .instead = must_call ? nullptr : sampling.grammar};
  QUIRE_ASSIGN_OR_RETURN(sampling.grammar, tool_grammar(use.tools, answer, must_call));
  return {};
}

std::vector<std::string> tool_names(const ToolUse& use) {
  std::vector<std::string> names;
  for (const ToolSpec& tool : use.tools) names.push_back(tool.name);
  return names;
}

std::string question_text(const QueryBody& body) {
  if (body.query) return *body.query;
  // The last message may be a tool's result.
  for (auto m = body.messages.rbegin(); m != body.messages.rend(); ++m)
    if (m->role == "user") return m->content;
  return body.prompts.empty() ? std::string() : body.prompts.front().text;
}

}  // namespace quire
