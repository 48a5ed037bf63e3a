/// This file declares the record of a segment in a shared tier, and the names of its values for
/// their checksums.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/placement.h"
#include "cachestore/format/record.h"
#include "cachestore/format/segment.h"

namespace quire {

/// What a replica must know of a segment before it reads the values. Values come first, by block
/// and group; sketches follow.
struct RemoteRecord {
  ContextKey key;
  std::string fingerprint;  ///< as in SegmentInfo
  SegmentLayout layout;
  ValueSlots sizes;  ///< payload bytes of values and sketches, in order of position
  /// Names the key that the values are encrypted with (remote_keys.h); 0: they are not.
  std::uint64_t key_id = 0;

  std::uint64_t num_values() const {
    return std::uint64_t{layout.num_blocks} * layout.values_per_block;
  }
  std::uint64_t num_stored() const { return num_values() + layout.num_sketches; }
  /// Returns the payload bytes of the values, without sketches.
  std::uint64_t value_bytes() const;
  std::uint64_t sketch_bytes() const;
  /// Returns the bytes that a value has in the tier besides its payload: its header, nonce and tag.
  std::uint64_t bytes_beside() const;
  /// Returns the bytes that all values and sketches have in the tier.
  std::uint64_t stored_bytes() const;
};

/// Encodes the record with its checksum (docs/formats.md, "Shared tier").
std::string encode_remote_record(const RemoteRecord& record);
/// Errors: kCorruption for anything that the encoder does not write.
Result<RemoteRecord> decode_remote_record(std::string_view bytes);

/// Returns the name of a segment in a shared tier: fingerprint, key and, unless it is 0, the id of
/// the key that encrypts it. Two models never have one, nor do two of these keys, so services with
/// different keys do not delete each other's segments.
std::string remote_name(const ContextKey& key, std::string_view fingerprint,
                        std::uint64_t key_id = 0);
/// Returns the name that the checksum of a value or sketch is bound to. In place of a segment's
/// number, which only one store knows, it has a digest of key and fingerprint.
record::ValueName remote_value_name(const ContextKey& key, std::string_view fingerprint,
                                    const SegmentLayout& layout, std::uint64_t position);

}  // namespace quire
