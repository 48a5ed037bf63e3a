/// This file declares the database of records: the families of the catalog, and the places of
/// segments. Only cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/db.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/disk/disk_tier.h"
#include "cachestore/disk/folder/untold_losses.h"
#include "cachestore/disk/rocksdb_check.h"
#include "cachestore/disk/rocksdb_disk_tier.h"
#include "cachestore/disk/rocksdb_options.h"
#include "cachestore/disk/rocksdb_record_files.h"
#include "cachestore/disk/store_folder.h"
#include "cachestore/disk/write_ledger.h"
#include "cachestore/format/placement.h"

namespace quire::rocksdb_internal {

/// Returns the key of a segment's placement: its number, big-endian.
std::string placement_key(SegmentId id);

/// The records of a store in RocksDB. A synced write is counted in the ledger, so that a log that
/// lost its end is noticed when it is opened. Threads: all methods concurrently, but open() and
/// those that say so. Errors are those of DiskTier.
class RecordDatabase {
 public:
  /// Receives the key, the segment that it names (if it is well formed) and its placement.
  using PlacementFn = std::function<void(std::string_view key, std::optional<SegmentId> id,
                                         std::string_view value)>;

  /// `folder` outlives this object.
  RecordDatabase(const StoreFolder& folder, const RocksDbTierOptions& options);
  ~RecordDatabase() { close(); }
  RecordDatabase(const RecordDatabase&) = delete;
  RecordDatabase& operator=(const RecordDatabase&) = delete;

  /// Opens the database and compares it with the ledger.
  Status open();
  bool is_open() const { return db_ != nullptr; }
  /// Closes what is open; nobody uses the database any more.
  void close();
  ::rocksdb::DB& db() { return *db_; }
  /// Returns the lost writes that are told now (untold_losses.h).
  LostWrites lost_writes() const { return losses_.shown(); }
  /// Returns whether open() itself found some.
  bool found_lost_writes() const { return found_lost_; }
  void lost_writes_told() { losses_.told(); }
  void lost_writes_mended() { losses_.mended(); }
  /// Returns how many writes open() left out with a torn end of the log. Nobody knows whether they
  /// were acknowledged.
  std::uint64_t torn_writes() const { return check_ ? check_->torn_writes() : 0; }

  /// Returns the handles of kLayout1Families, if the store has them.
  std::optional<std::array<::rocksdb::ColumnFamilyHandle*, 2>> layout1_handles() const;
  /// Removes the families of layout 1. Nobody else uses the database.
  Status drop_layout1();

  /// After a failed write RocksDB rejects further ones until it is told to go on or, where it says
  /// that it cannot, opened again, at most once a second. Nothing waits for that: a call in another
  /// thread postpones it. Returns whether it was opened again: a write that failed may be there.
  bool resume_after_failure();
  /// The same, but waits for another thread that does so. OK: no write has failed since, so whether
  /// one before was made is decided. Errors: kIo (it cannot go on yet), kResourceExhausted (the
  /// disk is full).
  Status recover(bool* reopened);
  /// `number`, if not null, receives that of a synced write (write_ledger.h), else 0.
  Status write(std::span<const RecordWrite> writes, Sync sync, std::uint64_t* number = nullptr);
  Result<std::string> get(Family family, std::string_view key);
  Status scan(Family family, std::string_view begin, std::string_view end, bool descending,
              const DiskTier::ScanFn& fn);
  /// Iterates over a family, the ledger's slots included.
  std::unique_ptr<::rocksdb::Iterator> iterate(Family family);
  /// Returns the number of the newest synced write; 0 for a store opened read-only.
  std::uint64_t last_write() const { return ledger_.last(); }
  /// Returns the number of the newest synced write that is in the database.
  std::uint64_t last_present();
  /// Compares a database that is opened read-only with its ledger. What earlier opens found counts,
  /// too.
  Result<LostWrites> look_for_lost_writes();

  Status scan_placements(const PlacementFn& fn);
  Status put_placement(SegmentId id, const Placement& placement, Sync sync);
  Status erase_placement(SegmentId id);
  Status erase_placements(std::span<const std::string> keys);
  /// Begins with no placements. Nobody else uses the database.
  Status drop_placements();

  /// Adds a backup; see rocksdb_backup.h.
  Result<BackupReport> backup(const std::string& folder, std::uint32_t keep);

  /// Returns the bytes of records and what their upkeep may take, without those of segments.
  DiskUsage usage();
  Status flush();
  Status compact();

 private:
  Status open_database(bool read_only);
  bool resume();
  Status reopen();
  Status check_open() const;
  Status not_yet() const;
  void note_manifest() const;
  Status check_ledger(std::uint64_t torn);
  bool keep_lost(const LostWrites& lost);
  Status check_written(const ::rocksdb::Status& status, std::string_view what);
  std::vector<::rocksdb::ColumnFamilyHandle*> record_handles() const;

  const StoreFolder& folder_;
  const RocksDbTierOptions options_;
  const RecordSizes sizes_;
  std::shared_ptr<RecordFiles> files_;
  /// Shared by every call that uses db_, exclusive while it is opened again. A call of another
  /// one's callback shares it a second time.
  mutable std::shared_mutex open_mu_;
  std::unique_ptr<RecordCheck> check_;  // of the last time it was opened; outlives db_
  std::unique_ptr<::rocksdb::DB> db_;   // null where opening again failed
  /// By family; then those of layout 1. A store opened read-only may lack placements (null).
  std::vector<::rocksdb::ColumnFamilyHandle*> handles_;
  WriteLedger ledger_;  // not used by a store opened read-only
  UntoldLosses losses_;
  bool found_lost_ = false;
  std::atomic<std::int64_t> reopened_ms_{0};  // when it was tried last, by the steady clock
  std::atomic<bool> reads_only_{false};       // it could not be opened again for writing
  std::mutex resume_mu_;                      // held while it goes on after a failure
  std::atomic<bool> undecided_{false};        // no write until it is opened again
  std::atomic<bool> failed_{false};  // a write failed: RocksDB may reject more until resumed
  std::atomic<bool> full_{false};    // it did as the disk was full
};

}  // namespace quire::rocksdb_internal
