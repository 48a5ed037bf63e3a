/// This file defines the record of a retrieval head's keys for one context, which ingest stores
/// with its sketch. They are computed from the model's states while the context is prefilled.
///
/// The record is little-endian, checksummed by the store, and sketch 1 of a segment.
/// - Header, 56 bytes: u32 magic "QHK1", u16 version, u16 zero, u32 num_kv_heads, head_dim, u64
///   num_tokens, 32 bytes digest of the head.
/// - f16 raw keys [num_tokens][num_kv_heads][head_dim], before the head's RoPE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace quire {

inline constexpr std::uint16_t kHeadRecordVersion = 1;
inline constexpr std::uint32_t kHeadRecordIndex = 1;  ///< index among a segment's sketches

struct HeadRecordShape {
  std::int32_t num_kv_heads = 0, head_dim = 0;
  std::int64_t num_tokens = 0;
  std::array<std::uint8_t, 32> head_digest{};
  bool operator==(const HeadRecordShape&) const = default;
};

/// A parsed record, which points into the bytes it was parsed from; they must outlive it and may
/// have any alignment.
class HeadRecordView {
 public:
  /// Parses a record and checks its header against its length. Errors: kCorruption with the reason,
  /// also for a record of another version.
  static Result<HeadRecordView> parse(std::span<const std::byte> record);
  const HeadRecordShape& shape() const { return shape_; }
  /// Appends the raw keys of tokens [first, first + count), [count, num_kv_heads * head_dim].
  /// Values that are not finite become 0.
  void keys(std::int64_t first, std::int64_t count, std::vector<float>& out) const;

 private:
  HeadRecordShape shape_;
  std::span<const std::byte> values_;
};

/// Builds a record; `keys`, [num_tokens, num_kv_heads * head_dim], are rounded to f16.
std::vector<std::byte> build_head_record(const HeadRecordShape& shape, std::span<const float> keys);

}  // namespace quire
