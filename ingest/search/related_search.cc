#include "ingest/search/related_search.h"

#include <algorithm>
#include <utility>

namespace quire {

FindChunks find_chunks_in(Retrieval& retrieval) {
  return [&retrieval](std::string_view ns, const std::string& text,
                      std::size_t most) -> Result<std::vector<FoundChunk>> {
    RetrieveRequest request;
    request.query = text;
    request.k = most;
    request.scorer = RetrieveScorer::kBm25;
    request.links = 0;
    QUIRE_ASSIGN_OR_RETURN(const auto passages, retrieval.search(ns, request));
    std::vector<FoundChunk> out;
    for (const Passage& p : passages)
      if (p.score > 0) out.push_back({p.document_id, p.chunk});
    return out;
  };
}

}  // namespace quire
