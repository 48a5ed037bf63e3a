/// Keys of a retrieval head for one context, as ingest stores them beside its sketch: made of the
/// model's states while the context was prefilled alone.
///
/// Record, little-endian, checksummed by the store, sketch 1 of a segment:
///   header, 56 bytes: u32 magic "QHK1", u16 version, u16 zero, u32 num_kv_heads, head_dim, u64
///   num_tokens, 32 bytes digest of the head f16 raw keys [num_tokens][num_kv_heads][head_dim],
///   before the head's RoPE
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace quire {

inline constexpr std::uint16_t kHeadRecordVersion = 1;
inline constexpr std::uint32_t kHeadRecordIndex = 1;  ///< among a segment's sketches

struct HeadRecordShape {
  std::int32_t num_kv_heads = 0, head_dim = 0;
  std::int64_t num_tokens = 0;
  std::array<std::uint8_t, 32> head_digest{};
  bool operator==(const HeadRecordShape&) const = default;
};

/// A parsed record; points into the bytes it was parsed from, which must stay. Any alignment.
class HeadRecordView {
 public:
  /// Checks the header against the record's length. Errors: kCorruption, saying what is wrong; a
  /// record of another version is one too.
  static Result<HeadRecordView> parse(std::span<const std::byte> record);
  const HeadRecordShape& shape() const { return shape_; }
  /// Appends the raw keys of tokens [first, first + count), [count, num_kv_heads * head_dim].
  /// Values that are not finite come as 0.
  void keys(std::int64_t first, std::int64_t count, std::vector<float>& out) const;

 private:
  HeadRecordShape shape_;
  std::span<const std::byte> values_;
};

/// keys: [num_tokens, num_kv_heads * head_dim], rounded to f16.
std::vector<std::byte> build_head_record(const HeadRecordShape& shape, std::span<const float> keys);

}  // namespace quire
