/// Decides which chunks of its documents a prompt is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/reply/query_record.h"

namespace quire {

/// A chunk that search found for a question.
struct RankedChunk {
  std::string document_id;
  std::int32_t chunk = 0;
  /// Of the version that was searched (Passage); the number means nothing in another one.
  std::string content_hash = {}, chunking = {};
};

/// Ranks chunks of documents as they are now, best first.
using RankChunks = std::function<std::vector<RankedChunk>(const std::vector<std::string>& ids)>;
/// Replaces chunks of documents that have changed since the search, and are in the prompt as they
/// are now, by as many that `rank` finds in them; less where it finds less.
void replace_outdated(std::span<const QueryDocument> documents, const RankChunks& rank,
                      std::vector<RankedChunk>& ranked);

struct ChunkLimits {
  std::int64_t tokens = std::numeric_limits<std::int64_t>::max();  ///< of all documents together
  /// Chunks on either side of a found one that are shown with it, where there is room.
  std::int32_t neighbours = 1;
  /// A document of which a chunk was found is shown whole if it has at most that many tokens.
  std::int64_t whole_document_tokens = 1024;
};

/// Keeps of a prompt's contexts, which are all chunks of its documents, those that serve the
/// question: found chunks in the order of `ranked`, then their neighbours, each if it fits the
/// limit. Chunks of other versions than those of the prompt count as not found. What stays is in
/// its old order, and no text twice. Inline documents stay. If nothing was found, the first chunks
/// stay. `documents` are the reply's entries; those without a chunk go, and the others say which of
/// their chunks stay (QueryDocument::chunks).
void keep_chunks(std::span<const RankedChunk> ranked, const ChunkLimits& limits,
                 std::vector<QueryContext>& contexts, std::vector<QueryDocument>& documents);

}  // namespace quire
