/// The framing of RocksDB's log files, which its manifests have, too: blocks of 32 KiB, in which
/// lie records, or pieces of those that cross a block's end. Other versions of it are not read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

inline constexpr std::size_t kLogBlock = 32768;
/// Before each piece: checksum (4), length (2), type (1).
inline constexpr std::size_t kLogHeader = 7;

/// A whole record or part of one that lies within a block.
struct LogPiece {
  enum Type : std::uint8_t { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };
  Type type;
  std::uint32_t checksum;
  std::string_view data;  ///< within the file
  std::size_t bytes() const { return kLogHeader + data.size(); }
};

/// Returns the bytes of a file up to where it cannot be read; none where there is no file.
/// `failed`, if not null, says whether the disk kept some of them back.
std::string file_bytes(const std::string& path, bool* failed = nullptr);

/// Returns the number that these bytes are, the lowest one first; at most eight.
std::uint64_t little_endian(std::string_view bytes);

/// Returns the piece that begins at `at`, if it is whole and of a known type.
std::optional<LogPiece> log_piece_at(std::string_view file, std::size_t at);

struct LogRecords {
  std::vector<std::string> records;  ///< in their order
  std::vector<std::size_t> ends;     ///< of each, in the file
  /// A header that is not whole claims to be of a recycled log. RocksDB's reader never gets past it
  /// where it is told to skip what is damaged.
  bool stops_reader = false;
};
/// Returns the records of a file that are whole, also those behind damaged ones. RocksDB finds
/// fewer: behind damage it goes on with the next block.
LogRecords log_records(std::string_view file);
/// Appends a record to a file's bytes.
void append_log_record(std::string& file, std::string_view record);

}  // namespace quire
