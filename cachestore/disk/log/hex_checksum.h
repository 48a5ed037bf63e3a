/// The checksum of the small text files beside a record.
#pragma once

#include <xxhash.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace quire {

/// Returns the XXH3-64 of bytes as 16 digits in hex.
inline std::string hex_checksum(std::string_view bytes) {
  char out[17];
  std::snprintf(out, sizeof out, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(bytes.data(), bytes.size())));
  return out;
}

}  // namespace quire
