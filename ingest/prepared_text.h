/// A document's text, with the borders of given chunks and the title it was cut with, so that it
/// can be cut identically again.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/format/document.h"
#include "engine/engine.h"
#include "ingest/document/chunker.h"
#include "ingest/document/job_record.h"
#include "ingest/ingest_service.h"

namespace quire {

/// Holds one string. Given chunks are joined by a blank line, and `given` holds their ranges (empty
/// for a text).
struct PreparedText {
  std::string text;
  std::vector<TextRange> given;
};
PreparedText prepare_text(DocumentInput input);

/// Returns DocumentManifest::chunking: the settings, a digest of the marks and the policy of KV in
/// one line, then the title in the chunks' headers. (A later change of the shown title leaves
/// cached KV unchanged.)
std::string settings_text(const ChunkingOptions& options, bool given_chunks, std::string_view title,
                          std::span<const TextMark> marks, KvPolicy kv);
std::string_view header_title(const DocumentManifest& manifest);
/// Returns the policy that the document was committed with.
KvPolicy kv_policy(const DocumentManifest& manifest);
/// Returns whether KV of other documents may see the document: no KV of a text_only one may be
/// kept, nor KV that has seen it.
bool may_be_seen(const DocumentManifest& manifest);
/// Returns the size and the overlap of the chunks of a document that was cut by tokens; none: it
/// was cut otherwise.
std::optional<ChunkingOptions> token_chunking(const DocumentManifest& manifest);
/// Sets what the document's KV sees of other texts, and leaves the other options.
void set_what_is_seen(const DocumentManifest& manifest, ChunkingOptions& options);

/// Returns the key under which the engine finds the KV of a chunk of a whole manifest.
ContextKey key_of(const Engine& engine, const IngestOptions& options,
                  const DocumentManifest& manifest, std::size_t chunk);
/// Returns whether the chunks of a whole manifest have these keys. Where the first one has not,
/// none has: equal models may still name KV differently (ContextNames), and so does another tenant.
bool has_keys_of(const Engine& engine, const IngestOptions& options,
                 const DocumentManifest& manifest);

/// Returns whether chunks that were made of one version are those of the other.
bool has_same_chunks(const DocumentManifest& a, const DocumentManifest& b);
/// Returns whether nothing was committed between the two reads of a document.
bool is_unchanged(const DocumentManifest& before, const DocumentManifest& after);

ChunkLimits chunk_limits(const Engine& engine, const IngestOptions& options);
/// Counts the blocks of all chunks.
std::uint64_t count_blocks(const DocumentManifest& manifest);
/// Tokenises the chunks of a stored document again at the same borders, for a model other than the
/// one that made them.
Result<std::vector<Chunk>> retokenise(const Engine& engine, const DocumentManifest& manifest,
                                      std::string_view text, const ChunkLimits& limits);
/// Returns the chunks of an input of namespace `ns` that is not stored yet.
Result<std::vector<Chunk>> cut(const Engine& engine, std::string_view ns, std::string_view title,
                               const PreparedText& prepared, const ChunkingOptions& options,
                               const ChunkLimits& limits);

}  // namespace quire
