/// Replies of queries: usage, documents, and the objects that hold them.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <optional>

#include "server/reply/query_record.h"
#include "server/reply/reply.h"

namespace quire {

const Reply<FateCounts>& fates_reply();
const Reply<QueryRecord>& usage_reply();
boost::json::object usage_json(const QueryRecord& record);

/// DocumentUse is what a query did with one document of its prompt. The document must outlive it.
struct DocumentUse {
  const QueryDocument& document;
  std::int64_t tokens = 0, blocks = 0, kept_blocks = 0, recomputed_blocks = 0;
  double kept_tokens = 0;  ///< a block kept in some layers counts in proportion to them
  std::int64_t recomputed_tokens = 0;
  std::optional<double> keep_share, bias_weight;  ///< the largest of its chunks
};
const Reply<DocumentUse>& query_document_reply();
boost::json::array query_documents_json(const QueryRecord& record);

/// Returns the citations with their quotes.
boost::json::array citations_json(const QueryRecord& record);

/// QueryAnswer is a finished query as a reply shows it. The record must outlive it.
struct QueryAnswer {
  const QueryRecord& record;
  bool texts = true;  ///< false: without question, answer and quotes
  bool explain_url = true;
  std::optional<boost::json::object> logprobs = {}, explanation = {};  ///< if asked for
};
/// The reply of POST /v1/query.
const Reply<QueryAnswer>& query_result_reply();
/// The SSE `done` event, which has no answer.
const Reply<QueryAnswer>& query_end_reply();
/// One entry of GET /v1/queries.
const Reply<QueryAnswer>& query_entry_reply();
/// The SSE `plan` event.
const Reply<QueryRecord>& plan_event_reply();

}  // namespace quire
