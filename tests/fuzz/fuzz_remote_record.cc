// Records of shared segments, and addresses of shared tiers: any bytes are refused or understood,
// and what is understood is written back as it was.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cachestore/format/record.h"
#include "cachestore/remote/remote_record.h"
#include "cachestore/remote/remote_url.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto url = quire::parse_remote_url(bytes);
  if (!url.ok() && url.status().field() != "remote.url") std::abort();
  // The bytes as they are fail the checksum; with a fresh one the fields are read.
  for (const std::string& record : {std::string(bytes), quire::record::encode_opaque(bytes)}) {
    const auto decoded = quire::decode_remote_record(record);
    if (!decoded.ok()) continue;
    (void)decoded->stored_bytes();
    const auto again = quire::decode_remote_record(quire::encode_remote_record(*decoded));
    if (!again.ok() || again->key != decoded->key || again->layout != decoded->layout ||
        again->sizes.runs() != decoded->sizes.runs() || again->key_id != decoded->key_id ||
        again->fingerprint != decoded->fingerprint)
      std::abort();
  }
  return 0;
}
