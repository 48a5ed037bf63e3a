/// This file declares where the values of one segment lie on disk, and the record of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/record.h"

namespace quire {

/// A range of an extent file; offset and length are multiples of kExtentPage.
struct ExtentRange {
  std::uint32_t extent = 0;  ///< number of the file, from 1
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const ExtentRange&, const ExtentRange&) = default;
};
inline constexpr std::uint64_t kExtentPage = 4096;
inline constexpr std::uint64_t kMaxExtentBytes = 1ull << 46;

/// Payload lengths of the values of a segment, in the order in which they lie there. Equal lengths
/// in a row take one entry, so most segments need a few entries for any number of values. Each
/// value has a slot: 32 unused bytes, the value's header, its payload, and zeros up to a multiple
/// of 64.
class ValueSlots {
 public:
  struct Slot {
    std::uint64_t header = 0;  ///< offset of the header in the range
    std::uint32_t payload_bytes = 0;
  };
  struct Run {
    std::uint32_t payload_bytes = 0, count = 0;
    friend bool operator==(const Run&, const Run&) = default;
  };
  static constexpr std::uint64_t kLead = 32;  ///< bytes of a slot before the header
  static constexpr std::uint64_t slot_bytes(std::uint64_t payload_bytes) {
    return 64 + (payload_bytes + 63) / 64 * 64;
  }

  void add(std::uint32_t payload_bytes, std::uint32_t count = 1);
  std::uint64_t size() const;   ///< number of values
  std::uint64_t bytes() const;  ///< of all slots
  const std::vector<Run>& runs() const { return runs_; }
  /// Returns a slot by the value's position; empty if there are fewer values.
  std::optional<Slot> find(std::uint64_t position) const;
  friend bool operator==(const ValueSlots&, const ValueSlots&) = default;

 private:
  std::vector<Run> runs_;  // the store holds one of these for each segment: nothing else
};

/// The place of a segment: values by block and group, then sketches by index.
struct Placement {
  ExtentRange range;
  std::uint32_t num_blocks = 0, values_per_block = 0, num_sketches = 0;
  ValueSlots slots;

  /// Returns the slot of a value or sketch; empty if the segment has none of that name.
  std::optional<ValueSlots::Slot> find(const record::ValueName& name) const;
  friend bool operator==(const Placement&, const Placement&) = default;
};

namespace record {

/// Encodes a placement with the envelope of catalog records.
std::string encode_placement(const Placement& placement);
/// Errors: kCorruption for anything that encode_placement() does not write.
Result<Placement> decode_placement(std::string_view bytes);

}  // namespace record
}  // namespace quire
