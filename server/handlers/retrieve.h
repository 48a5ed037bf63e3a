/// Finds documents, for POST /v1/retrieve and for queries that name none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/json/retrieve_codec.h"
#include "server/service/call.h"
#include "server/support/problem.h"

namespace quire {

struct ChosenDocument {
  std::string id;
  double score = 0;
};

/// Finds the best documents for a question, best first; possibly none. With bm25, documents without
/// a word of the question are left out. It may wait on disk. A problem: there is no index (yet).
std::optional<Problem> choose_documents(Call& call, const std::string& question,
                                        const QueryRetrieval& retrieval,
                                        std::vector<ChosenDocument>& out);

}  // namespace quire
