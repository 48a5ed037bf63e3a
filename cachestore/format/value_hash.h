/// This file declares XXH3-128 with the widest vectors of the processor. All variants give the same
/// digests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace quire::record {

using Hash128 = std::array<std::byte, 16>;  ///< canonical (big-endian) form

Hash128 value_hash128(const void* data, std::size_t bytes, std::uint64_t seed);

/// The variants, for value_hash.cc and its test. The wide ones need a processor with their
/// instructions.
Hash128 value_hash128_base(const void* data, std::size_t bytes, std::uint64_t seed);
Hash128 value_hash128_avx2(const void* data, std::size_t bytes, std::uint64_t seed);
Hash128 value_hash128_avx512(const void* data, std::size_t bytes, std::uint64_t seed);

}  // namespace quire::record
