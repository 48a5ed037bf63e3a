#include "server/handlers/prompt.h"

#include <charconv>
#include <utility>

#include "base/index.h"
#include "cachestore/format/key.h"
#include "engine/chat/question_words.h"

namespace quire {
namespace {

Status add_inline(const InlineDocument& d, std::size_t index, const PromptFormat& format,
                  QueryRequest& request, std::vector<QueryDocument>& shown) {
  auto tokens = format.document(d.title, d.text);
  if (!tokens.ok()) return tokens.status().with_field("documents[" + std::to_string(index) + "]");
  QueryDocument entry;
  entry.title = d.title;
  entry.content_hash = "sha256:" + sha256(d.text).hex();
  entry.first_context = request.contexts.size();
  entry.num_contexts = 1;
  shown.push_back(std::move(entry));
  QueryContext context;
  context.token_ids = std::move(tokens->ids);
  request.contexts.push_back(std::move(context));
  return {};
}

void add_cached(ResolvedDocument d, QueryRequest& request, std::vector<QueryDocument>& shown) {
  QueryDocument entry;
  entry.id = d.id;
  entry.title = d.title;
  entry.content_hash = d.content_hash;
  entry.miss = d.stale        ? MissReason::kModelChanged
               : d.other_salt ? MissReason::kSaltMismatch
                              : MissReason::kNone;
  entry.first_context = request.contexts.size();
  entry.num_contexts = d.contexts.size();
  shown.push_back(std::move(entry));
  for (auto& c : d.contexts) request.contexts.push_back(std::move(c));
}

/// Translates an error of the prompt format: its message indices become those of the client's
/// request.
Status in_clients_words(const Status& status, const QueryBody& body, std::size_t skipped) {
  constexpr std::string_view kOpen = "messages[";
  const std::string& field = status.field();
  if (field == "system") return status.with_field(body.system_param);
  if (!field.starts_with(kOpen)) return status;
  std::size_t index = 0;
  const char* begin = field.data() + kOpen.size();
  const auto [end, ec] = std::from_chars(begin, field.data() + field.size(), index);
  if (ec != std::errc() || index < skipped || index - skipped >= body.message_index.size())
    return status;
  return status.with_field("messages[" + std::to_string(body.message_index[index - skipped]) +
                           field.substr(to_size(end - field.data())));
}

Result<std::vector<std::int32_t>> conversation(const QueryBody& body, const PromptFormat& format) {
  std::vector<ChatMessage> messages;
  if (body.system) {
    // This is checked first, so that the error names the system message and not a turn.
    if (!format.supports_system())
      return format.prefix(*body.system).status().with_field(body.system_param);
    messages.push_back({"system", *body.system});
  }
  const std::size_t skipped = messages.size();
  messages.insert(messages.end(), body.messages.begin(), body.messages.end());
  auto ids = format.chat(messages);
  if (!ids.ok()) return in_clients_words(ids.status(), body, skipped);
  return ids;
}

Result<std::vector<std::int32_t>> question(const QueryBody& body, const PromptFormat& format) {
  if (body.query) {
    auto ids = format.suffix(*body.query);
    if (!ids.ok()) return ids.status().with_field("query");
    return ids;
  }
  auto ids = format.suffix(std::span<const ChatMessage>(body.messages));
  if (!ids.ok()) return in_clients_words(ids.status(), body, 0);
  return ids;
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

Status add_documents(const QueryBody& body, const PromptFormat& format,
                     std::vector<ResolvedDocument> resolved, QueryRequest& request,
                     std::vector<QueryDocument>& shown) {
  std::size_t next_inline = 0, next_cached = 0;
  for (std::size_t i = 0; i <= body.document_ids.size(); ++i) {
    for (; next_inline < body.documents.size() && body.documents[next_inline].after_ids <= i;
         ++next_inline) {
      QUIRE_RETURN_IF_ERROR(
          add_inline(body.documents[next_inline], next_inline, format, request, shown));
    }
    // Missing documents that may be skipped were not resolved.
    if (i < body.document_ids.size() && next_cached < resolved.size() &&
        resolved[next_cached].id == body.document_ids[i]) {
      add_cached(std::move(resolved[next_cached++]), request, shown);
    }
  }
  return {};
}

Result<PromptFormat> prompt_format(const QueryBody& body, const Engine& engine,
                                   std::string_view ns) {
  return engine.prompt_format_of(ns).with(body.wording);
}

Status build_prompt(const QueryBody& body, const Engine& engine, const PromptFormat& format,
                    QueryRequest& request, std::vector<std::vector<std::int32_t>>& suffixes) {
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
  if (body.chat_template && request.contexts.empty()) {
    QUIRE_ASSIGN_OR_RETURN(suffixes.emplace_back(), conversation(body, format));
    return {};
  }
  std::optional<std::string_view> system;
  if (body.system) system = *body.system;
  auto prefix = format.prefix(system);
  if (!prefix.ok()) return in_clients_words(prefix.status(), body, 0);
  request.prefix_ids = std::move(*prefix);
  QUIRE_ASSIGN_OR_RETURN(suffixes.emplace_back(), question(body, format));
  if (request.contexts.empty()) return {};
  const ChatMessage asked{"user", body.query.value_or("")};
  const auto messages = body.query ? std::span(&asked, 1)
                                   : std::span<const ChatMessage>(body.messages);
  QUIRE_ASSIGN_OR_RETURN(const auto words, question_words(format, messages, 0, suffixes.back()));
  request.question_words = {words.first, words.second};
  return {};
}

std::string question_text(const QueryBody& body) {
  if (body.query) return *body.query;
  if (!body.messages.empty()) return body.messages.back().content;
  return body.prompts.empty() ? std::string() : body.prompts.front().text;
}

}  // namespace quire
