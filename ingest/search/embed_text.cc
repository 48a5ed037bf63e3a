#include "ingest/search/embed_text.h"

#include <span>

#include "ingest/prepared_text.h"

namespace quire {
namespace {

/// Must increase with every change in how text becomes a vector.
constexpr std::uint64_t kRecipe = 1;

}  // namespace

std::string embedding_text(const DocumentManifest& m, const DocumentChunk& c,
                           std::string_view text) {
  std::string out(header_title(m));
  if (!out.empty()) out += '\n';
  if (c.byte_begin <= c.byte_end && c.byte_end <= text.size())
    out += text.substr(c.byte_begin, c.byte_end - c.byte_begin);
  return out;
}

Digest embedding_source(const Digest& embedder, const DocumentManifest& m) {
  Sha256 hash;
  hash.update_field("quire-embeddings").update_u64(kRecipe).update(std::span(embedder.bytes));
  hash.update_field(header_title(m)).update_field(m.content_hash).update_u64(m.chunks.size());
  for (const DocumentChunk& c : m.chunks) hash.update_u64(c.byte_begin).update_u64(c.byte_end);
  return hash.finish();
}

}  // namespace quire
