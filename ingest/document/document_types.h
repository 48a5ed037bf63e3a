/// Plain values of the document service, without a wire format: documents that callers submit, and
/// what it reports about them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/format/document.h"
#include "cachestore/format/metadata.h"
#include "cachestore/format/read_behind.h"
#include "cachestore/format/segment.h"
#include "engine/engine.h"
#include "ingest/document/document_tag.h"

namespace quire {

/// ItemError is a failure in the client's terms. `code` is a name such as "empty_document", `param`
/// a path ("documents[1].chunks[1]").
struct ItemError {
  std::string code, message, param;
  friend bool operator==(const ItemError&, const ItemError&) = default;
};

enum class IfExists : std::uint8_t { kUpsert, kSkip, kError };
/// When the KV of a document is computed: by its job, by the first query that uses it, or by each
/// query anew, without being stored.
enum class KvPolicy : std::uint8_t { kEager, kLazy, kTextOnly };
enum class ChunkStrategy : std::uint8_t { kTokens, kMarkdown, kSeparator, kNone };

/// Largest value of ChunkingOptions::related_tokens.
inline constexpr std::int32_t kMaxRelatedTokens = 1 << 16;

struct ChunkingOptions {
  ChunkStrategy strategy = ChunkStrategy::kTokens;
  std::int32_t max_tokens = 512;    ///< per chunk with its header; capped by the model's window
  std::int32_t overlap_tokens = 0;  ///< <= max_tokens / 2; only kTokens repeats text between chunks
  std::string separator;            ///< for kSeparator: 1 to 64 bytes
  /// Chunks are prefilled in windows of this many tokens, each behind those before it in its
  /// window; capped by the model's window. 0: each chunk alone.
  std::int32_t context_tokens = 4096;
  /// The most tokens of related chunks of other documents, of the same namespace and salt, that are
  /// prefilled before each window. 0: none. They are what the words of the document find when its
  /// job begins (FusionRAG, arXiv 2601.12904, fuses documents so at ingest).
  std::int32_t related_tokens = 0;
  /// A short fixed text is prefilled before each window, too, and before its related chunks. KV
  /// that was read behind another text is nearer to that of a document in the middle of a prompt.
  /// None: as IngestOptions::lead_in says, and a stored version of the same document stays as it
  /// was read.
  std::optional<bool> lead_in;
  friend bool operator==(const ChunkingOptions&, const ChunkingOptions&) = default;
};

/// DocumentInput is one document to cache. Exactly one of `text` and `chunks` is set.
struct DocumentInput {
  /// As is_document_id() allows; none: "doc_" + 32 hex of the content hash
  std::optional<std::string> id;
  std::string title;  ///< shown in the header of every chunk
  std::optional<std::string> text;
  /// Each chunk is cached separately; BatchOptions::chunking does not apply.
  std::optional<std::vector<std::string>> chunks;
  std::string metadata_json;  ///< a JSON object as text, at most 16 KiB; empty: {}
  /// Pages and headings of `text`, as DocumentManifest::marks; empty with `chunks`.
  std::vector<TextMark> marks;
};

/// Stands between given chunks in the text of their document.
inline constexpr std::string_view kBetweenChunks = "\n\n";
/// Returns the document's text, moved out of `input`: its text, or its chunks joined.
std::string take_document_text(DocumentInput& input);
/// Returns the length of that text.
std::uint64_t document_text_bytes(const DocumentInput& input);
/// Cuts such a text back into chunks of these lengths; none if it does not have them.
std::optional<std::vector<std::string>> cut_document_text(
    std::string_view text, const std::vector<std::uint32_t>& chunk_bytes);

/// BatchOptions are the settings of one call. Field names in errors are those of the API.
struct BatchOptions {
  IfExists if_exists = IfExists::kUpsert;
  ChunkingOptions chunking;
  std::optional<std::uint64_t> ttl_seconds;  ///< >= 1; none: IngestOptions::default_ttl_seconds
  TtlAnchor ttl_anchor = TtlAnchor::kCreated;
  bool pinned = false;
  KvPolicy kv = KvPolicy::kEager;
  std::string tier;        ///< "", "dram" or "disk"; a hint
  std::string cache_salt;  ///< empty: none; else 8 to 128 characters. Only its digest is kept.
  /// For single documents (PUT): a list of tags as in DocumentCondition, compared at the call and
  /// again when its job begins. A version committed after that fails the commit.
  std::optional<std::string> if_match;
  bool if_none_match_any = false;  ///< the document must not exist yet
  /// True: error paths name the documents' place in the caller's body. False: the body is a single
  /// document ("text" rather than "documents[0].text").
  bool in_batch = true;
};

/// DocumentInfo is the current state of a document. A status below ready means that it is being
/// ingested and no earlier version is ready.
struct DocumentInfo {
  std::string id, ns, title, metadata_json, content_hash;
  std::string tag;  ///< document_tag() of its state
  /// How it is cut (DocumentManifest::chunking); empty: it is not stored yet.
  std::string chunking;
  std::uint64_t version = 0, bytes = 0, tokens = 0, num_chunks = 0;
  DocumentStatus status = DocumentStatus::kQueued;
  std::optional<ItemError> error;
  bool pinned = false;
  std::uint64_t hits = 0;
  std::int64_t created_ms = 0, updated_ms = 0, last_used_ms = 0;  ///< Unix ms; 0: never
  std::optional<std::int64_t> expires_at_ms;
  std::string job_id;  ///< the job working on it, else the last one
  /// 0..1 while a job works on it (also on a new version of a ready document)
  std::optional<double> progress;
  /// What its KV was read behind; none: it is not ready, keeps no KV, or is one of a list.
  std::optional<ReadBehind> read_behind;

