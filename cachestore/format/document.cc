#include "cachestore/format/document.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 7> kStatusNames = {
    "queued", "tokenizing", "prefilling", "storing", "ready", "failed", "deleting"};

Status check_name(std::string_view field, std::string_view value, std::size_t limit) {
  if (value.empty()) return Status::invalid(std::string(field), "must not be empty");
  if (value.size() > limit) {
    return Status::invalid(std::string(field), "is " + std::to_string(value.size()) +
                                                   " bytes long; at most " + std::to_string(limit) +
                                                   " are allowed");
  }
  if (value.find('\0') != std::string_view::npos)
    return Status::invalid(std::string(field), "must not contain NUL bytes");
  return {};
}

Status check_size(std::string_view field, std::size_t size, std::size_t limit) {
  if (size <= limit) return {};
  return Status::invalid(std::string(field), "is " + std::to_string(size) + " long; at most " +
                                                 std::to_string(limit) + " is allowed");
}

}  // namespace

std::string_view document_status_name(DocumentStatus status) {
  const auto i = at(status);
  return i < kStatusNames.size() ? kStatusNames[i] : "unknown";
}

std::optional<DocumentStatus> parse_document_status(std::string_view name) {
  const auto it = std::find(kStatusNames.begin(), kStatusNames.end(), name);
  if (it == kStatusNames.end()) return std::nullopt;
  return static_cast<DocumentStatus>(it - kStatusNames.begin());
}

std::optional<std::int64_t> DocumentManifest::effective_expiry_ms() const {
  if (expires_at_ms) return expires_at_ms;
  if (!ttl_seconds) return std::nullopt;
  const std::int64_t made = std::max(created_ms, ttl_start_ms);
  const std::int64_t anchor = ttl_anchor == TtlAnchor::kLastUsed ? std::max(made, last_used_ms)
                                                                 : made;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  if (*ttl_seconds > static_cast<std::uint64_t>((kMax - std::max<std::int64_t>(anchor, 0)) / 1000))
    return kMax;
  return anchor + static_cast<std::int64_t>(*ttl_seconds) * 1000;
}

std::vector<ContextKey> segment_keys(const DocumentManifest& m) {
  std::vector<ContextKey> keys;
  keys.reserve(m.chunks.size() + m.companions.size());
  for (const auto& c : m.chunks) {
    if (!c.key.is_zero()) keys.push_back(c.key);
  }
  for (const auto& key : m.companions) {
    if (!key.is_zero()) keys.push_back(key);
  }
  return keys;
}

std::vector<std::int32_t> left_context(const DocumentManifest& m, std::size_t index) {
  std::vector<std::int32_t> ids = related_tokens(m.related);
  for (std::size_t i = index - m.chunks[index].left_chunks; i < index; ++i)
    ids.insert(ids.end(), m.chunks[i].token_ids.begin(), m.chunks[i].token_ids.end());
  return ids;
}

std::vector<std::int32_t> related_tokens(std::span<const RelatedChunk> related) {
  std::vector<std::int32_t> ids;
  for (const RelatedChunk& r : related)
    ids.insert(ids.end(), r.token_ids.begin(), r.token_ids.end());
  return ids;
}

Status check_marks(std::span<const TextMark> marks, std::uint64_t text_bytes) {
  QUIRE_RETURN_IF_ERROR(check_size("marks", marks.size(), kMaxMarks));
  std::uint64_t least = 0, bytes = 0;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const std::string field = "marks[" + std::to_string(i) + "]";
    QUIRE_RETURN_IF_ERROR(
        check_size(field + ".heading", marks[i].heading.size(), kMaxHeadingBytes));
    if (marks[i].offset < least)
      return Status::invalid(field + ".start", "lies before the mark in front of it");
    if (marks[i].offset > text_bytes)
      return Status::invalid(field + ".start", "lies behind the end of the text");
    least = marks[i].offset;
    bytes += marks[i].heading.size();
  }
  return check_size("marks", bytes, kMaxMarkBytes);
}

Status validate_manifest(const DocumentManifest& m) {
  QUIRE_RETURN_IF_ERROR(check_name("namespace", m.ns, kMaxNamespaceBytes));
  QUIRE_RETURN_IF_ERROR(check_name("id", m.id, kMaxIdBytes));
  QUIRE_RETURN_IF_ERROR(check_size("title", m.title.size(), kMaxTitleBytes));
  QUIRE_RETURN_IF_ERROR(check_size("metadata", m.metadata_json.size(), kMaxMetadataBytes));
  QUIRE_RETURN_IF_ERROR(check_size("content_hash", m.content_hash.size(), kMaxIdBytes));
  QUIRE_RETURN_IF_ERROR(check_size("chunking", m.chunking.size(), kMaxTitleBytes));
  QUIRE_RETURN_IF_ERROR(check_size("fingerprint", m.fingerprint.size(), kMaxTitleBytes));
  QUIRE_RETURN_IF_ERROR(check_size("job_id", m.job_id.size(), kMaxTitleBytes));
  QUIRE_RETURN_IF_ERROR(check_size("error.code", m.error_code.size(), kMaxTitleBytes));
  QUIRE_RETURN_IF_ERROR(check_size("error.message", m.error_message.size(), kMaxTitleBytes));
  QUIRE_RETURN_IF_ERROR(check_size("text", m.text_bytes, kMaxTextBytes));
  QUIRE_RETURN_IF_ERROR(check_size("chunks", m.chunks.size(), kMaxChunks));
  QUIRE_RETURN_IF_ERROR(check_size("companions", m.companions.size(), kMaxCompanions));
  QUIRE_RETURN_IF_ERROR(check_marks(m.marks, m.text_bytes));
  if (m.status > DocumentStatus::kDeleting) return Status::invalid("status", "unknown status");
  QUIRE_RETURN_IF_ERROR(check_size("related", m.related.size(), kMaxRelated));
  std::uint64_t tokens = 0;
  for (const RelatedChunk& r : m.related) {
    if (!r.document_id.empty() || !r.content_hash.empty())
      QUIRE_RETURN_IF_ERROR(check_name("related.document_id", r.document_id, kMaxIdBytes));
    QUIRE_RETURN_IF_ERROR(check_size("related.content_hash", r.content_hash.size(), kMaxIdBytes));
    tokens += r.token_ids.size();
  }
  for (std::size_t i = 0; i < m.chunks.size(); ++i) {
    const auto& c = m.chunks[i];
    const std::string field = "chunks[" + std::to_string(i) + "]";
    if (c.byte_begin > c.byte_end || c.byte_end > m.text_bytes) {
      return Status::invalid(field, "covers bytes " + std::to_string(c.byte_begin) + " to " +
                                        std::to_string(c.byte_end) + " of a text of " +
                                        std::to_string(m.text_bytes));
    }
    if (c.left_chunks > i)
      return Status::invalid(field + ".left_chunks", "must be at most " + std::to_string(i));
    if (c.block_tokens > 4096)
      return Status::invalid(field + ".block_tokens", "must be at most 4096");
    tokens += std::max<std::uint64_t>(c.num_tokens, c.token_ids.size());
  }
  return check_size("tokens", tokens, kMaxDocumentTokens);
}

}  // namespace quire
