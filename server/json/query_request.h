/// Reads what a query asks for from JSON.
#pragma once

#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "engine/api/plan.h"
#include "engine/chat/tools.h"
#include "engine/engine.h"
#include "server/json/retrieve_codec.h"

namespace quire {

enum class OnNotReady : std::uint8_t { kWait, kError, kCompute };
enum class ExplainLevel : std::uint8_t { kNone, kSummary, kBlocks };

struct InlineDocument {
  std::string title, text;
  std::size_t after_ids = 0;        ///< how many of document_ids precede it in the prompt
  std::string param = "documents";  ///< its place in the request, for error messages
};

/// RawPrompt is a prompt used as it is, without a template: text that may spell out control tokens,
/// or token ids.
struct RawPrompt {
  std::string text;
  std::vector<std::int32_t> token_ids;  ///< used when not empty
  std::string param = "prompt";         ///< its place in the request, for error messages
};

/// QueryBody says what to generate: the checked body of POST /v1/query, or the equivalent of an
/// OpenAI-style body.
struct QueryBody {
  std::optional<std::string> query;
  std::vector<ChatMessage> messages;        ///< without the system message
  std::vector<std::size_t> message_index;   ///< place of each of `messages` in the request
  std::string messages_param = "messages";  ///< what the request calls them, for error messages
  bool lists_messages = true;               ///< false: the request has one text in their stead
  /// If there are no documents, messages are rendered by the model's own chat template instead of
  /// the form for documents.
  bool chat_template = false;
  /// The answer continues the last message, which is the assistant's.
  bool continue_last = false;
  bool generation_prompt = true;  ///< the opening of an answer stands behind the messages
  /// Functions that the answer may call; they need `messages`.
  std::optional<ToolUse> tools;
  std::vector<RawPrompt> prompts;  ///< instead of query and messages
  std::vector<std::string> document_ids;
  /// Place of each of document_ids in the request, for error messages.
  std::vector<std::string> document_params;
  std::vector<InlineDocument> documents;
  /// Set if the body names neither document_ids nor documents, or asks for it.
  std::optional<QueryRetrieval> retrieve;
  PromptWording wording;  ///< words around documents and question; "auto": the namespace's
  std::optional<std::string> citation_style;  ///< pattern of CitationStyle; none: the namespace's
  std::optional<std::string> system;
  std::string system_param = "system";  ///< its place in the request, for error messages
  std::string model;
  bool stream = false, skip_missing = false, citations = true;
  OnNotReady on_not_ready = OnNotReady::kWait;
  ExplainLevel explain = ExplainLevel::kSummary;
  std::int64_t timeout_ms = 600'000;
  std::string cache_salt;
  SamplingOptions sampling;
  CacheOptions cache;
};
struct QueryDefaults {
  std::string strategy, compress, decode;
  std::size_t max_documents = 64;
};
std::optional<JsonError> read_query(const boost::json::value& body, const QueryDefaults& defaults,
                                    QueryBody& out);

}  // namespace quire
