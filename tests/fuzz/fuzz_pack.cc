// Packs come from outside, so the reader must refuse anything that the writer did not write. The
// fuzzer cannot guess checksums. Each input is therefore read as it is, and once again split into
// records with right checksums.
#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "cachestore/pack/pack.h"

namespace {

using namespace quire;  // NOLINT

void read_all(std::string_view bytes) {
  PackReader reader(
      [bytes, at = std::size_t{0}](std::span<char> out) mutable -> Result<std::size_t> {
        const std::size_t n = std::min(out.size(), bytes.size() - at);
        std::memcpy(out.data(), bytes.data() + at, n);
        at += n;
        return n;
      });
  for (auto next = reader.next(); next.ok() && *next; next = reader.next()) {
  }
}

void number(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_all(bytes);
  // Each record is a byte for its kind, two for its length, and its payload.
  std::string pack = "QPAK";
  number(pack, 1, 4);
  for (std::uint64_t index = 0; bytes.size() >= 3; ++index) {
    const char kind = "HDSVE"[static_cast<unsigned char>(bytes[0]) % 5];
    const std::size_t length = std::min<std::size_t>(
        static_cast<unsigned char>(bytes[1]) |
            static_cast<std::size_t>(static_cast<unsigned char>(bytes[2])) << 8,
        bytes.size() - 3);
    const std::string_view payload = bytes.substr(3, length);
    bytes.remove_prefix(3 + length);
    pack += kind;
    number(pack, length, 4);
    number(pack,
           XXH3_64bits_withSeed(payload.data(), payload.size(),
                                index << 8 | static_cast<unsigned char>(kind)),
           8);
    pack += payload;
  }
  read_all(pack);
  return 0;
}
