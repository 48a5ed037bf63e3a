#include "cachestore/disk/rocksdb_options.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "base/index.h"
#include "base/log.h"

namespace quire::rocksdb_internal {
namespace {

/// Logs only RocksDB's errors, to this program's log. RocksDB's own log would grow outside the byte
/// budget.
class ErrorLogger final : public ::rocksdb::Logger {
 public:
  ErrorLogger() : Logger(::rocksdb::InfoLogLevel::ERROR_LEVEL) {}
  using Logger::Logv;
  void Logv(const char* format, va_list ap) override {
    char line[512];
    std::vsnprintf(line, sizeof line, format, ap);
    for (char* c = line; *c; ++c) {
      if (*c == '\n' || *c == '"') *c = ' ';
    }
    log_warning("disk engine", {{"text", std::string(line)}});
  }
};

/// Returns how many files may stay open: half of the process limit; the rest is for connections.
int open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 8192;
  return static_cast<int>(std::clamp<rlim_t>(limit.rlim_cur / 2, 64, 8192));
}

}  // namespace

RecordSizes::RecordSizes(std::uint64_t max_bytes) {
  const std::uint64_t share = max_bytes == 0 ? UINT64_MAX : max_bytes >> 10;
  write_buffer = std::clamp<std::uint64_t>(share, 1u << 20, 16u << 20);
  wal = 4 * write_buffer;
  file = std::clamp<std::uint64_t>(share, 2u << 20, 32u << 20);
  rewrite = 8 * file;
}

std::uint64_t sizing_bytes(const RocksDbTierOptions& options) {
  return options.max_bytes > 0 ? options.max_bytes : options.disk_bytes;
}

std::uint64_t manifest_limit(const RocksDbTierOptions& options) {
  if (options.max_bytes == 0) return 32u << 20;
  return std::clamp<std::uint64_t>(options.max_bytes / 32, 3u << 20, 32u << 20);
}

::rocksdb::DBOptions db_options(const RocksDbTierOptions& options) {
  const RecordSizes sizes(sizing_bytes(options));
  ::rocksdb::DBOptions o;
  o.create_if_missing = true;
  o.create_missing_column_families = true;
  // A torn last record of the log is an unacknowledged write; any other damage must be reported.
  o.wal_recovery_mode = ::rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  o.track_and_verify_wals_in_manifest = true;
  o.max_total_wal_size = sizes.wal;
  o.db_write_buffer_size = to_size(3 * sizes.write_buffer);
  o.max_manifest_file_size = manifest_limit(options);
  o.manifest_preallocation_size = 4096;
  o.allow_fallocate = false;  // preallocated blocks would count against the byte budget
  o.use_direct_reads = options.direct_io;
  o.max_open_files = open_files();
  o.max_background_jobs = 2;
  o.skip_stats_update_on_db_open = true;
  o.stats_dump_period_sec = 0;
  o.stats_persist_period_sec = 0;
  o.write_dbid_to_manifest = true;
  o.info_log = std::make_shared<ErrorLogger>();
  return o;
}

std::shared_ptr<::rocksdb::Cache> record_cache() { return ::rocksdb::NewLRUCache(32u << 20); }

::rocksdb::ColumnFamilyOptions record_options(const RocksDbTierOptions& options,
                                              const std::shared_ptr<::rocksdb::Cache>& cache) {
  const RecordSizes sizes(sizing_bytes(options));
  ::rocksdb::ColumnFamilyOptions o;
  o.write_buffer_size = to_size(sizes.write_buffer);
  o.max_write_buffer_number = 2;
  o.level0_file_num_compaction_trigger = 4;
  o.level0_slowdown_writes_trigger = 8;
  o.level0_stop_writes_trigger = 12;
  o.target_file_size_base = sizes.file;
  o.max_bytes_for_level_base = 4 * sizes.file;
  o.max_compaction_bytes = sizes.rewrite;
  o.compression = ::rocksdb::kLZ4Compression;
  ::rocksdb::BlockBasedTableOptions t;
  t.block_cache = cache;
  t.filter_policy.reset(::rocksdb::NewBloomFilterPolicy(10));
  t.cache_index_and_filter_blocks = true;
  // A lookup reads a part of an index, not the whole: 4 KiB in place of hundreds.
  t.index_type = ::rocksdb::BlockBasedTableOptions::kTwoLevelIndexSearch;
  t.partition_filters = true;
  t.metadata_block_size = 4096;
  t.pin_top_level_index_and_filter = true;
  t.max_auto_readahead_size = 2u << 20;  // a start reads all heads
  t.format_version = 5;
  o.table_factory.reset(::rocksdb::NewBlockBasedTableFactory(t));
  return o;
}

Status open_status(const ::rocksdb::Status& s, std::string_view what) {
  const Status status = to_status(s, what);
  const std::string text = s.ToString();
  const auto says = [&](const char* words) { return text.find(words) != std::string::npos; };
  const bool damaged = s.IsPathNotFound() || s.IsNotFound() || s.IsInvalidArgument() ||
                       says("No such file") || says("s a directory") || says("Not a directory");
  if (status.ok() || status.code() == Code::kResourceExhausted || !damaged) return status;
  return Status::corruption(status.message());
}

Status to_status(const ::rocksdb::Status& s, std::string_view what) {
  if (s.ok()) return {};
  const std::string message = "cannot " + std::string(what) + ": " + s.ToString();
  if (s.IsNotFound()) return Status::not_found(message);
  if (s.IsNoSpace() || s.subcode() == ::rocksdb::Status::kSpaceLimit) {
    return Status::exhausted("cannot " + std::string(what) +
                             ": the disk is full; free some space or lower disk.max_bytes");
  }
  if (s.IsCorruption()) return Status::corruption(message);
  if (s.IsShutdownInProgress()) return Status::unavailable(message);
  return Status::io(message);
}

}  // namespace quire::rocksdb_internal
