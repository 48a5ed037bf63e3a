/// The replies of POST /v1/retrieve and POST /v1/rerank.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingest/search/retrieval.h"
#include "server/reply/reply.h"

namespace quire {

/// RankedPassages are the passages found, best first, which must outlive it.
struct RankedPassages {
  const std::vector<Passage>& passages;
  RetrieveScorer scorer = RetrieveScorer::kBm25;
  /// Documents without an embedding yet, for a scorer that uses embeddings.
  std::optional<std::uint64_t> pending_documents = {};
  std::string reranker = {};  ///< the cross-encoder that ranked them anew; empty: none did
};
const Reply<Passage>& passage_reply();
const Reply<RankedPassages>& retrieve_reply();
/// Returns the text of retrieve_reply() for these passages, whose texts it takes: each goes once it
/// is written, so that whole documents are held once. `reply` says the rest.
std::string take_retrieve_text(std::vector<Passage>& passages, const RankedPassages& reply);

struct RankedText {
  std::size_t index = 0;  ///< in the request
  double score = 0;
  std::optional<std::string> text;  ///< none: it was not asked for
};
/// Texts ranked, best first.
struct RankedTexts {
  std::string id, model;
  std::string_view scorer;  ///< "cross_encoder", "encoder" or "bm25"
  std::vector<RankedText> results;
  std::int64_t tokens = 0;  ///< read by the model
};
const Reply<RankedText>& ranked_text_reply();
const Reply<RankedTexts>& rerank_reply();

}  // namespace quire
