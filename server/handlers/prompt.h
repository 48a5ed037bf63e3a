/// Turns a checked body into the engine's token ids.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "ingest/ingest_service.h"
#include "server/json/query_request.h"
#include "server/reply/query_record.h"
#include "server/support/problem.h"

namespace quire {

/// Checks that the texts of a query may fit the model's window, before any of them is tokenized or
/// searched for. Returns what is wrong with the first that cannot.
std::optional<Problem> check_lengths(const QueryBody& body, const Engine& engine);

/// Enters what the body calls its question and its documents, for the engine's errors.
void name_fields(const QueryBody& body, QueryRequest& request);

/// Adds the documents' contexts to the request in prompt order, inline ones at their places among
/// the cached ones. `shown` gets the reply's entries. `resolved` holds the results for
/// body.document_ids, in their order. Errors: kInvalidArgument (field: the place of the document).
Status add_documents(const QueryBody& body, const PromptFormat& format,
                     std::vector<ResolvedDocument> resolved, QueryRequest& request,
                     std::vector<QueryDocument>& shown);

/// Returns the namespace's format with the body's own words. Errors: kInvalidArgument (field
/// "prompt.intro", "prompt.document" or "prompt.question").
Result<PromptFormat> prompt_format(const QueryBody& body, const Engine& engine,
                                   std::string_view ns);

/// Builds the tokens before the documents (request.prefix_ids) and after them: one suffix for each
/// prompt of the body. It needs request.contexts. Where the model's template has no place for
/// tools, they are described in words, and message_index follows the turns that stand for the
/// messages. Errors: kInvalidArgument, with the field as the body names it.
Status build_prompt(QueryBody& body, const Engine& engine, const PromptFormat& format,
                    QueryRequest& request, std::vector<std::vector<std::int32_t>>& suffixes);

/// Restricts the answer to calls of the body's tools as tool_choice and strict ask for it, and
/// shows the tokens that mark calls. `sampling` has the form of other answers. Errors:
/// kUnimplemented and kInvalidArgument with field "tools[i]..." or "stop".
Status constrain_calls(const QueryBody& body, const Engine& engine, SamplingOptions& sampling);

std::vector<std::string> tool_names(const ToolUse& use);

/// Returns the question for records and logs, where keeping or logging texts is switched on.
std::string question_text(const QueryBody& body);

}  // namespace quire
