#include "ingest/index/chunk_hit.h"

#include <cstring>

#include "cachestore/format/key.h"

namespace quire {

std::uint64_t indexed_version(const DocumentManifest& m) {
  Sha256 hash;
  hash.update_u64(m.version)
      .update_field(m.content_hash)
      .update_field(m.title)
      .update_field(m.metadata_json)
      .update_field(m.chunking);
  const Digest digest = hash.finish();
  std::uint64_t out = 0;
  std::memcpy(&out, digest.bytes.data(), sizeof out);
  return out | 1;
}

}  // namespace quire
