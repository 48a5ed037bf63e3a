/// This file declares the device memory layout of weights in groups of 32 inputs, of four and eight
/// bits.
///
/// A row is split into segments of 256 inputs (four bits) or 128 (eight bits); the last one is
/// padded with zeros. A segment has 128 bytes of numbers, 16 for each of eight lanes. Each of its 8
/// or 4 groups has an f16 scale and, with kFourMin, an f16 minimum. A lane holds four neighbouring
/// inputs of every group, 4 * lane to 4 * lane + 3:
///  - four bits: two bytes per group, the first input in the lowest bits,
///  - eight bits, also of floats: four bytes per group.
/// A warp that reads 16 bytes of numbers per lane thus reads 512 contiguous bytes of four segments.
/// One load gets all scales of a lane. The inputs that the eight lanes of a segment multiply with
/// one of its groups are 128 contiguous bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/device.h"
#include "kernels/matmul/group_of_blocks.h"

namespace quire::cuda {

inline constexpr std::int64_t kSegmentBytes = 128;

/// Returns the number of groups of a segment.
QUIRE_HOST_DEVICE constexpr int segment_groups(GroupKind kind) {
  return kind == GroupKind::kEight || kind == GroupKind::kFloat8 ? 4 : 8;
}
/// Returns the number of segments of a row.
QUIRE_HOST_DEVICE constexpr std::int64_t row_segments(GroupKind kind, std::int64_t k) {
  const std::int64_t inputs = segment_groups(kind) * kGroupInputs;
  return (k + inputs - 1) / inputs;
}

/// A matrix W [n, k] in device memory.
struct GroupedWeights {
  const std::byte* numbers;       ///< [n][segments][128], 16-byte aligned
  const std::uint16_t* scales;    ///< f16 [n][segments][8 or 4], 16-byte aligned
  const std::uint16_t* minimums;  ///< layout of scales, for kFourMin; else null
  std::int64_t n, k;              ///< k a multiple of 32
  GroupKind kind;
  /// Outputs of the matrix that these are some rows of; 0: n. A device divides sums by it, so that
  /// an output does not depend on how a matrix was cut.
  std::int64_t whole_n = 0;
};

/// Returns the number of outputs by which a device divides the sums of these weights.
template <class Weights>
constexpr std::int64_t dividing_outputs(const Weights& w) {
  return w.whole_n > 0 ? w.whole_n : w.n;
}

constexpr std::int64_t grouped_number_bytes(GroupKind kind, std::int64_t n, std::int64_t k) {
  return n * row_segments(kind, k) * kSegmentBytes;
}
/// Returns the bytes of the scales, and of the minimums if there are any.
constexpr std::int64_t grouped_scale_bytes(GroupKind kind, std::int64_t n, std::int64_t k) {
  return n * row_segments(kind, k) * segment_groups(kind) * 2;
}

/// Writes group g of row `row` into host memory of this layout that was zero before. `minimums` may
/// be null if the kind has none.
inline void put_group(GroupKind kind, std::int64_t row, std::int64_t g, std::int64_t k,
                      const WeightGroup& group, std::byte* numbers, std::uint16_t* scales,
                      std::uint16_t* minimums) {
  const std::int64_t segment = row * row_segments(kind, k) + g / segment_groups(kind);
  const std::int64_t in_segment = g % segment_groups(kind);
  scales[segment * segment_groups(kind) + in_segment] = group.scale;
  if (kind == GroupKind::kFourMin) {
    minimums[segment * segment_groups(kind) + in_segment] = group.minimum;
  }
  for (std::int64_t lane = 0; lane < 8; ++lane) {
    std::byte* to = numbers + segment * kSegmentBytes + lane * 16;
    const std::uint8_t* q = group.q + lane * 4;
    if (segment_groups(kind) == 4) {
      std::memcpy(to + in_segment * 4, q, 4);
    } else {
      to[in_segment * 2] = std::byte(q[0] | q[1] << 4);
      to[in_segment * 2 + 1] = std::byte(q[2] | q[3] << 4);
    }
  }
}

}  // namespace quire::cuda
