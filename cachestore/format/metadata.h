/// This file declares filters over the metadata of documents, and the terms by which an index finds
/// what passes them. Metadata is a JSON object as text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachestore/format/document.h"

namespace quire {

/// MetadataCondition is a condition on one top-level member. Values are text forms of scalars: abc,
/// 2025, 0.5, true, null. Numbers are compared as numbers. An array holds each of its scalars.
struct MetadataCondition {
  MetadataCondition() = default;
  /// The member equals `value`.
  MetadataCondition(std::string name, std::string value)
      : key(std::move(name)), any_of{std::move(value)} {}

  std::string key;
  std::vector<std::string> any_of;   ///< one of them equals; empty: no such condition
  std::vector<std::string> none_of;  ///< none of them equals; holds for a missing member, too
  /// Bounds. A number is compared with the number in the text, and text by its bytes, as dates of
  /// ISO 8601 want it. Anything else lies outside of every bound.
  std::optional<std::string> above, at_least, below, at_most;
  bool number_bounds = false;  ///< the bounds are numbers, so text lies outside of them
  std::optional<bool> exists;  ///< the member is there and not null, or it is not
  friend bool operator==(const MetadataCondition&, const MetadataCondition&) = default;
};
/// All conditions must hold.
using MetadataFilter = std::vector<MetadataCondition>;

/// Returns whether the metadata pass the filter.
bool metadata_matches(std::string_view json, const MetadataFilter& filter);

/// A term stands for one status, or one scalar at the top or in an array there: half of a SHA-256
/// over it. Two of them may have one term, so what a term finds is checked.
inline constexpr std::size_t kTermBytes = 16;

/// Returns the different terms of a document, ordered.
std::vector<std::string> document_terms(const DocumentManifest& manifest);
std::string status_term(DocumentStatus status);
/// Returns terms of which a document that passes has at least one; none: no index finds them.
std::vector<std::string> filter_terms(const MetadataCondition& condition);

}  // namespace quire
