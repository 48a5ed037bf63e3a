/// This file declares segments. A segment holds all stored values of one context: KV values
/// addressed by (block, group) and sketch records by index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "cachestore/format/key.h"

namespace quire {

class ValueBuffer;

/// Names the tier where bytes were found; kNone: nowhere.
enum class Tier : std::uint8_t { kNone = 0, kGpu, kDram, kDisk, kRemote };
std::string_view tier_name(Tier tier);

/// A segment id is unique in the life of a store folder and never reused.
using SegmentId = std::uint64_t;

/// The number of values of a segment. A value is opaque bytes of up to 64 MiB. 256 KiB to 1 MiB
/// reads fastest, so small layers of one block should share a group.
struct SegmentLayout {
  std::uint32_t num_blocks = 0;        ///< 1 .. 2^24
  std::uint32_t values_per_block = 0;  ///< groups of layers, 1 .. 4096
  std::uint32_t num_sketches = 0;      ///< sketch records, 0 .. 2^20
  friend bool operator==(const SegmentLayout&, const SegmentLayout&) = default;
};

struct SegmentInfo {
  ContextKey key;
  SegmentId id = 0;
  SegmentLayout layout;
  std::uint64_t value_bytes = 0;   ///< payload of all values
  std::uint64_t sketch_bytes = 0;  ///< payload of all sketch records
  std::uint64_t disk_bytes = 0;    ///< allocated size of the files on disk
  std::int64_t created_ms = 0;
  std::string tenant;       ///< namespace that pays for it
  std::string fingerprint;  ///< model fingerprint: distinguishes stale KV from current
};

/// Keeps a segment readable. While any copy of the handle lives, its bytes are not freed, even if
/// the document is deleted, replaced or evicted. Copies are cheap. Threads: copies may be used on
/// any thread; releasing the last one never waits on disk. The store must outlive every handle.
class SegmentHandle {
 public:
  SegmentHandle() = default;
  explicit SegmentHandle(std::shared_ptr<const SegmentInfo> info) : info_(std::move(info)) {}

  bool valid() const { return info_ != nullptr; }
  explicit operator bool() const { return valid(); }
  const SegmentInfo& info() const { return *info_; }
  const SegmentInfo* operator->() const { return info_.get(); }

 private:
  std::shared_ptr<const SegmentInfo> info_;  // the deleter unpins
};

/// Bytes that stay in memory, unchanged, while any copy lives. data() is 64-byte aligned.
class PinnedBytes {
 public:
  PinnedBytes() = default;
  PinnedBytes(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

/// Collects the values of one new segment. Room on disk is reserved at creation, and nothing is
/// visible before finish(). Values stay in memory (they become the DRAM tier's copies), so put_*
/// never touch the disk. A writer destroyed without finish() leaves nothing behind. Threads: one at
/// a time.
class SegmentWriter {
 public:
  virtual ~SegmentWriter() = default;
  virtual const SegmentLayout& layout() const = 0;

  /// Copies `bytes`, in any order, each (block, group) once. Errors: kInvalidArgument (outside the
  /// layout, twice, empty, too long), kResourceExhausted (more than expected_bytes).
  virtual Status put_value(std::uint32_t block, std::uint32_t group,
                           std::span<const std::byte> bytes) = 0;
  /// Keeps `value` without a copy and shares it with the DRAM tier. Its payload must not change
  /// afterwards; others may read it. Errors: those of put_value(), and kInvalidArgument for null.
  virtual Status take_value(std::uint32_t block, std::uint32_t group,
                            std::shared_ptr<ValueBuffer> value) = 0;
  virtual Status put_sketch(std::uint32_t index, std::span<const std::byte> bytes) = 0;

  /// Writes the files and syncs them. It waits on disk, so call it from a store or worker thread.
  /// Every value and sketch must have been put. The segment can then be found by its key and is
  /// pinned by the handle. It survives a restart only once a document that names its key is
  /// committed (Store::commit_document) or Store::commit_segments is called. The writer cannot be
  /// used afterwards, even on errors. Errors: kFailedPrecondition (values missing),
  /// kResourceExhausted (disk full), kIo.
  virtual Result<SegmentHandle> finish() = 0;
};

}  // namespace quire
