#include "cachestore/format/value_hash.h"

#include <xxhash.h>

#include <cstring>

namespace quire::record {

Hash128 value_hash128_base(const void* data, std::size_t bytes, std::uint64_t seed) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(data, bytes, seed));
  Hash128 out;
  std::memcpy(out.data(), canonical.digest, out.size());
  return out;
}

Hash128 value_hash128(const void* data, std::size_t bytes, std::uint64_t seed) {
#if defined(__x86_64__)
  static const auto best = __builtin_cpu_supports("avx512f") ? value_hash128_avx512
                           : __builtin_cpu_supports("avx2")  ? value_hash128_avx2
                                                             : value_hash128_base;
  return best(data, bytes, seed);
#else
  return value_hash128_base(data, bytes, seed);
#endif
}

}  // namespace quire::record
