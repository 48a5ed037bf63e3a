/// This file declares statistics of a store for metrics, `store stats` and reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cachestore/catalog/catalog_options.h"
#include "cachestore/format/lost_writes.h"
#include "cachestore/format/record_copy.h"
#include "cachestore/remote/remote_options.h"

namespace quire {

struct TierStats {
  std::uint64_t capacity_bytes = 0;  ///< 0: no limit
  std::uint64_t used_bytes = 0;
  std::uint64_t num_values = 0;        ///< values (DRAM) or segments (disk) held
  std::uint64_t hits = 0, misses = 0;  ///< values requested
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t evictions = 0, evicted_bytes = 0;  ///< by the byte budget
};

struct StoreStats {
  TierStats dram, disk;
  /// bytes returned outside the DRAM budget since start, because pins left no room
  std::uint64_t dram_unpooled_bytes = 0;
  bool dram_moves = false;  ///< there is StoreOptions::value_memory
  /// KV values of the DRAM tier in that memory, now, with their allocated bytes; and those since
  /// start that it had no room for
  std::uint64_t dram_moved_values = 0, dram_moved_bytes = 0, dram_unmoved_values = 0;
  std::uint64_t documents = 0, segments = 0;
  std::uint64_t segment_bytes = 0;                     ///< KV and sketch files on disk
  std::uint64_t catalog_bytes = 0;                     ///< everything else in the folder
  std::uint64_t reserved_bytes = 0;                    ///< reserved for writers
  std::uint64_t pending_delete_bytes = 0;              ///< files deleted but still held by readers
  std::uint64_t segment_hits = 0, segment_misses = 0;  ///< find_segment
  std::uint64_t segments_evicted_budget = 0, segments_freed_delete = 0, segments_quarantined = 0;
  std::uint64_t documents_expired = 0;
  std::uint64_t integrity_failures = 0, io_errors = 0;
  RemoteStats remote;
  CatalogStats catalog;
  LostWrites lost;  ///< as Store::lost_writes()
  RecordCopyState record_copy;
  std::string salvaged;  ///< one line of what the last open salvaged; empty: nothing had to be
};

struct NamespaceStats {
  std::string name;
  std::uint64_t documents = 0, tokens = 0, text_bytes = 0;
  std::uint64_t ready = 0, failed = 0;  ///< documents of that status
};

struct VerifyReport {
  std::uint64_t documents = 0, segments = 0, values = 0, bytes = 0;  ///< checked so far
  std::uint64_t total_segments = 0;
  std::uint64_t bad_documents = 0, bad_segments = 0;
  std::vector<std::string> problems;  ///< one line each, at most 100
  bool complete = false;
};

struct GcReport {
  std::uint64_t segments_freed = 0, files_freed = 0, documents_expired = 0, bytes_freed = 0;
};

}  // namespace quire
