/// RecordCheck looks at a record before RocksDB opens it, for damage that RocksDB does not notice
/// or does not survive. Only cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/wal_filter.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cachestore/disk/log/log_gaps.h"
#include "cachestore/disk/store_folder.h"

namespace quire::rocksdb_internal {

/// Writes count themselves in the first so many families, those of Family (write_ledger.h).
inline constexpr int kNumFamilies = 3;

/// Returns the number in a slot of a family, as WriteLedger::SlotReader does.
std::uint64_t slot_number(::rocksdb::DB& db, ::rocksdb::ColumnFamilyHandle* handle,
                          std::size_t slot);

/// What is found of one record while it is opened. It cuts the end of a log that a loss of power
/// tore, where it may write, and keeps what it cuts beside the record. Threads: one at a time.
class RecordCheck {
 public:
  using Families = std::vector<::rocksdb::ColumnFamilyDescriptor>;

  /// `folder` outlives this object, which outlives databases that are opened with its filter().
  RecordCheck(const StoreFolder& folder, bool read_only) : folder_(folder), read_only_(read_only) {}

  /// Returns whether there is a record; false: a new one may begin. Errors: kCorruption (the folder
  /// has files of a record without CURRENT, a log with the content of another one, or a manifest
  /// that lacks edits), kIo.
  Result<bool> check_files() const;
  /// Looks for changes that the log lacks between others, or between those of tables and its first
  /// one. A power failure may lose them, as its disk may write a later block and not an earlier
  /// one: then nothing from there on was acknowledged, and it is left out. Who only reads cuts
  /// nothing, and stops reading there. What an earlier start cut, and ended, is counted as well.
  /// `families` begin with the default family and those of Family. Errors: kCorruption (they are
  /// lost), kIo, kResourceExhausted.
  Status check_gaps(::rocksdb::DBOptions options, const Families& families);
  /// Returns whether a log that cannot be read to its end can be read up to a place, and everything
  /// that is known to be acknowledged lies before it: a power failure tore the end. A store that
  /// was closed has a seal, so that this is one that was not. Errors: kIo.
  Result<bool> only_the_end_is_torn(::rocksdb::DBOptions options, const Families& families);

  /// Returns what the record is to be opened with; null: nothing.
  ::rocksdb::WalFilter* filter() const { return stop_.get(); }
  /// Returns how many writes were left out with a torn end. Nobody knows whether they were
  /// acknowledged.
  std::uint64_t torn_writes() const { return torn_writes_; }

 private:
  Status check_manifest() const;
  Result<std::optional<LogGap>> find_gap(const ::rocksdb::DBOptions& options,
                                         const Families& families, std::uint64_t first_log) const;
  Status note_earlier_cut(const ::rocksdb::DBOptions& options, const Families& families);
  Status cut_at(const LogGap& gap, std::vector<std::string>* moved) const;
  Status undo_cut(const std::vector<std::string>& moved) const;
  void note_torn(std::uint64_t writes);

  const StoreFolder& folder_;
  const bool read_only_;
  std::unique_ptr<::rocksdb::WalFilter> stop_;  // null: there is no gap to stop at
  std::uint64_t torn_writes_ = 0;
};

}  // namespace quire::rocksdb_internal
