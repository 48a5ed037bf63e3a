/// Finding documents, for POST /v1/retrieve and for queries that name none.
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

/// The best documents for a question, best first, those without a word of it left out (bm25); may
/// be empty. May wait on disk. A problem: there is no index (yet).
std::optional<Problem> choose_documents(Call& call, const std::string& question,
                                        const QueryRetrieval& retrieval,
                                        std::vector<ChosenDocument>& out);

}  // namespace quire
