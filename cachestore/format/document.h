/// This file declares what the store knows about one document. Text and token ids are the record;
/// KV is only cache.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/text_mark.h"
#include "cachestore/format/key.h"

namespace quire {

enum class DocumentStatus : std::uint8_t {
  kQueued = 0,
  kTokenizing,
  kPrefilling,
  kStoring,
  kReady,
  kFailed,
  kDeleting,
};
/// Returns "queued", "tokenizing", ... as the API spells them.
std::string_view document_status_name(DocumentStatus status);
std::optional<DocumentStatus> parse_document_status(std::string_view name);

enum class TtlAnchor : std::uint8_t { kCreated = 0, kLastUsed };

/// One context of a document: a byte range of the text, its token ids, and the name of its KV.
struct DocumentChunk {
  /// half-open range of the document's text (UTF-8 bytes)
  std::uint64_t byte_begin = 0, byte_end = 0;
  /// set by the store from token_ids at every commit
  std::uint32_t num_tokens = 0;
  std::uint32_t block_tokens = 0;       ///< tokens of one KV block: 16, 32 or 64
  ContextKey key;                       ///< all zero: no KV was computed yet
  std::vector<std::int32_t> token_ids;  ///< empty in heads and lists, complete in get_document
  /// Number of chunks right before this one that its KV attends to, its left context; at most its
  /// index.
  std::uint32_t left_chunks = 0;

  friend bool operator==(const DocumentChunk&, const DocumentChunk&) = default;
};

/// A text that the KV of a document attends to: a chunk of another document, or a fixed one.
struct RelatedChunk {
  std::string document_id;   ///< in the same namespace; empty: a fixed text of no document
  std::string content_hash;  ///< of that document when its text was read; of a fixed text empty
  std::uint32_t chunk = 0;   ///< its index there
  std::vector<std::int32_t> token_ids;

  friend bool operator==(const RelatedChunk&, const RelatedChunk&) = default;
};

/// The only source of truth about a document. The text is stored separately (Store::get_text).
struct DocumentManifest {
  std::string ns;  ///< namespace (tenant), 1 to 128 bytes without NUL
  std::string id;  ///< unique in the namespace, 1 to 128 bytes without NUL
  /// set by the store: 1 when new, incremented with each change of text, chunks or settings
  std::uint64_t version = 0;
  std::string title;
  std::string metadata_json;  ///< a JSON object as text; empty means {}
  std::string content_hash;   ///< "sha256:<hex>", computed by ingest
  std::uint64_t text_bytes = 0;
  std::uint64_t num_tokens = 0;  ///< sum over the chunks, set by the store
  DocumentStatus status = DocumentStatus::kQueued;
  std::string error_code, error_message;  ///< set with kFailed
  bool pinned = false;                    ///< the byte budgets do not evict its KV
  std::optional<std::uint64_t> ttl_seconds;
  TtlAnchor ttl_anchor = TtlAnchor::kCreated;
  std::optional<std::int64_t> expires_at_ms;    ///< an explicit end; overrides ttl_seconds
  std::int64_t created_ms = 0, updated_ms = 0;  ///< Unix milliseconds, set by the store
  /// The last commit of a text, set by the store, or the last time that a TTL was set. A TTL of
  /// anchor kCreated starts here: KV that is made anew moves no end.
  std::int64_t ttl_start_ms = 0;
  std::int64_t last_used_ms = 0;  ///< 0: never used by a query
  std::uint64_t hits = 0;         ///< queries that used it
  /// ingest settings as text: equal text and settings need no recomputation
  std::string chunking;
  std::string fingerprint;  ///< model fingerprint of the KV named in the chunks
  Digest salt_digest;       ///< digest of cache_salt, never the salt; all zero without one
  std::string job_id;       ///< the job that created or is creating it
  /// The name under which the text waited for its commit and still lies; set by the store. Empty:
  /// the text lies under the document's own name.
  std::string text_name;
  std::vector<DocumentChunk> chunks;
  /// Pages and headings of the text, by ascending offset; empty in heads and lists, as token ids
  /// are.
  std::vector<TextMark> marks;
  /// What the KV of every chunk attends to before the chunk's left chunks, in this order; empty in
  /// heads and lists.
  std::vector<RelatedChunk> related;
  /// Further segments that are kept with the document but not needed by it: KV of its chunks under
  /// another model
  std::vector<ContextKey> companions;

  /// Returns when the document expires, by expires_at_ms or the TTL and its anchor (ttl_start_ms
  /// or the last use after it); empty: never.
  std::optional<std::int64_t> effective_expiry_ms() const;
  friend bool operator==(const DocumentManifest&, const DocumentManifest&) = default;
};

/// Largest accepted sizes. Errors name the field.
inline constexpr std::size_t kMaxNamespaceBytes = 128;
inline constexpr std::size_t kMaxIdBytes = 200;
inline constexpr std::size_t kMaxTitleBytes = 64 << 10;
inline constexpr std::size_t kMaxMetadataBytes = 1 << 20;
inline constexpr std::size_t kMaxTextBytes = 64u << 20;
inline constexpr std::size_t kMaxDocumentTokens = 64u << 20;
inline constexpr std::size_t kMaxChunks = 1u << 20;
inline constexpr std::size_t kMaxCompanions = 1u << 20;
inline constexpr std::size_t kMaxMarks = 1u << 17;
inline constexpr std::size_t kMaxRelated = 64;
inline constexpr std::size_t kMaxHeadingBytes = 4096;
inline constexpr std::size_t kMaxMarkBytes = 16u << 20;  ///< of all headings, repeated ones too

/// Returns the keys of all segments that the document names, without zero keys.
std::vector<ContextKey> segment_keys(const DocumentManifest& manifest);

/// Returns the tokens that chunk `index` attends to: those of the related chunks, then those of its
/// left chunks; token ids must be there.
std::vector<std::int32_t> left_context(const DocumentManifest& manifest, std::size_t index);
/// Returns the tokens of related chunks, in order.
std::vector<std::int32_t> related_tokens(std::span<const RelatedChunk> related);

/// Checks number, order, range and lengths of marks. Errors: kInvalidArgument with the field
/// ("marks[3].start").
Status check_marks(std::span<const TextMark> marks, std::uint64_t text_bytes);

/// Checks names, lengths, ranges and order of chunks and marks. Errors: kInvalidArgument with the
/// field.
Status validate_manifest(const DocumentManifest& manifest);

}  // namespace quire
