#include "cachestore/disk/log/log_pieces.h"

#include <algorithm>
#include <array>
#include <boost/crc.hpp>
#include <fstream>

namespace quire {
namespace {

/// Returns the checksum that RocksDB stores of a record's type and data.
std::uint32_t stored_checksum(std::string_view typed) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(typed.data(), typed.size());
  const std::uint32_t sum = crc.checksum();
  return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

/// Returns the beginning of the next record of a block behind `at`, or the end of the block.
std::size_t next_beginning(std::string_view file, std::size_t at) {
  const std::size_t block_end = std::min(file.size(), at - at % kLogBlock + kLogBlock);
  for (++at; at < block_end; ++at) {
    const auto piece = log_piece_at(file, at);
    if (piece && piece->type <= LogPiece::kFirst) return at;
  }
  return block_end;
}

}  // namespace

std::string file_bytes(const std::string& path, bool* failed) {
  // Iterators over a stream throw where a disk fails.
  std::ifstream in(path, std::ios::binary);
  std::string out;
  std::array<char, 1 << 16> piece;
  while (in.read(piece.data(), piece.size()) || in.gcount() > 0)
    out.append(piece.data(), static_cast<std::size_t>(in.gcount()));
  if (failed != nullptr) *failed = in.bad();
  return out;
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t v = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) v = v << 8 | static_cast<unsigned char>(bytes[i]);
  return v;
}

std::optional<LogPiece> log_piece_at(std::string_view file, std::size_t at) {
  const std::size_t block_end = std::min(file.size(), at - at % kLogBlock + kLogBlock);
  if (at + kLogHeader > block_end) return std::nullopt;
  const auto type = static_cast<std::uint8_t>(file[at + 6]);
  const auto length = static_cast<std::size_t>(little_endian(file.substr(at + 4, 2)));
  if (type < LogPiece::kFull || type > LogPiece::kLast || at + kLogHeader + length > block_end)
    return std::nullopt;
  const auto checksum = static_cast<std::uint32_t>(little_endian(file.substr(at, 4)));
  if (checksum != stored_checksum(file.substr(at + 6, length + 1))) return std::nullopt;
  return LogPiece{LogPiece::Type(type), checksum, file.substr(at + kLogHeader, length)};
}

LogRecords log_records(std::string_view file) {
  LogRecords out;
  std::optional<std::string> begun;  // a record whose first pieces were read
  std::size_t at = 0;
  while (at < file.size()) {
    if (kLogBlock - at % kLogBlock < kLogHeader) {  // too short for a header: zeros
      at += kLogBlock - at % kLogBlock;
      continue;
    }
    const auto piece = log_piece_at(file, at);
    if (!piece) {
      const std::size_t block_end = std::min(file.size(), at - at % kLogBlock + kLogBlock);
      if (file.find_first_not_of('\0', at) == file.npos) break;
      if (at + kLogHeader <= block_end) {
        const auto type = static_cast<std::uint8_t>(file[at + 6]);
        out.stops_reader |= type > LogPiece::kLast && type <= LogPiece::kLast + 4;
      }
      begun.reset();
      at = next_beginning(file, at);
      continue;
    }
    at += piece->bytes();
    const bool begins = piece->type <= LogPiece::kFirst,
               ends = piece->type == LogPiece::kFull || piece->type == LogPiece::kLast;
    if (begins) begun.emplace();
    if (!begun) continue;
    begun->append(piece->data);
    if (!ends) continue;
    out.records.push_back(std::move(*begun));
    out.ends.push_back(at);
    begun.reset();
  }
  return out;
}

void append_log_record(std::string& file, std::string_view record) {
  for (bool first = true;; first = false) {
    std::size_t room = kLogBlock - file.size() % kLogBlock;
    if (room < kLogHeader) {
      file.append(room, '\0');
      room = kLogBlock;
    }
    const std::string_view data = record.substr(0, room - kLogHeader);
    record.remove_prefix(data.size());
    const bool last = record.empty();
    const LogPiece::Type type = first ? (last ? LogPiece::kFull : LogPiece::kFirst)
                                      : (last ? LogPiece::kLast : LogPiece::kMiddle);
    std::string typed(1, static_cast<char>(type));
    typed += data;
    const std::uint32_t checksum = stored_checksum(typed);
    for (int i = 0; i < 4; ++i) file += static_cast<char>(checksum >> 8 * i);
    for (int i = 0; i < 2; ++i) file += static_cast<char>(data.size() >> 8 * i);
    file += typed;
    if (last) return;
  }
}

}  // namespace quire
