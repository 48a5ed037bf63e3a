/// This file declares reading of layout 1, where each segment had table files of its own in two
/// column families. Nothing writes it any more: its segments are moved to extents. Only
/// cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/db.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cachestore/disk/disk_tier.h"
#include "cachestore/disk/rocksdb_disk_tier.h"
#include "cachestore/disk/store_folder.h"

namespace quire::rocksdb_internal {

inline constexpr std::array<const char*, 2> kLayout1Families = {"blocks", "sketches"};

/// Returns options of a family of layout 1, whose files lie in `folder`.
::rocksdb::ColumnFamilyOptions layout1_options(const std::string& folder);

/// Returns header and payload of an entry, which filler precedes: its first byte is its length and
/// less than 64, where a header begins with 'Q'. Empty if the entry is malformed.
std::span<const std::byte> skip_filler(std::span<const std::byte> entry);

/// Drops the table files that keep the closed database from opening with `failure`: KV is only
/// cache. Returns whether there were any.
bool drop_damaged_files(const StoreFolder& folder, const RocksDbTierOptions& options,
                        const std::string& failure, const ::rocksdb::DBOptions& db_options,
                        const std::vector<::rocksdb::ColumnFamilyDescriptor>& families);

/// The segments of layout 1 in an open database. Threads: all methods concurrently.
class Layout1Segments {
 public:
  /// `families` are the handles of kLayout1Families.
  Layout1Segments(::rocksdb::DB& db, std::array<::rocksdb::ColumnFamilyHandle*, 2> families);

  bool empty() const;
  bool contains(SegmentId id) const;
  std::vector<StoredSegment> list() const;
  std::vector<SegmentId> some(std::size_t at_most) const;
  std::uint64_t disk_bytes() const;
  /// Returns the stored bytes of a value, unchecked. Errors: kNotFound, kIo, kCorruption.
  Result<std::shared_ptr<ValueBuffer>> read(const record::ValueName& name) const;
  Status erase(SegmentId id);

 private:
  ::rocksdb::DB& db_;
  const std::array<::rocksdb::ColumnFamilyHandle*, 2> families_;  // by part
  mutable std::mutex mu_;
  std::unordered_map<SegmentId, StoredSegment> segments_;  // guarded by mu_
  std::uint64_t disk_bytes_ = 0;                           // guarded by mu_
};

}  // namespace quire::rocksdb_internal
