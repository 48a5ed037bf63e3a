/// The part of an index of vectors that lies on disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ingest/index/scratch_file.h"

namespace quire {

/// Holds vectors of one dimension as f16 in numbered slots, each with an XXH3 of its values and
/// number. A slot that was freed is used again.
///
/// Threads: const methods concurrently, others exclusively.
class VectorFile {
 public:
  /// Makes an empty file without a name in `folder`. Errors: kIo, kResourceExhausted.
  static Result<VectorFile> create(const std::string& folder, std::int64_t dimension);

  /// Stores a vector, [dimension], whose values are exact in f16, in the lowest free slot and
  /// returns its number. Errors: kIo, kResourceExhausted; nothing is stored then.
  Result<std::uint32_t> put(std::span<const float> vector);
  void free(std::span<const std::uint32_t> slots);
  /// Shortens the file to its last slot in use. Errors: kIo.
  Status trim();

  /// Reads `count` vectors of neighbouring slots to `vectors`, [count, dimension]. Errors: kIo,
  /// kCorruption (other bytes than were written).
  Status read(std::uint32_t first, std::uint32_t count, float* vectors) const;
  /// Has the disk begin a read() that will follow.
  void prefetch(std::uint32_t first, std::uint32_t count) const;

  std::uint32_t num_slots() const { return num_slots_; }  ///< free ones too
  std::uint32_t num_free() const { return static_cast<std::uint32_t>(free_.size()); }
  std::int64_t disk_bytes() const { return num_slots_ * slot_bytes(); }
  std::int64_t slot_bytes() const;

 private:
  VectorFile(ScratchFile file, std::int64_t dimension)
      : file_(std::move(file)), dimension_(dimension) {}

  ScratchFile file_;
  std::int64_t dimension_;
  std::uint32_t num_slots_ = 0;
  std::vector<std::uint32_t> free_;  ///< descending
};

}  // namespace quire
