/// Converts queries between JSON and the engine's values.
#pragma once

#include <boost/json/object.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/plan.h"
#include "engine/engine.h"
#include "server/json/citation_codec.h"
#include "server/json/reader.h"
#include "server/json/retrieve_codec.h"

namespace quire {

enum class OnNotReady : std::uint8_t { kWait, kError, kCompute };
enum class ExplainLevel : std::uint8_t { kNone, kSummary, kBlocks };

struct InlineDocument {
  std::string title, text;
  std::size_t after_ids = 0;  ///< how many of document_ids precede it in the prompt
};

/// RawPrompt is a prompt used as it is, without a template: text that may spell out control tokens,
/// or token ids.
struct RawPrompt {
  std::string text;
  std::vector<std::int32_t> token_ids;  ///< used when not empty
};

/// QueryBody says what to generate: the checked body of POST /v1/query, or the equivalent of an
/// OpenAI-style body.
struct QueryBody {
  std::optional<std::string> query;
  std::vector<ChatMessage> messages;       ///< without the system message
  std::vector<std::size_t> message_index;  ///< place of each of `messages` in the request
  /// If there are no documents, messages are rendered by the model's own chat template instead of
  /// the form for documents.
  bool chat_template = false;
  std::vector<RawPrompt> prompts;  ///< instead of query and messages
  std::vector<std::string> document_ids;
  /// Place of each of document_ids in the request, for error messages.
  std::vector<std::string> document_params;
  std::vector<InlineDocument> documents;
  /// Set if the body names neither document_ids nor documents.
  std::optional<QueryRetrieval> retrieve;
  std::optional<std::string> system;
  std::string system_param = "system";  ///< its place in the request, for error messages
  std::string model;
  bool stream = false, skip_missing = false, citations = true;
  OnNotReady on_not_ready = OnNotReady::kWait;
  ExplainLevel explain = ExplainLevel::kSummary;
  std::int64_t timeout_ms = 30000;
  std::string cache_salt;
  SamplingOptions sampling;
  CacheOptions cache;
};
struct QueryDefaults {
  std::string strategy, compress, decode;
  std::size_t max_documents = 64;
};
std::optional<ReadError> read_query(const boost::json::value& body, const QueryDefaults& defaults,
                                    QueryBody& out);

/// QueryDocument is the reply's entry for one document of the prompt.
struct QueryDocument {
  std::string id;  ///< empty: inline
  std::string title, content_hash;
  /// A miss known before the engine looked the document up (other model, other salt).
  MissReason miss = MissReason::kNone;
  std::size_t first_context = 0, num_contexts = 0;
  std::optional<double> score;  ///< retrieval score, if the service chose the document
};

/// QueryRecord is one finished (or planned) query. The reply, the explanation and the ring are made
/// from it.
struct QueryRecord {
  std::string id, ns, model, question, answer;
  std::int64_t created_ms = 0;
  bool finished = false;
  Plan plan;
  QueryStats stats;
  std::vector<QueryDocument> documents;
  std::string finish_reason;
  std::vector<double> token_ms;  ///< arrival of each token, in milliseconds since the request
  std::vector<Citation> citations;
  double tokenize_ms = 0, resolve_ms = 0, total_ms = 0, ttft_ms = 0;
  /// Why `auto` takes no approximation although the model has a certificate for one. It is shown if
  /// `auto` took `exact`.
  std::string exact_note;
};

boost::json::object usage_json(const QueryRecord& record);
boost::json::object cache_json(const QueryRecord& record);
boost::json::object timings_json(const QueryRecord& record);
boost::json::array query_documents_json(const QueryRecord& record);
/// Returns the citations with their quotes.
boost::json::array citations_json(const QueryRecord& record);
/// Returns the final object. `with_answer` is false for the SSE `done` event.
boost::json::object query_result_json(const QueryRecord& record, bool with_answer,
                                      QuoteUse quotes = QuoteUse::kShow);
/// Returns the SSE `plan` event.
boost::json::object plan_event_json(const QueryRecord& record);
/// Returns the reply of POST /v1/query/plan.
boost::json::object plan_result_json(const QueryRecord& record);
/// Returns one entry of GET /v1/queries.
boost::json::object query_entry_json(const QueryRecord& record, bool with_text);

/// BlockChars is the character range of a block in its document's text, if known.
struct BlockChars {
  std::uint64_t begin = 0, end = 0;
  bool known = false;
};
/// Returns the explanation. chars[i] belongs to the i-th block of the plan in order; `chars` may be
/// shorter.
boost::json::object explain_json(const QueryRecord& record, const std::vector<BlockChars>& chars);
/// Returns "b-" and 12 hex digits.
std::string block_id_text(const std::array<std::uint8_t, 16>& id);

/// Returns HIT, PARTIAL, MISS or BYPASS.
std::string_view cache_header(const Plan& plan);

}  // namespace quire
