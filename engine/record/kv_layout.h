/// This file defines how the raw KV of one context is divided into stored values (docs/formats.md,
/// "Stored values").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "cachestore/format/segment.h"
#include "kernels/rows/kv.h"

namespace quire {

struct KvShape {
  std::int32_t num_layers = 0, num_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF16;
};

/// A value holds one block of a group of layers: [layers of the group][num_kv_heads][2 (K,
/// V)][tokens of the block][head_dim] in the KV dtype. As many layers share a value as fit into 1
/// MiB, evenly spread; or at most `layers_per_value`, so that a selection that differs by layer
/// reads little besides what it keeps.
class KvLayout {
 public:
  KvLayout() = default;
  /// `layers_per_value`: 0 for as many as fit.
  KvLayout(const KvShape& shape, std::int64_t num_tokens, std::int32_t block_tokens,
           std::int32_t layers_per_value = 0);

  const KvShape& shape() const { return shape_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int32_t block_tokens() const { return block_tokens_; }
  std::int32_t num_blocks() const { return num_blocks_; }
  std::int32_t num_groups() const { return num_groups_; }
  std::int32_t layers_per_group() const { return layers_per_group_; }

  std::int64_t first_token(std::int32_t block) const { return std::int64_t{block} * block_tokens_; }
  std::int32_t tokens_in(std::int32_t block) const;
  std::int32_t group_of(std::int32_t layer) const { return layer / layers_per_group_; }
  std::int32_t layers_in(std::int32_t group) const;
  std::int64_t layer_bytes(std::int32_t block) const;  ///< bytes of one layer of one block
  std::int64_t value_bytes(std::int32_t block, std::int32_t group) const {
    return layer_bytes(block) * layers_in(group);
  }
  /// Returns the byte offset of the layer within its value.
  std::int64_t layer_offset(std::int32_t block, std::int32_t layer) const;
  std::int64_t total_bytes() const;

  /// Returns a view of one layer in a value of `block`; value.size() must be value_bytes(block,
  /// group_of(layer)).
  RawKvView view(std::span<const std::byte> value, std::int32_t block, std::int32_t layer) const;
  /// Returns the layout of a segment with a sketch and `more_records` further records.
  SegmentLayout segment(std::uint32_t more_records = 0) const;
  /// Returns whether a stored segment has this layout of values.
  bool fits(const SegmentLayout& stored) const;

 private:
  KvShape shape_;
  std::int64_t num_tokens_ = 0;
  std::int32_t block_tokens_ = 0, num_blocks_ = 0, num_groups_ = 0, layers_per_group_ = 1;
};

}  // namespace quire
