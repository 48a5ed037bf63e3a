/// This file declares the store's RocksDB settings; only cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/disk/rocksdb_disk_tier.h"

namespace quire::rocksdb_internal {

/// Sizes that grow with the store's budget: a small budget cannot hold large files twice while they
/// are rewritten, and a large store must not consist of thousands of small ones.
struct RecordSizes {
  explicit RecordSizes(std::uint64_t max_bytes);
  std::uint64_t write_buffer, wal, file;
  std::uint64_t rewrite;  ///< the largest planned rewrite beyond levels 0 and 1
};

/// Returns the bytes that sizes of files follow from: the budget, else the size of the disk; 0: no
/// bound is known.
std::uint64_t sizing_bytes(const RocksDbTierOptions& options);

std::uint64_t manifest_limit(const RocksDbTierOptions& options);
::rocksdb::DBOptions db_options(const RocksDbTierOptions& options);
/// Returns options for small records: compressed, cached, checksummed by RocksDB, compacted in
/// small steps.
::rocksdb::ColumnFamilyOptions record_options(const RocksDbTierOptions& options,
                                              const std::shared_ptr<::rocksdb::Cache>& cache);
/// Returns one cache for all records, so that recently read heads, tokens and texts need no disk.
std::shared_ptr<::rocksdb::Cache> record_cache();

/// Returns "cannot WHAT: reason" with the matching code.
Status to_status(const ::rocksdb::Status& status, std::string_view what);

/// The same for opening a database: files that are missing, or are no files, are damage.
Status open_status(const ::rocksdb::Status& status, std::string_view what);

}  // namespace quire::rocksdb_internal
