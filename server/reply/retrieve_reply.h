/// The reply of POST /v1/retrieve.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <vector>

#include "ingest/retrieval.h"
#include "server/reply/reply.h"

namespace quire {

/// RankedPassages are the passages found, best first, which must outlive it.
struct RankedPassages {
  const std::vector<Passage>& passages;
  RetrieveScorer scorer = RetrieveScorer::kBm25;
  /// Documents without an embedding yet, for a scorer that uses embeddings.
  std::optional<std::uint64_t> pending_documents = {};
};
const Reply<Passage>& passage_reply();
const Reply<RankedPassages>& retrieve_reply();

}  // namespace quire
