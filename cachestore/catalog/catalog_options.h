/// This file declares the settings and the statistics of a shared catalog: a database that several
/// replicas have their documents from.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace quire {

struct CatalogOptions {
  std::string url;  ///< of check_catalog_url(); empty: the store's documents are its own
  /// Changes of other replicas are announced; they are also asked for this often.
  std::chrono::milliseconds poll{1000};
  /// Longest time of connecting, and of one exchange apart from the transfer of texts.
  std::chrono::milliseconds timeout{5000};
  /// A replica that has not been heard of for this long loses its jobs to the others.
  std::chrono::milliseconds job_lease{20'000};
  int connections = 4;  ///< 1 .. 64, besides the one that waits for announcements
};

/// State and counts since start.
struct CatalogStats {
  bool shared = false;  ///< false: there is no shared catalog, and nothing else counts
  /// The catalog answers and the store follows it. If false, documents are as they were then, and
  /// cannot be changed.
  bool up = true;
  std::string reason;              ///< why it is not up; never with a password
  std::int64_t away_since_ms = 0;  ///< Unix milliseconds; 0: it is up
  std::uint64_t behind = 0;        ///< changes that are known and not applied yet
  std::uint64_t not_here = 0;      ///< documents for whose state the disk has no room, now
  std::uint64_t applied = 0;       ///< changes of other replicas that were applied
  std::uint64_t written = 0;       ///< changes that this replica made
  std::uint64_t conflicts = 0;     ///< changes made anew since another replica was first
  std::uint64_t failures = 0;      ///< calls without a usable answer
  std::uint64_t whole_reads = 0;   ///< times that the whole catalog was compared
};

}  // namespace quire
