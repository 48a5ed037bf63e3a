#include "ingest/document/document_tag.h"

#include <algorithm>
#include <cstdint>

#include "base/sha256.h"

namespace quire {
namespace {

constexpr std::size_t kDigits = 16;

void add_time(Sha256& hash, std::optional<std::int64_t> value) {
  hash.update_u64(value.has_value() ? 1 : 0);
  hash.update_u64(static_cast<std::uint64_t>(value.value_or(0)));
}

}  // namespace

std::string document_tag(const DocumentManifest& m) {
  Sha256 hash;
  hash.update_field("quire-document-tag").update_field(m.content_hash).update_u64(m.version);
  hash.update_field(m.title).update_field(m.metadata_json.empty() ? "{}" : m.metadata_json);
  hash.update_u64(static_cast<std::uint64_t>(m.status)).update_u64(m.pinned ? 1 : 0);
  add_time(hash, m.ttl_seconds);
  hash.update_u64(static_cast<std::uint64_t>(m.ttl_anchor));
  add_time(hash, m.expires_at_ms);
  hash.update_u64(static_cast<std::uint64_t>(m.created_ms));
  return m.content_hash + "." + hash.finish().hex().substr(0, kDigits);
}

bool tags_match(std::string_view tags, std::string_view tag, std::string_view content_hash) {
  while (!tags.empty()) {
    const auto end = std::min(tags.find(' '), tags.size());
    const std::string_view one = tags.substr(0, end);
    if (one == "*" || (!one.empty() && (one == tag || one == content_hash))) return true;
    tags.remove_prefix(std::min(end + 1, tags.size()));
  }
  return false;
}

Status check_condition(const DocumentCondition& condition, std::string_view tag,
                       std::string_view content_hash) {
  if (condition.if_match && !tags_match(*condition.if_match, tag, content_hash))
    return Status(Code::kFailedPrecondition,
                  "the document has changed: its tag is " + std::string(tag), "If-Match");
  if (condition.if_none_match && tags_match(*condition.if_none_match, tag, content_hash))
    return Status(
        Code::kFailedPrecondition,
        *condition.if_none_match == "*" ? "the document exists" : "the document is the one named",
        "If-None-Match");
  return {};
}

}  // namespace quire
