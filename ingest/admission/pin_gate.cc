#include "ingest/admission/pin_gate.h"

#include <unordered_set>

namespace quire {

PinBytes pin_bytes(Store& store, std::span<const DocumentManifest> documents,
                   std::uint64_t bytes_per_token) {
  PinBytes bytes;
  std::unordered_set<ContextKey, DigestHash> seen;
  for (const DocumentManifest& document : documents) {
    for (const DocumentChunk& chunk : document.chunks) {
      if (chunk.key.is_zero() || !seen.insert(chunk.key).second) continue;
      const auto segment = store.peek_segment(chunk.key);
      if (!segment) {
        bytes.disk += chunk.num_tokens * bytes_per_token;
        continue;
      }
      bytes.disk += (*segment)->disk_bytes;
      bytes.dram += (*segment)->value_bytes + (*segment)->sketch_bytes;
    }
    // Companions are kept with the document as well, but nothing loads them into memory.
    for (const ContextKey& key : document.companions) {
      if (!seen.insert(key).second) continue;
      if (const auto segment = store.peek_segment(key)) bytes.disk += (*segment)->disk_bytes;
    }
  }
  return bytes;
}

}  // namespace quire
