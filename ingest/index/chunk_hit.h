/// Results of searches: chunks of documents, bound to the version that was indexed.
#pragma once

#include <cstdint>
#include <string>

#include "cachestore/format/document.h"

namespace quire {

struct ChunkHit {
  std::string id;
  std::uint64_t version = 0;  ///< indexed_version() of the indexed document
  std::int32_t chunk = 0;
  double score = 0;
};

/// Returns a number, never 0, that is equal for documents that retrieval shows equally. The
/// manifest's own version would not do: it starts again after a document was deleted.
std::uint64_t indexed_version(const DocumentManifest& manifest);

}  // namespace quire
