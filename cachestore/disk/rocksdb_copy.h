/// RecordCopy keeps the records of a store a second time. Only cachestore/rocksdb_*.cc include it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/disk/disk_tier.h"
#include "cachestore/disk/rocksdb_records.h"
#include "cachestore/disk/store_folder.h"

namespace quire::rocksdb_internal {

/// A second database of the records, in a folder of its own that may lie on another disk. Every
/// write goes to the first one, then here, before it is acknowledged.
///
/// Both hold a mark with the number of the copy and the numbers of the last writes that each had
/// when they were last alike (write_ledger.h). So a start knows which of them has more: a crash
/// leaves the first one ahead, a log that lost its end the copy. Threads: write() concurrently, the
/// rest by the opening thread.
class RecordCopy {
 public:
  /// The record of family kMeta with the mark.
  static constexpr std::string_view kMark = "record_copy";

  RecordCopy(StoreFolder folder, const RocksDbTierOptions& options);
  /// Opens the copy, which is made anew if it is damaged or of another store, and makes both alike:
  /// from `records`, or where these lack acknowledged writes that the copy has, from the copy.
  /// After a clean close nothing is compared. Errors: those of DiskTier.
  Status open(RecordDatabase& records);
  /// Writes what `records` have just written. After a failure nothing more is written, which the
  /// mark of `records` says, until the next open() makes both alike again.
  void write(RecordDatabase& records, std::span<const RecordWrite> writes, Sync sync);
  /// Reads a record; the caller cannot read it elsewhere. Errors: kNotFound also where this is
  /// behind.
  Result<std::string> get(Family family, std::string_view key) {
    return behind() ? Status::not_found("the copy is behind") : db_->get(family, key);
  }
  /// Says in both that they are alike.
  void close(RecordDatabase& records);

  /// Returns whether a write has failed.
  bool behind() const { return behind_.load(std::memory_order_relaxed); }
  /// Returns how many writes open() has brought back to the records.
  std::uint64_t brought_back() const { return brought_back_; }
  /// Removes the mark of records that have no copy any more, so that it counts as old.
  static Status forget(RecordDatabase& records);

 private:
  struct Mark {
    std::string id;
    std::uint64_t records = 0, copy = 0;  ///< the last writes of each when they were alike
    /// Both are alike up to `records`; nothing was written since; the copy lacks writes.
    enum class State { kOpen, kClosed, kBehind } state = State::kOpen;
    std::string text() const;
    static std::optional<Mark> parse(std::string_view text);
  };
  static Result<std::optional<Mark>> mark_of(RecordDatabase& db);
  static Status set_mark(RecordDatabase& db, const Mark& mark);
  Status open_database();
  Status settle(RecordDatabase& records);
  Status begin(RecordDatabase& records, std::string id);

  const StoreFolder folder_;  // holds the lock: outlives db_
  RocksDbTierOptions options_;
  std::unique_ptr<RecordDatabase> db_;
  std::string id_;
  std::mutex mu_;  ///< held by the first write that fails
  std::atomic<bool> behind_{false};
  std::uint64_t brought_back_ = 0;
};

/// Returns the families of a copy in order, for the repair of the record that it is a copy of; null
/// if it is not whole, with the reason in `why`. `last_ms` receives the time of its newest write.
std::unique_ptr<RecordDatabase> open_whole_copy(const StoreFolder& folder, std::string* why,
                                                std::int64_t* last_ms);

}  // namespace quire::rocksdb_internal
