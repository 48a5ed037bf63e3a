/// Tags of documents, by which a caller changes only what it has seen.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/document.h"

namespace quire {

/// Returns the tag of a document's state: its content hash, "." and 16 hex digits. It changes with
/// all that callers set (text, chunks, title, metadata, pin, end of life) and with each new
/// version, not with use or with where its KV lies.
std::string document_tag(const DocumentManifest& manifest);

/// What a document must be, or must not be, for a change to happen. Each member is a list of tags
/// with a space between, or "*" for any document. A content hash stands for every tag of that
/// content.
struct DocumentCondition {
  std::optional<std::string> if_match, if_none_match;
};

/// Returns whether the list has the document.
bool tags_match(std::string_view tags, std::string_view tag, std::string_view content_hash);
/// Checks a document that exists. Errors: kFailedPrecondition with field "If-Match" or
/// "If-None-Match".
Status check_condition(const DocumentCondition& condition, std::string_view tag,
                       std::string_view content_hash);

}  // namespace quire
