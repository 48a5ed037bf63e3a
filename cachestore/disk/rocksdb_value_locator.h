/// This file declares value positions inside a segment's file. With them a read is one direct read
/// of the file into the engine's buffer, without a copy or a second checksum. RocksDB still owns
/// the file and the regular read path. The direct path is used only if the positions were checked
/// when the file was written, and the value's own checksum covers every read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "cachestore/disk/disk_tier.h"

namespace quire::rocksdb_internal {

/// Values at least this long (with header) get a data block each, whose position follows from their
/// lengths.
inline constexpr std::size_t kBlockBytes = 4096;

/// Follows the table format while values are added: format_version 5, no compression, one entry per
/// data block. A block is shared (1 byte), key length (1), value length (varint), key and its 8
/// byte number, value, one restart (4), count (4), trailer (5).
class ValuePlacer {
 public:
  explicit ValuePlacer(std::size_t key_bytes) : key_bytes_(key_bytes) {}
  /// Returns the filler bytes (0 to 63) before the header that put the payload on a multiple of 64
  /// in the file.
  std::size_t add(std::size_t stored_bytes);
  /// Returns the locator; empty if a value was too short for its own block or there are too many
  /// values.
  std::string locator() const;
  std::uint64_t last_header_offset() const { return last_; }

 private:
  std::size_t key_bytes_;
  std::uint64_t offset_ = 0, last_ = 0;
  std::string entries_;
  bool fits_ = true;
};

/// Writes filler: its first byte is its length, the others are zero. A header begins with 'Q',
/// which is greater than any length.
void write_filler(std::byte* begin, std::size_t length);
/// Returns header and payload of a stored entry; empty if it is malformed.
std::span<const std::byte> skip_filler(std::span<const std::byte> entry);

/// Reads one value by its position. Errors: kNotFound (no such position or file), kIo.
Result<std::shared_ptr<ValueBuffer>> read_located(const std::string& path, std::string_view locator,
                                                  std::size_t position, bool direct_io);

}  // namespace quire::rocksdb_internal
