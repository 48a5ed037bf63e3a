// This file compiles XXH3-128 for AVX512; see value_hash.cc.
#if defined(__x86_64__)
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "cachestore/format/value_hash.h"

namespace quire::record {

Hash128 value_hash128_avx512(const void* data, std::size_t bytes, std::uint64_t seed) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(data, bytes, seed));
  Hash128 out;
  std::memcpy(out.data(), canonical.digest, out.size());
  return out;
}

}  // namespace quire::record
#endif
