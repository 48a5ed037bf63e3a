/// Turns a checked body into the engine's token ids.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "ingest/ingest_service.h"
#include "server/json/query_request.h"
#include "server/reply/query_record.h"

namespace quire {

/// Adds the documents' contexts to the request in prompt order, inline ones at their places among
/// the cached ones. `shown` gets the reply's entries. `resolved` holds the results for
/// body.document_ids, in their order. Errors: kInvalidArgument (field "documents[i]").
Status add_documents(const QueryBody& body, const PromptFormat& format,
                     std::vector<ResolvedDocument> resolved, QueryRequest& request,
                     std::vector<QueryDocument>& shown);

/// Returns the namespace's format with the body's own words. Errors: kInvalidArgument (field
/// "prompt.intro", "prompt.document" or "prompt.question").
Result<PromptFormat> prompt_format(const QueryBody& body, const Engine& engine,
                                   std::string_view ns);

/// Builds the tokens before the documents (request.prefix_ids) and after them: one suffix for each
/// prompt of the body. It needs request.contexts. Errors: kInvalidArgument, with the field as the
/// body names it.
Status build_prompt(const QueryBody& body, const Engine& engine, const PromptFormat& format,
                    QueryRequest& request, std::vector<std::vector<std::int32_t>>& suffixes);

/// Returns the question for records and logs, where keeping or logging texts is switched on.
std::string question_text(const QueryBody& body);

}  // namespace quire
