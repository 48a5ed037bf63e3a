/// This file defines the record of a context's keys in the model's selection heads, from which a
/// query ranks blocks without reading KV (engine/select/head_scores.h).
///
/// The record is little-endian, checksummed by the store, and sketch 4 of a segment.
/// - Header, 32 bytes: u32 magic "QSH1", u16 version, u16 zero, u32 num_pairs, head_dim,
///   u64 num_tokens, u64 zero.
/// - num_pairs entries of u32 layer, u32 kv_head, ascending.
/// - For each pair: f32 scales [num_tokens], then i8 keys [num_tokens][head_dim]. A value is
///   integer * scale. Keys are rotated to the token's position in the context, 0 for the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/record/selection_heads.h"

namespace quire {

inline constexpr std::uint32_t kSelectionKeysIndex = 4;  ///< index among a segment's sketches

struct SelectionKeysShape {
  std::vector<SelectionHeads::Pair> pairs;
  std::int32_t head_dim = 0;
  std::int64_t num_tokens = 0;
  bool operator==(const SelectionKeysShape&) const = default;
};

/// Returns a record whose keys are all zero. Every number of `shape` is at least 1.
std::vector<std::byte> begin_selection_keys(const SelectionKeysShape& shape);
/// Quantizes one rotated key, [head_dim], into a record of that shape. Values that are not finite
/// count as 0.
void put_selection_key(std::span<std::byte> record, const SelectionKeysShape& shape,
                       std::size_t pair, std::int64_t token, const float* key);

/// A parsed record, which points into the bytes it was parsed from; they must outlive it and may
/// have any alignment.
class SelectionKeysView {
 public:
  /// Parses a record and checks its header against its length. Errors: kCorruption with the reason,
  /// also for a record of another version.
  static Result<SelectionKeysView> parse(std::span<const std::byte> record);
  const SelectionKeysShape& shape() const { return shape_; }
  /// Copies the keys of tokens [first, first + rows) into out, [rows, head_dim]. Scales that are
  /// not finite become 0.
  void keys(std::size_t pair, std::int64_t first, std::int64_t rows, std::span<float> out) const;

 private:
  SelectionKeysShape shape_;
  std::span<const std::byte> record_;
};

}  // namespace quire
