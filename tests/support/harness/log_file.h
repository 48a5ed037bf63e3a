/// Bytes of RocksDB's log files, made without RocksDB.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::test {

/// A checksum as RocksDB's files have it, one bit at a time.
inline std::uint32_t masked_crc32c(std::string_view data) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/// Appends records to a file in blocks, and remembers where each ends.
struct LogFile {
  static constexpr std::size_t kBlock = 32768;
  std::string bytes;
  std::vector<std::size_t> ends;

  void add(std::string data) {
    for (bool first = true;; first = false) {
      std::size_t room = kBlock - bytes.size() % kBlock;
      if (room < 7) bytes.append(room, '\0'), room = kBlock;
      const std::size_t n = std::min(data.size(), room - 7);
      const bool last = n == data.size();
      const std::string typed = std::string(1, first ? (last ? 1 : 2) : (last ? 4 : 3)) +
                                data.substr(0, n);
      const std::uint32_t crc = masked_crc32c(typed);
      for (int i = 0; i < 4; ++i) bytes += static_cast<char>(crc >> 8 * i);
      bytes += static_cast<char>(n & 255);
      bytes += static_cast<char>(n >> 8);
      bytes += typed;
      data.erase(0, n);
      if (last) break;
    }
    ends.push_back(bytes.size());
  }
};

}  // namespace quire::test
