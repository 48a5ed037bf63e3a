/// OldRecord opens a damaged record for its repair, as far as it can be read. Only
/// cachestore/disk/rocksdb_*.cc include it.
#pragma once

#include <rocksdb/db.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/disk/repair.h"
#include "cachestore/disk/rocksdb_disk_tier.h"
#include "cachestore/disk/store_folder.h"
#include "cachestore/disk/write_ledger.h"

namespace quire::rocksdb_internal {

/// A database and the handles of those families that it has.
struct RepairDatabase {
  enum Kind : std::size_t { kCatalog, kJobs, kMeta, kPlaces, kKinds };
  static constexpr std::array<const char*, kKinds> kNames = {"catalog", "jobs", "meta", "extents"};

  std::unique_ptr<::rocksdb::DB> db;  // null: it is not open
  std::vector<::rocksdb::ColumnFamilyHandle*> all;
  std::array<::rocksdb::ColumnFamilyHandle*, kKinds> handles{};

  RepairDatabase() = default;
  RepairDatabase(const RepairDatabase&) = delete;
  RepairDatabase& operator=(const RepairDatabase&) = delete;
  ~RepairDatabase() { close(); }
  void close();
};

/// Adds a line to what a repair found, which names a bounded number of things.
void note_damage(RepairReport& report, std::string line);
/// Returns whether a file holds a table that was written under another name. RocksDB ends the
/// process where two files of a family have the same entries.
bool is_another_table(const std::filesystem::path& file, const RocksDbTierOptions& options);

/// The record of a store that is repaired. It changes nothing of it: what must be changed to be
/// read is copied to a folder of work. What is damaged is said in the report. Threads: one at a
/// time.
class OldRecord {
 public:
  /// All of these outlive this object.
  OldRecord(const StoreFolder& folder, const std::string& work, const RocksDbTierOptions& options,
            RepairReport& report)
      : folder_(folder), work_(work), options_(options), report_(report) {}

  /// Finds the logs that RocksDB cannot read without harm: it would end the process, never end, or
  /// leave out what follows a gap. Only those count that the manifest still needs: others may be
  /// left over from an earlier crash, and their changes are in tables. Errors: kIo.
  Status read_logs();
  /// Opens the record so that all of it that is left can be read in order: as it is, then without
  /// what is missing of its log, then with a new list of its tables. `fresh` is the new record.
  /// Comes after read_logs(). Errors: it can be read by single tables alone.
  Status open(const RepairDatabase& fresh);
  /// Says how many acknowledged writes are not in it, which RocksDB may take for a crash. Errors:
  /// kIo.
  Status compare_ledger();
  void close() { old_.close(); }

  /// Returns what open() opened; without a database where it could not.
  RepairDatabase& database() { return old_; }
  /// Returns the folder of tables that RocksDB gave up when it made a new list of them. It need not
  /// be there.
  std::string given_up() const { return work_ + "/copy/lost"; }
  /// Returns the batches of all logs that are what their names say, in order.
  const std::vector<std::string>& batches() const { return batches_; }
  /// Returns documents whose head may be of another version than their tokens, because of a gap in
  /// the logs.
  const std::set<std::pair<std::string, std::string>>& unsure() const { return unsure_; }

 private:
  Status open_as(const std::string& path, bool copy, RepairDatabase* out) const;
  /// What the manifest says of the logs; 0: it is not known.
  struct Logs {
    std::uint64_t first = 0;  // number of the first log whose changes are not all in tables
    std::uint64_t next = 0;   // number after the last change that tables have
  };
  Logs needed_logs() const;
  bool manifest_is_whole();
  Status copy_record(const std::string& to);
  Status name_families(const std::string& copy, const RepairDatabase& fresh);
  Status rebuild(const std::string& copy, const RepairDatabase& fresh);
  LostWrites missing_in_logs(const WriteLedger& ledger) const;

  const StoreFolder& folder_;
  const std::string& work_;
  const RocksDbTierOptions& options_;
  RepairReport& report_;
  RepairDatabase old_;
  bool manifest_whole_ = true;
  std::map<std::string, std::string> bad_logs_;  // what is left of each; empty: nothing
  std::set<std::string> unread_logs_;            // with the content of others
  std::vector<std::string> batches_;
  std::set<std::uint64_t> log_writes_;  // numbers of the writes in logs with gaps
  std::set<std::pair<std::string, std::string>> unsure_;
};

}  // namespace quire::rocksdb_internal
