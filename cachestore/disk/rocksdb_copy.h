/// RecordCopy keeps the records of a store a second time. Only cachestore/disk/rocksdb_*.cc include
/// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "base/status.h"
#include "cachestore/disk/disk_tier.h"
#include "cachestore/disk/rocksdb_records.h"
#include "cachestore/disk/store_folder.h"

namespace quire::rocksdb_internal {

/// What a record and its copy say of each other, as the record kMark of family kMeta.
struct CopyMark {
  /// kOpen: both are alike but for writes after it. kClosed: none came after it. kBehind, of the
  /// records alone: the copy lacks writes, and has none after `number`, if that is not 0.
  enum class State { kOpen, kClosed, kBehind };
  static constexpr std::string_view kMark = "record_copy";

  std::string id;            ///< of the copy; the same in both
  std::uint64_t number = 0;  ///< of the records' last write before it (write_ledger.h)
  State state = State::kOpen;

  std::string text() const;
  static std::optional<CopyMark> parse(std::string_view text);
  /// Returns the mark of a database; nothing: it has none. Errors: those of RecordDatabase::get().
  static Result<std::optional<CopyMark>> of(RecordDatabase& db);
  RecordWrite write() const;
};

/// Returns whether a record is of the store, and not of the upkeep of one of the two databases.
bool is_client_record(Family family, std::string_view key);

/// A second database of the records, in a folder of its own that may lie on another disk. Every
/// write goes to the first one, then here, before it is acknowledged; the copy also keeps the
/// number that the write has in the records. So a start knows which of them has more: a crash
/// leaves the records ahead, a log that lost its end the copy.
///
/// Nothing of a copy is ever deleted because the records differ: what is damaged, of another store
/// or of another time is set aside in its folder. Threads: write() concurrently, the rest by the
/// opening thread.
class RecordCopy {
 public:
  /// The copy's folder is RocksDbTierOptions::copy_path.
  explicit RecordCopy(const RocksDbTierOptions& options);
  ~RecordCopy() { stop_reading(); }
  /// Opens the copy and makes both alike: from `records`, or where these lack acknowledged writes
  /// that the copy has, or are new, from the copy. After a clean close nothing is compared, and a
  /// thread reads the copy whole. Nothing comes back to records that `folder`, their own, says to
  /// be restored from a backup. A copy that cannot be written is behind, and no error; nor is one
  /// that cannot be opened, if the records know that there was one and cannot lack what it has.
  /// Errors: kCorruption of the records, kIo and kResourceExhausted where they cannot be written;
  /// those of opening the copy, with the field disk.copy_path, never kCorruption.
  Status open(RecordDatabase& records, const StoreFolder& folder);
  /// Notes that the records go on without the copy, as they were told to: a repair would else take
  /// it for all that they had. On a full disk that is left out where they have lost nothing.
  static Status leave(RecordDatabase& records, const StoreFolder& folder);
  /// Writes what `records` have just written as `number` (0: it was not synced). After a failure
  /// nothing more is written, which the mark of `records` says, until the next open() makes both
  /// alike again.
  void write(RecordDatabase& records, std::span<const RecordWrite> writes, Sync sync,
             std::uint64_t number);
  /// Has the next open() compare both, because records may have what the copy has not.
  void must_compare() { compare_ = true; }
  /// Reads a record; the caller cannot read it elsewhere. Errors: kNotFound also where this is
  /// behind.
  Result<std::string> get(Family family, std::string_view key) {
    return behind() ? Status::not_found("the copy is behind") : db_->get(family, key);
  }
  /// Says in both that they are alike, if they are.
  void close(RecordDatabase& records);

  /// Returns whether a write has failed, or some of the copy cannot be read.
  bool behind() const { return behind_.load(std::memory_order_relaxed); }
  /// Returns whether all of the copy was read since open().
  bool read_whole() const { return read_whole_.load(std::memory_order_relaxed); }
  /// Returns how many records open() has brought back.
  std::uint64_t brought_back() const { return brought_back_; }

 private:
  Status open_database();
  Status go_without(RecordDatabase& records, const Status& why);
  static Status say_behind(RecordDatabase& records, const CopyMark& mark);
  Status settle(RecordDatabase& records, const StoreFolder& folder);
  Status bring_back(RecordDatabase& records, const CopyMark& mark);
  Status begin(RecordDatabase& records, std::string id);
  Status set_aside(std::string_view why);
  Result<std::uint64_t> last_number();
  void fall_behind(RecordDatabase& records, const Status& why);
  Status read_all();
  void start_reading(RecordDatabase& records);
  void stop_reading();

  RocksDbTierOptions options_;
  const std::string path_;
  std::optional<StoreFolder> folder_;   // holds the lock: outlives db_
  std::unique_ptr<RecordDatabase> db_;  // null: it could not be opened
  bool needed_ = false;                 // the records may lack what it has
  std::string id_;                      // empty until both are alike
  std::mutex behind_mu_;                // held by who first falls behind
  std::atomic<bool> behind_{false}, read_whole_{false}, closing_{false}, compare_{false};
  std::thread reader_;
  std::uint64_t brought_back_ = 0;
};

/// Opens a copy for the repair of the record that it is of; null: it is not whole, with the reason
/// in `why`. Of a gap in its log that nothing acknowledged follows, as far as its ledger knows, it
/// has only what comes before: what is read is of one time, and RecordDatabase::torn_writes() tells
/// how many writes it lacks. `last_ms` receives the time of its newest write.
std::unique_ptr<RecordDatabase> open_whole_copy(const StoreFolder& folder, std::string* why,
                                                std::int64_t* last_ms);
/// Returns the time of the newest entry of a record's ledger; 0: it has none.
std::int64_t newest_in_ledger(const StoreFolder& folder);

}  // namespace quire::rocksdb_internal
