/// Checksums under the names that the store uses, for machines without xxHash. The values differ
/// from XXH3's, which is harmless because the store is in memory there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

struct XXH128_hash_t {
  std::uint64_t low64, high64;
};
struct XXH128_canonical_t {
  unsigned char digest[16];
};

/// Computes FNV-1a over words of eight bytes, each mixed first (splitmix64).
inline std::uint64_t XXH3_64bits_withSeed(const void* data, std::size_t bytes, std::uint64_t seed) {
  std::uint64_t h = seed ^ 0xcbf29ce484222325u ^ bytes;
  const auto* p = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p + i, bytes - i < 8 ? bytes - i : 8);
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    h ^= h >> 29;
  }
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  return h ^ (h >> 31);
}
inline std::uint64_t XXH3_64bits(const void* data, std::size_t bytes) {
  return XXH3_64bits_withSeed(data, bytes, 0);
}
inline XXH128_hash_t XXH3_128bits_withSeed(const void* data, std::size_t bytes,
                                           std::uint64_t seed) {
  return {XXH3_64bits_withSeed(data, bytes, seed), XXH3_64bits_withSeed(data, bytes, ~seed)};
}
inline void XXH128_canonicalFromHash(XXH128_canonical_t* out, XXH128_hash_t hash) {
  std::memcpy(out->digest, &hash, sizeof out->digest);
}
