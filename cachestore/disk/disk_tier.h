/// This file declares what the store needs of a disk: atomic synced records, and segments that are
/// written and deleted as a whole. It is internal to cachestore. The RocksDB tier implements it;
/// tests implement it in memory and with faults.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/disk/backup.h"
#include "cachestore/format/lost_writes.h"
#include "cachestore/format/record.h"
#include "cachestore/format/record_copy.h"
#include "cachestore/format/value_buffer.h"

namespace quire {

enum class Family : std::uint8_t { kCatalog = 0, kJobs, kMeta };

/// A change of one record; without a value the key is deleted.
struct RecordWrite {
  Family family = Family::kCatalog;
  std::string key;
  std::optional<std::string> value;
};

enum class Sync : std::uint8_t { kNo, kYes };

/// Sizes in bytes as `du` counts them.
struct DiskUsage {
  std::uint64_t segment_bytes = 0;  ///< files of live segments
  /// bytes of deleted segments that come back when their file is rewritten by move_segment()
  std::uint64_t pending_delete_bytes = 0;
  std::uint64_t catalog_bytes = 0;  ///< everything else in the folder, directories included
  /// the most that background work (flush, compaction, rolling logs) may take in addition
  std::uint64_t headroom_bytes = 0;
  std::uint64_t total() const { return segment_bytes + pending_delete_bytes + catalog_bytes; }
};

/// What the disk has of one segment.
struct StoredSegment {
  SegmentId id = 0;
  bool has_values = false, has_sketches = false;
  std::uint64_t disk_bytes = 0;
};

/// Threads: all methods concurrently, but at most one write_segment / delete_segment per segment id
/// at a time. All may wait on disk. Errors: kResourceExhausted (disk full), kIo, kCorruption (the
/// disk format is damaged).
class DiskTier {
 public:
  struct Value {
    record::ValueName name;
    /// stored() is what to write; the tier may use the bytes before it
    std::shared_ptr<ValueBuffer> buffer;
  };
  /// Receives a record; returns false to stop the scan.
  using ScanFn = std::function<bool(std::string_view key, std::string_view value)>;

  virtual ~DiskTier() = default;

  /// Writes all records or none. With Sync::kYes they are on stable storage on return.
  virtual Status write(std::span<const RecordWrite> writes, Sync sync) = 0;
  /// Returns a record. Errors: kNotFound is an ordinary miss.
  virtual Result<std::string> get(Family family, std::string_view key) = 0;
  /// Calls fn for keys in [begin, end) in order, or from the end if `descending`. An empty `end` is
  /// no bound.
  virtual Status scan(Family family, std::string_view begin, std::string_view end, bool descending,
                      const ScanFn& fn) = 0;

  /// Writes `values`, which are ordered by (part, block, group) and complete, and returns the
  /// bytes that they take on disk. They are durable after the next synced write(). An error leaves
  /// nothing behind.
  virtual Result<std::uint64_t> write_segment(SegmentId id, std::span<const Value> values) = 0;
  /// Returns the stored bytes of one value, unchecked. Errors: kNotFound (the segment or value is
  /// missing).
  virtual Result<std::shared_ptr<ValueBuffer>> read(const record::ValueName& name) = 0;
  /// Reads several values, with fewer calls of the disk where they lie side by side. Returns a
  /// result for each name, as read() does. Throws std::bad_alloc.
  virtual std::vector<Result<std::shared_ptr<ValueBuffer>>> read_some(
      std::span<const record::ValueName> names) {
    std::vector<Result<std::shared_ptr<ValueBuffer>>> out;
    out.reserve(names.size());
    for (const auto& name : names) out.push_back(read(name));
    return out;
  }
  /// Deletes a segment; a missing one is no error. Nobody reads it.
  virtual Status delete_segment(SegmentId id) = 0;
  virtual Result<std::vector<StoredSegment>> list_segments() = 0;

  /// Returns up to `at_most` segments that should be written anew: those of an older layout first,
  /// then those that keep a nearly empty file alive.
  virtual std::vector<SegmentId> segments_to_move(std::size_t at_most) = 0;
  /// Writes a segment anew and frees its old place. Readers go on meanwhile; the caller holds a
  /// handle. Returns the bytes that it takes now. Errors: kCorruption and kNotFound (bad values).
  virtual Result<std::uint64_t> move_segment(const SegmentInfo& info) = 0;

  /// Adds a backup of the records to `folder` and keeps the `keep` newest (0: all).
  virtual Result<BackupReport> backup(const std::string& folder, std::uint32_t keep) {
    (void)keep;
    return Status::unimplemented("this tier makes no backup to '" + folder + "'");
  }
  /// As Store has them.
  virtual LostWrites lost_writes() const { return {}; }
  virtual void lost_writes_told() {}
  virtual RecordCopyState record_copy() const { return {}; }
  /// Has the records go on after a write that failed. OK: whether that write was made after all is
  /// decided, and reads tell. Errors: kIo (not yet; try again), kResourceExhausted (not before
  /// there is room).
  virtual Status recover() { return {}; }
  virtual DiskUsage usage() = 0;
  /// Returns the free bytes of the file system for this process.
  virtual std::uint64_t free_bytes() = 0;
  /// Moves the written records out of the write-ahead log.
  virtual Status flush_records() = 0;
  /// Rewrites the records without deleted ones.
  virtual Status compact_records() = 0;
};

}  // namespace quire