  struct Cache {
    /// "resident", "partial", "evicted", "stale" (made by another model), "lazy" (not used yet) or
    /// "text_only"
    std::string state;
    std::string fingerprint, kv_dtype;
    std::uint64_t bytes = 0, blocks = 0;  ///< KV bytes found in the store; blocks the document has
    /// Blocks found in each tier (a block may be in two).
    std::uint64_t gpu = 0, dram = 0, disk = 0, remote = 0;
  } cache;
};

/// DocumentFilter asks for a status and for metadata.
struct DocumentFilter {
  std::optional<DocumentStatus> status;
  MetadataFilter metadata;
  bool empty() const { return !status && metadata.empty(); }
};

struct DocumentListOptions {
  std::string after;       ///< exclusive id
  std::size_t limit = 20;  ///< 1..100
  bool descending = true;
  DocumentFilter filter;
  bool with_cache = true;  ///< fill DocumentInfo::cache
};
struct DocumentListPage {
  std::vector<DocumentInfo> documents;
  bool has_more = false;
};

/// DocumentCounts counts a namespace's documents in each state.
struct DocumentCounts {
  std::uint64_t total = 0, ready = 0, failed = 0, in_progress = 0, tokens = 0, text_bytes = 0;
};

struct ChunkInfo {
  std::int32_t index = 0;
  /// Unicode code points of the document's text, half-open.
  std::uint64_t char_begin = 0, char_end = 0;
  std::uint64_t byte_begin = 0, byte_end = 0;
  std::uint64_t tokens = 0, blocks = 0;
  std::int32_t block_tokens = 0;
  std::string key;          ///< hex of the context key
  Tier tier = Tier::kNone;  ///< best tier of its first block
  TextPlace place;
};

struct BlockInfo {
  std::int32_t index = 0;  ///< index in the document
  std::string block_id;    ///< "b-" + 12 hex
  std::int32_t chunk = 0;
  std::uint64_t token_begin = 0, token_end = 0;  ///< range within the chunk
  /// Code points of the text; none if the model has changed since.
  std::optional<std::uint64_t> char_begin, char_end;
  Tier tier = Tier::kNone;
};

/// DocumentPatch is merged into a document. An unset member leaves the value unchanged.
struct DocumentPatch {
  std::optional<std::string> title;          ///< shown title; cached KV keeps its original title
  std::optional<std::string> metadata_json;  ///< JSON merge patch (RFC 7396): null removes a key
  /// Inner none: removes the TTL, and expires_at unless it is also given.
  std::optional<std::optional<std::uint64_t>> ttl_seconds;
  std::optional<TtlAnchor> ttl_anchor;
  /// Inner none: removes it. A value excludes a value of ttl_seconds.
  std::optional<std::optional<std::int64_t>> expires_at_ms;
  std::optional<bool> pinned;
  DocumentCondition condition;  ///< checked together with the change
  bool empty() const {
    return !title && !metadata_json && !ttl_seconds && !ttl_anchor && !expires_at_ms && !pinned;
  }
};

struct BulkDelete {
  std::vector<std::string> ids;          ///< documents by id
  std::optional<DocumentFilter> filter;  ///< otherwise documents by a filter that is not empty
  bool dry_run = false;
};
struct BulkDeleteResult {
  std::vector<std::string> deleted;  ///< ids deleted, or with dry_run those to be deleted
  std::vector<std::string> not_found;
  std::vector<std::pair<std::string, Status>> failed;
};

/// ResolvedDocument is one document of a query. It stays one consistent version even if the id
/// changes or is deleted.
struct ResolvedDocument {
  std::string id, title, content_hash, metadata_json;
  std::string chunking;  ///< how it is cut (DocumentManifest::chunking)
  std::uint64_t version = 0, tokens = 0;
  /// Cached by another model: tokenised again, without cached KV (miss reason model_changed).
  bool stale = false;
  /// Cached under another salt: no cached KV for this caller (miss reason salt_mismatch).
  bool other_salt = false;
  bool pending = false;  ///< not ready yet, computed inline (ResolveOptions::compute_pending)
  std::vector<QueryContext> contexts;  ///< in chunk order; QueryContext::document_id is `id`
  /// Byte ranges of the text, one per context.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> byte_ranges;
};
struct NotReadyDocument {
  std::string id, job_id;
  DocumentStatus status = DocumentStatus::kQueued;  ///< for kFailed, `error` says why
  double progress = 0;                              ///< 0..1
  std::optional<ItemError> error;
};
struct ResolveOptions {
  std::string cache_salt;  ///< the salt of the query
  /// Also returns contexts for documents that are still being ingested.
  bool compute_pending = false;
  bool touch = true;  ///< counts as a use (false for plan-only calls)
};
/// documents[i] belongs to the i-th id that was found and ready, in the order of the request.
struct Resolved {
  std::vector<ResolvedDocument> documents;
  std::vector<std::string> missing;
  std::vector<NotReadyDocument> not_ready;
  std::string tenant;                          ///< for QueryRequest::tenant
  std::array<std::uint8_t, 32> salt_digest{};  ///< for QueryRequest::salt_digest
};

std::string_view chunk_strategy_name(ChunkStrategy strategy);
std::optional<ChunkStrategy> parse_chunk_strategy(std::string_view name);
std::string_view if_exists_name(IfExists if_exists);
/// Returns "eager", "lazy" or "text_only".
std::string_view kv_policy_name(KvPolicy policy);
std::optional<KvPolicy> parse_kv_policy(std::string_view name);
std::optional<IfExists> parse_if_exists(std::string_view name);

}  // namespace quire
