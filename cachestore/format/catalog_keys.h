/// Keys of the catalog's records. The list of them is in README.md.
#pragma once

#include <string>
#include <string_view>

#include "cachestore/format/document.h"
#include "cachestore/format/segment.h"

namespace quire {

inline constexpr char kHeadKind = 'd', kTokensKind = 'k', kTextKind = 't', kSegmentKind = 's',
                      kNamedTextKind = 'x', kWaitingKind = 'w';
/// Which state of a document of a shared catalog is here.
inline constexpr char kRevisionKind = 'r';
/// Index of documents by term; and the record that says that it is complete.
inline constexpr char kTermKind = 'i', kIndexKind = 'v';
/// What the record of the index holds. Since 2 scalars in arrays have terms.
inline constexpr std::string_view kIndexVersion = "2";

/// Small records (family meta): which shared catalog the documents here are copies of, and up to
/// where its changes are applied. Without the second, everything is compared.
inline constexpr std::string_view kCatalogIdentityRecord = "catalog/identity";
inline constexpr std::string_view kCatalogPositionRecord = "catalog/position";
/// Small record (family meta): as which replica the process that had this store last shared jobs.
inline constexpr std::string_view kReplicaRecord = "catalog/replica";

/// Small records (family meta) with this beginning: segments that are to be deleted in the shared
/// tiers, by number, until that is done.
inline constexpr std::string_view kRemovalPrefix = "remote/removal/";
/// Small records (family meta) with this beginning: contexts that documents name, whose KV was
/// evicted here and may still lie in the shared tiers, by key.
inline constexpr std::string_view kEvictedPrefix = "remote/evicted/";

std::string catalog_key(char kind, std::string_view ns, std::string_view id);
std::string segment_record_key(SegmentId id);
/// Returns the beginning of the keys of a term's documents, whose ids follow.
std::string term_key(std::string_view ns, std::string_view term);
/// Returns the key of the document's text.
std::string text_key(const DocumentManifest& manifest);
/// Returns the key of a text by name, or with kWaitingKind that of the record that it waits.
std::string named_key(char kind, std::string_view name);

}  // namespace quire
