/// Prepares texts of documents for embedding.
#pragma once

#include <string>
#include <string_view>

#include "base/sha256.h"
#include "cachestore/format/document.h"

namespace quire {

/// Returns a chunk's text for embedding: the title its KV was computed with, then its text. `text`
/// is that of the whole document.
std::string embedding_text(const DocumentManifest& manifest, const DocumentChunk& chunk,
                           std::string_view text);

/// Returns a digest of everything a document's vectors depend on: embedder, title, text, chunk
/// borders, and the way from text to vector. With another digest, stored vectors are a clean miss.
/// `embedder` is Embedder::fingerprint().
Digest embedding_source(const Digest& embedder, const DocumentManifest& manifest);

}  // namespace quire
