/// This file declares filters over the metadata of documents, and the terms by which an index finds
/// what passes them. Metadata is a JSON object as text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachestore/format/document.h"

namespace quire {

/// Pairs of a key and the text form of its value.
using MetadataFilter = std::vector<std::pair<std::string, std::string>>;

/// Returns whether every (key, value) equals the text form of that top-level scalar: abc, 2025,
/// 0.5, true, null. Numbers are compared as numbers.
bool metadata_matches(std::string_view json, const MetadataFilter& filter);

/// A term stands for one status or one top-level scalar: half of a SHA-256 over it. Two of them may
/// have one term, so what a term finds is checked.
inline constexpr std::size_t kTermBytes = 16;

/// Returns the different terms of a document, ordered.
std::vector<std::string> document_terms(const DocumentManifest& manifest);
std::string status_term(DocumentStatus status);
/// Returns one or two terms. A document whose metadata match the pair has at least one of them.
std::vector<std::string> filter_terms(std::string_view key, std::string_view value);

}  // namespace quire
