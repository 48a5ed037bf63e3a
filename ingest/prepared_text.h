/// A document's text with what is needed to cut it the same way again: the borders of given chunks,
/// the title it was cut with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cachestore/document.h"
#include "engine/engine.h"
#include "ingest/chunker.h"
#include "ingest/ingest_service.h"
#include "ingest/job_record.h"

namespace quire {

/// One string; given chunks are joined by a blank line, and `given` says where each stands (empty
/// for a text).
struct PreparedText {
  std::string text;
  std::vector<TextRange> given;
};
PreparedText prepare_text(DocumentInput input);

/// DocumentManifest::chunking: the settings in one line, then the title the chunks' headers carry.
/// (A later change of the shown title leaves cached KV alone.)
std::string settings_text(const ChunkingOptions& options, bool given_chunks,
                          std::string_view title);
std::string_view header_title(const DocumentManifest& manifest);

ChunkLimits chunk_limits(const Engine& engine, const IngestOptions& options);
/// Blocks of all chunks.
std::uint64_t count_blocks(const DocumentManifest& manifest);
/// The chunks of a stored document, tokenised anew at the same borders (for a model other than the
/// one that made them).
Result<std::vector<Chunk>> retokenise(const Engine& engine, const DocumentManifest& manifest,
                                      std::string_view text, const ChunkLimits& limits);
/// Chunks of an input that is not stored yet.
Result<std::vector<Chunk>> cut(const Engine& engine, std::string_view title,
                               const PreparedText& prepared, const ChunkingOptions& options,
                               const ChunkLimits& limits);

}  // namespace quire
