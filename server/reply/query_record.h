/// What the service keeps of a query, from which its replies are made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/format/read_behind.h"
#include "engine/api/plan.h"
#include "engine/api/query_stats.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/tools.h"
#include "server/reply/citation_reply.h"
#include "server/reply/citation_style.h"

namespace quire {

/// QueryDocument is the reply's entry for one document of the prompt.
struct QueryDocument {
  std::string id;  ///< empty: inline
  std::string title, content_hash;
  std::string chunking;  ///< how it was cut (ResolvedDocument::chunking)
  /// A miss known before the engine looked the document up (other model, other salt).
  MissReason miss = MissReason::kNone;
  std::size_t first_context = 0, num_contexts = 0;
  ReadBehind read_behind;
  std::optional<double> score;  ///< retrieval score, if the service chose the document
  /// Its chunks in the prompt, where these are not all; empty: the whole document.
  std::vector<std::int32_t> chunks;
  std::size_t all_chunks = 0;  ///< how many it has, where `chunks` is set
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
  PromptWording wording;         ///< words around documents and question
  CitationStyle citation_style;  ///< of citations in `cited_answer`
  std::string finish_reason;
  std::vector<ToolCall> tool_calls;  ///< calls of the answer, which are no part of `answer`
  std::vector<double> token_ms;      ///< arrival of each token, in milliseconds since the request
  std::vector<Citation> citations;
  /// Code points of the answer's sentences that no document of the prompt supports, half-open.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> unsupported;
  double tokenize_ms = 0, resolve_ms = 0, total_ms = 0, ttft_ms = 0;
  /// Why `auto` takes no approximation although the model has a certificate for one. It is shown if
  /// `auto` took `exact`.
  std::string exact_note;
};

}  // namespace quire
