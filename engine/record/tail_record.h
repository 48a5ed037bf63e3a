/// Queries of a context's last tokens, as ingest stores them beside its sketch: a token that is
/// only placed has none of its own, and an index of queries (CTkvr) wants some.
///
/// Record, little-endian, checksummed by the store, sketch 2 of a segment (sketch 1 is a zero byte
/// where there are no head keys):
///   header, 32 bytes: u32 magic "QTQ1", u16 version, u16 zero, u32 num_layers, num_heads,
///   head_dim, num_rows, u64 num_tokens for each layer: f32 scales [num_rows][num_heads], then i8
///   raw queries (before RoPE) [num_rows][num_heads][head_dim]; a value is integer * scale
/// Row r is token num_tokens - num_rows + r.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace quire {

inline constexpr std::uint16_t kTailRecordVersion = 1;
inline constexpr std::uint32_t kTailRecordIndex = 2;  ///< among a segment's sketches
inline constexpr std::int64_t kMostTailRows = 128;
/// What a record may take of the KV it stands beside.
inline constexpr double kTailShare = 0.02;

struct TailRecordShape {
  std::int32_t num_layers = 0, num_heads = 0, head_dim = 0;
  std::int64_t num_rows = 0, num_tokens = 0;
  bool operator==(const TailRecordShape&) const = default;
};

/// Rows that keep to kTailShare of `kv_bytes`, kMostTailRows at most; num_rows of `shape` is not
/// read. 0: no record is worth its while.
std::int64_t tail_rows(const TailRecordShape& shape, std::int64_t kv_bytes);

/// A record whose queries are all zero. At least one row.
std::vector<std::byte> begin_tail_record(const TailRecordShape& shape);
/// Rounds one query, [num_heads * head_dim], into a record of that shape. Values that are not
/// finite count as 0.
void put_tail_query(std::span<std::byte> record, const TailRecordShape& shape, std::int32_t layer,
                    std::int64_t row, const float* query);

/// A parsed record; points into the bytes it was parsed from, which must stay. Any alignment.
class TailRecordView {
 public:
  /// Checks the header against the record's length. Errors: kCorruption, saying what is wrong; a
  /// record of another version is one too.
  static Result<TailRecordView> parse(std::span<const std::byte> record);
  const TailRecordShape& shape() const { return shape_; }
  std::int64_t first_token() const { return shape_.num_tokens - shape_.num_rows; }
  /// Copies into out [num_heads * head_dim]. What is not finite comes as 0.
  void query(std::int32_t layer, std::int64_t row, std::span<float> out) const;

 private:
  TailRecordShape shape_;
  std::span<const std::byte> record_;
};

}  // namespace quire
