/// What searches find: chunks of documents, bound to the version that was indexed.
#pragma once

#include <cstdint>
#include <string>

#include "cachestore/document.h"

namespace quire {

struct ChunkHit {
  std::string id;
  std::uint64_t version = 0;  ///< indexed_version() of the document that was indexed
  std::int32_t chunk = 0;
  double score = 0;
};

/// Equal for equal documents as far as retrieval shows them; a manifest's own version begins anew
/// when a document was deleted. Never 0.
std::uint64_t indexed_version(const DocumentManifest& manifest);

}  // namespace quire
