/// This file defines the record of the queries of a context's last tokens, which ingest stores with
/// its sketch. An index by queries (CTkvr) needs them, as placed tokens have no queries.
///
/// The record is little-endian, checksummed by the store, and sketch 2 of a segment. Without head
/// keys, sketch 1 is a zero byte.
/// - Header, 32 bytes: u32 magic "QTQ1", u16 version, u16 zero, u32 num_layers, num_heads,
///   head_dim, num_rows, u64 num_tokens.
/// - For each layer: f32 scales [num_rows][num_heads], then i8 raw queries (before RoPE)
///   [num_rows][num_heads][head_dim]. A value is integer * scale.
///
/// Row r is token num_tokens - num_rows + r.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace quire {

inline constexpr std::uint16_t kTailRecordVersion = 1;
inline constexpr std::uint32_t kTailRecordIndex = 2;  ///< index among a segment's sketches
inline constexpr std::int64_t kMostTailRows = 128;
/// Largest share of the KV's size that a record may take.
inline constexpr double kTailShare = 0.02;

struct TailRecordShape {
  std::int32_t num_layers = 0, num_heads = 0, head_dim = 0;
  std::int64_t num_rows = 0, num_tokens = 0;
  bool operator==(const TailRecordShape&) const = default;
};

/// Returns how many rows fit into kTailShare of `kv_bytes`, at most kMostTailRows; num_rows of
/// `shape` is ignored. 0: no record is worthwhile.
std::int64_t tail_rows(const TailRecordShape& shape, std::int64_t kv_bytes);

/// Returns a record of at least one row whose queries are all zero.
std::vector<std::byte> begin_tail_record(const TailRecordShape& shape);
/// Quantizes one query, [num_heads * head_dim], into a record of that shape. Values that are not
/// finite count as 0.
void put_tail_query(std::span<std::byte> record, const TailRecordShape& shape, std::int32_t layer,
                    std::int64_t row, const float* query);

/// A parsed record, which points into the bytes it was parsed from; they must outlive it and may
/// have any alignment.
class TailRecordView {
 public:
  /// Parses a record and checks its header against its length. Errors: kCorruption with the reason,
  /// also for a record of another version.
  static Result<TailRecordView> parse(std::span<const std::byte> record);
  const TailRecordShape& shape() const { return shape_; }
  std::int64_t first_token() const { return shape_.num_tokens - shape_.num_rows; }
  /// Copies one query into out, [num_heads * head_dim]. Values that are not finite become 0.
  void query(std::int32_t layer, std::int64_t row, std::span<float> out) const;

 private:
  TailRecordShape shape_;
  std::span<const std::byte> record_;
};

}  // namespace quire
