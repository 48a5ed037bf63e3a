#include "cachestore/disk/manifest_end.h"

#include <algorithm>
#include <boost/crc.hpp>
#include <cstddef>

namespace quire {
namespace {

constexpr std::size_t kBlock = 32768, kHeader = 7;  // checksum (4), length (2), type (1)
enum Type : std::uint8_t { kZero = 0, kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t v = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) v = v << 8 | static_cast<unsigned char>(bytes[i]);
  return v;
}

/// Returns the checksum that RocksDB stores of a record's type and data.
std::uint32_t stored_checksum(std::string_view typed) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(typed.data(), typed.size());
  const std::uint32_t sum = crc.checksum();
  return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

/// A whole record or part of one that lies within a block.
struct Piece {
  std::uint8_t type;
  std::size_t bytes;  ///< with its header
};

/// Returns the piece that begins at `at`, if it is whole and of a known type.
std::optional<Piece> piece_at(std::string_view file, std::size_t at) {
  const std::size_t block_end = std::min(file.size(), at - at % kBlock + kBlock);
  if (at + kHeader > block_end) return std::nullopt;
  const auto type = static_cast<std::uint8_t>(file[at + 6]);
  const std::size_t bytes = kHeader + little_endian(file.substr(at + 4, 2));
  if (type < kFull || type > kLast || at + bytes > block_end) return std::nullopt;
  const std::string_view typed = file.substr(at + 6, bytes - 6);
  if (little_endian(file.substr(at, 4)) != stored_checksum(typed)) return std::nullopt;
  return Piece{type, bytes};
}

}  // namespace

std::optional<std::uint64_t> torn_manifest_end(std::string_view manifest) {
  std::size_t at = 0, whole = 0;
  while (at < manifest.size()) {
    if (kBlock - at % kBlock < kHeader) {  // too short for a header: zeros
      at = std::min(manifest.size(), at - at % kBlock + kBlock);
      continue;
    }
    const auto piece = piece_at(manifest, at);
    if (!piece) break;
    at += piece->bytes;
    if (piece->type == kFull || piece->type == kLast) whole = at;
  }
  if (whole == 0 || at >= manifest.size()) return std::nullopt;
  // Whatever follows the first bad byte may be of a record that reached the disk in part, but not
  // the beginning of a later record. Data of the torn one cannot pass for it: its checksum differs.
  for (std::size_t next = at + 1; next + kHeader <= manifest.size(); ++next) {
    const auto piece = piece_at(manifest, next);
    if (piece && piece->type <= kFirst) return std::nullopt;
  }
  return whole;
}

}  // namespace quire
