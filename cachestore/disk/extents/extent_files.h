/// This file declares extents: large append-only files that hold the values of many segments. Space
/// of freed ranges returns to the file system at once by punching holes, so `du` stays exact.
/// It is internal to cachestore.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cachestore/format/placement.h"
#include "cachestore/format/value_buffer.h"
#include "cachestore/format/value_memory.h"

namespace quire {

struct ExtentOptions {
  std::uint64_t extent_bytes = 256ull << 20;  ///< a longer range gets an extent of its own
  bool direct_io = true;
  bool read_only = false;
  bool punch_holes = true;  ///< false: as on a file system without holes
};
/// Extents are at most this long where no holes can be punched, since one is rewritten to free it.
inline constexpr std::uint64_t kExtentBytesWithoutHoles = 16ull << 20;

struct ExtentUsage {
  std::uint64_t allocated_bytes = 0;  ///< blocks of all extents, as `du` counts them
  std::uint64_t live_bytes = 0;       ///< ranges that are not free
  std::uint64_t num_files = 0;
  bool punches_holes = true;
};

/// Owns the files of a folder. A range is written once and never used again after it was freed.
/// Threads: all methods concurrently. A range must not be freed while it is read, except by
/// readers that look up the range again afterwards.
class ExtentFiles {
 public:
  /// Opens the folder. Files without a range of `live` are deleted and space between live ranges is
  /// freed, unless read-only. Errors: kIo, kResourceExhausted.
  static Result<std::unique_ptr<ExtentFiles>> open(std::string folder, const ExtentOptions& options,
                                                   std::span<const ExtentRange> live);
  ~ExtentFiles();

  /// Returns whether the range lies inside its file.
  bool contains(const ExtentRange& range) const;

  using Pages = ValueMemory;                            ///< kWriteBytes bytes, aligned to a page
  static constexpr std::size_t kWriteBytes = 2u << 20;  ///< bytes of one write

  /// Writes one range from front to back. Without finish() the range is freed. A full buffer is
  /// written by another thread while the next one is filled. Threads: one.
  class Writer {
   public:
    Writer(Writer&& other) noexcept;
    Writer& operator=(Writer&&) = delete;
    ~Writer();
    /// Errors: kResourceExhausted (disk full, or more bytes than begin() was told), kIo.
    Status write(std::span<const std::byte> bytes);
    Status write_zeros(std::uint64_t count);
    std::uint64_t written() const { return written_; }
    /// Returns the range, rounded up to whole pages. It is durable after the next sync().
    Result<ExtentRange> finish();

   private:
    friend class ExtentFiles;
    Writer(ExtentFiles& files, ExtentRange range, std::shared_ptr<const int> fd, Pages buffer);
    Status flush();
    Status flush_behind();
    Status wait();

    ExtentFiles* files_;
    ExtentRange range_;
    std::shared_ptr<const int> fd_;
    Pages buffer_;
    Pages behind_;                 ///< being written, or spare
    std::future<Status> pending_;  ///< valid while `behind_` is being written
    std::size_t filled_ = 0;
    std::uint64_t written_ = 0;  // bytes given
    std::uint64_t flushed_ = 0;  // bytes in the file
  };
  /// Reserves the next range of at most `bytes`.
  Result<Writer> begin(std::uint64_t bytes);

  /// Waits until every range finished before this call is on stable storage. Concurrent callers
  /// share one synchronization of the disk.
  Status sync();

  /// Reads header and payload of a value whose header is at `header` of the range. Errors:
  /// kNotFound (no such file, or it ends before the value), kIo.
  Result<std::shared_ptr<ValueBuffer>> read(const ExtentRange& range, std::uint64_t header,
                                            std::uint32_t payload_bytes);
  struct ValuePlace {
    std::uint64_t header = 0;  ///< offset of the header in the extent
    std::uint32_t payload_bytes = 0;
  };
  /// Reads several values of one extent, ordered by offset, with one call of the disk. Everything
  /// between the first and the last is read too, at most kWriteBytes - kExtentPage bytes in all.
  /// Errors: those of read().
  Result<std::vector<std::shared_ptr<ValueBuffer>>> read_run(std::uint32_t extent,
                                                             std::span<const ValuePlace> places);
  /// Copies a range into a new one.
  Result<ExtentRange> copy(const ExtentRange& range);

  void free(const ExtentRange& range);

  std::uint64_t extent_bytes() const { return extent_bytes_; }
  ExtentUsage usage() const;
  /// Returns the extents whose segments should move, the emptiest first: those with less than
  /// `live_share` of their length in use. The extent that is written to is not among them.
  std::vector<std::uint32_t> sparse(double live_share) const;

 private:
  struct Extent {
    std::uint64_t end = 0;        // first byte never given out
    std::uint64_t live = 0;       // bytes of ranges in use, being written included
    std::uint64_t allocated = 0;  // as du counts
    std::uint64_t last_use = 0;
    bool dirty = false;             // has finished ranges that are not synced
    std::shared_ptr<const int> fd;  // null: closed
  };

  ExtentFiles(std::string folder, const ExtentOptions& options)
      : folder_(std::move(folder)),
        options_(options),
        extent_bytes_(options.extent_bytes),
        punches_(options.punch_holes) {}
  Status find_out_about_holes();
  Status recover(std::span<const ExtentRange> live);
  std::string path_of(std::uint32_t number) const;
  Result<std::shared_ptr<const int>> file_of(std::uint32_t number, bool create);  // mu_ held
  Result<std::shared_ptr<const int>> open_file(std::uint32_t number);
  Pages take_buffer();
  void give_buffer(Pages buffer);
  void finished(const ExtentRange& reserved, const ExtentRange& used);
  void measure(Extent& extent);  // mu_ held
  void punch(int fd, std::uint64_t offset, std::uint64_t bytes);
  bool drop_if_unused(std::uint32_t number);  // mu_ held

  const std::string folder_;
  const ExtentOptions options_;
  std::uint64_t extent_bytes_;  // set while opening
  mutable std::mutex mu_;
  std::map<std::uint32_t, Extent> extents_;  // guarded by mu_
  std::uint32_t active_ = 0;                 // extent for new ranges; 0: none; guarded by mu_
  std::uint32_t next_number_ = 1;            // guarded by mu_
  std::uint64_t use_clock_ = 0;              // guarded by mu_
  std::uint64_t allocated_ = 0, live_ = 0;   // sums over extents_; guarded by mu_
  bool folder_dirty_ = false;                // a file was created; guarded by mu_

  std::atomic<bool> punches_;
  // Kept, because aligned memory that comes and goes leaves gaps that nothing else fits into.
  std::vector<Pages> buffers_;  // guarded by mu_

  std::condition_variable synced_;  // notified when a sync ends
  bool syncing_ = false;            // guarded by mu_
  std::uint64_t num_finished_ = 0;  // ranges finished so far; guarded by mu_
  std::uint64_t num_synced_ = 0;    // of those, on stable storage; guarded by mu_
};

}  // namespace quire
