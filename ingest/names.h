/// Checks names and inputs of callers, and computes digests of content and salts. Paths in errors
/// are relative ("id", "chunks[1]").
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "ingest/document/document_types.h"
#include "ingest/ingest_service.h"

namespace quire {

Status check_namespace(std::string_view ns);
/// Checks the form of an id (ingest/document/document_id.h).
Status check_document_id(std::string_view id);
Status check_batch_options(const BatchOptions& options);
Status check_salt(std::string_view cache_salt);

/// Checks one document and returns its error, if any: exactly one of text and chunks, valid UTF-8,
/// not blank, sizes, metadata. It normalises input.metadata_json. `path` precedes every param
/// ("documents[3]" or empty).
std::optional<ItemError> check_document(DocumentInput& input, const IngestOptions& options,
                                        const std::string& path);

/// Returns "sha256:<64 hex>" of title and text (or title and chunks with their borders), without id
/// and metadata.
std::string content_hash(const DocumentInput& input);
/// Returns "doc_" + the first 32 hex digits of the hash.
std::string id_from_hash(std::string_view hash);
/// Returns the digest of a salt; all zero for an empty one.
Digest salt_digest_of(std::string_view cache_salt);
std::array<std::uint8_t, 32> to_bytes(const Digest& digest);

/// Returns "job_" + 26 characters (Crockford base 32): 48 bits of time, 80 random; always greater
/// than `last`.
std::string make_job_id(std::int64_t now_ms, std::string_view last);

/// Returns a failure of the store or the engine in the client's terms. It hides the inner text of
/// kInternal.
ItemError to_item_error(const Status& status, const std::string& param);
std::string join_path(const std::string& path, std::string_view field);

}  // namespace quire
