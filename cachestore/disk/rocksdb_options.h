/// This file declares the store's RocksDB settings; only cachestore/rocksdb_*.cc include it.
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

inline constexpr std::uint64_t kWriteBufferBytes = 1u << 20;
inline constexpr std::uint64_t kMaxWalBytes = 4u << 20;
/// The largest planned rewrite beyond levels 0 and 1
inline constexpr std::uint64_t kCompactionBytes = 16u << 20;

std::uint64_t manifest_limit(const RocksDbTierOptions& options);
::rocksdb::DBOptions db_options(const RocksDbTierOptions& options);
/// Returns options for small records: compressed, cached, checksummed by RocksDB, compacted in
/// small steps.
::rocksdb::ColumnFamilyOptions record_options(const std::shared_ptr<::rocksdb::Cache>& cache);
/// Returns one cache for all records, so that recently read heads, tokens and texts need no disk.
std::shared_ptr<::rocksdb::Cache> record_cache();
/// Returns options for segments: one ingested file each, never compacted, read directly.
::rocksdb::ColumnFamilyOptions segment_options(const std::string& folder);
::rocksdb::Options sst_options(const RocksDbTierOptions& options);

/// Returns "cannot WHAT: reason" with the matching code.
Status to_status(const ::rocksdb::Status& status, std::string_view what);

}  // namespace quire::rocksdb_internal
