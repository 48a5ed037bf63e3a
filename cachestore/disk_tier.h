/// What the store needs of a disk: atomic synced records, and segments written whole and deleted
/// whole. Inside cachestore only; the RocksDB tier implements it, tests implement it in memory and
/// with faults.
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
#include "cachestore/record.h"
#include "cachestore/value_buffer.h"

namespace quire {

enum class Family : std::uint8_t { kCatalog = 0, kJobs, kMeta };

/// One change of a record; without a value the key is deleted.
struct RecordWrite {
  Family family = Family::kCatalog;
  std::string key;
  std::optional<std::string> value;
};

enum class Sync : std::uint8_t { kNo, kYes };

/// Bytes as `du` counts them.
struct DiskUsage {
  std::uint64_t segment_bytes = 0;         ///< files of live segments
  std::uint64_t pending_delete_bytes = 0;  ///< files of deleted segments that are not gone yet
  std::uint64_t catalog_bytes = 0;         ///< everything else in the folder, directories included
  /// What background work (flush, compaction, rolling logs) may take on top at most
  std::uint64_t headroom_bytes = 0;
  std::uint64_t total() const { return segment_bytes + pending_delete_bytes + catalog_bytes; }
};

/// Files found on disk that belong to one segment.
struct StoredSegment {
  SegmentId id = 0;
  bool has_values = false, has_sketches = false;
  std::uint64_t disk_bytes = 0;
};

/// Threads: all methods concurrently, but for one segment id at most one of write_segment /
/// delete_segment at a time. All may wait on disk. Errors: kResourceExhausted (disk full), kIo,
/// kCorruption (the disk format is damaged).
class DiskTier {
 public:
  struct Value {
    record::ValueName name;
    /// stored() is what to write; the bytes before it are the tier's to use
    std::shared_ptr<ValueBuffer> buffer;
  };
  /// False stops the scan.
  using ScanFn = std::function<bool(std::string_view key, std::string_view value)>;

  virtual ~DiskTier() = default;

  /// All or nothing. With Sync::kYes it is on stable storage when this returns.
  virtual Status write(std::span<const RecordWrite> writes, Sync sync) = 0;
  /// kNotFound: an ordinary miss
  virtual Result<std::string> get(Family family, std::string_view key) = 0;
  /// Keys in [begin, end) in order; `descending` from the end. An empty `end` is no bound.
  virtual Status scan(Family family, std::string_view begin, std::string_view end, bool descending,
                      const ScanFn& fn) = 0;

  struct Written {
    std::uint64_t disk_bytes = 0;
    std::string locator;  ///< lets read() go straight to the values; the tier's own; may be empty
  };
  /// `values` in order of (part, block, group). Durable when it returns; nothing is left behind on
  /// errors.
  virtual Result<Written> write_segment(SegmentId id, std::span<const Value> values) = 0;
  /// The stored bytes of one value, unchecked. kNotFound when the segment or value is missing.
  /// `position` of the value in the locator: block * values_per_block + group. Bytes read by way of
  /// a locator that fail their check are to be read again without one before they are called bad.
  virtual Result<std::shared_ptr<ValueBuffer>> read(const record::ValueName& name,
                                                    std::string_view locator = {},
                                                    std::size_t position = 0) = 0;
  /// Missing segments are no error. Space may come back a little later (readers): see usage() and
  /// wait_for_deletes().
  virtual Status delete_segment(SegmentId id) = 0;
  virtual Result<std::vector<StoredSegment>> list_segments() = 0;

  virtual DiskUsage usage() = 0;
  /// Waits until some pending delete is done or the time is over; false when none is pending.
  virtual bool wait_for_deletes(std::chrono::milliseconds at_most) = 0;
  /// Free bytes of the file system for this process.
  virtual std::uint64_t free_bytes() = 0;
  /// Moves the written records out of the write-ahead log.
  virtual Status flush_records() = 0;
  /// Rewrites the records without deleted ones.
  virtual Status compact_records() = 0;
};

}  // namespace quire
