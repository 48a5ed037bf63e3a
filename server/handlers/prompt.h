/// A checked body to the engine's token ids.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"
#include "ingest/ingest_service.h"
#include "server/json/query_codec.h"

namespace quire {

/// Contexts of the documents in prompt order, inline ones where they stand among the cached ones,
/// and how the reply shows them. `resolved`: what was found of body.document_ids, in their order.
/// Errors: kInvalidArgument (field "documents[i]").
Status add_documents(const QueryBody& body, const PromptFormat& format,
                     std::vector<ResolvedDocument> resolved, QueryRequest& request,
                     std::vector<QueryDocument>& shown);

/// What stands before the documents (request.prefix_ids) and behind them: one suffix for each
/// prompt of the body. Needs request.contexts. Errors: kInvalidArgument, with the field as the body
/// names it.
Status build_prompt(const QueryBody& body, const Engine& engine, QueryRequest& request,
                    std::vector<std::vector<std::int32_t>>& suffixes);

/// The question as it is kept and logged where that is switched on.
std::string question_text(const QueryBody& body);

}  // namespace quire
