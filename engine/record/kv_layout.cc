#include "engine/record/kv_layout.h"

#include <algorithm>

#include "base/status.h"

namespace quire {
namespace {
constexpr std::int64_t kMaxValueBytes = 1 << 20;
}

KvLayout::KvLayout(const KvShape& shape, std::int64_t num_tokens, std::int32_t block_tokens,
                   std::int32_t layers_per_value)
    : shape_(shape), num_tokens_(num_tokens), block_tokens_(block_tokens) {
  QUIRE_CHECK(num_tokens >= 0 && block_tokens > 0 && shape.num_layers > 0, "bad KV layout");
  num_blocks_ = static_cast<std::int32_t>((num_tokens + block_tokens - 1) / block_tokens);
  const std::int64_t layer = std::int64_t{2} * shape.num_kv_heads * shape.head_dim * block_tokens *
                             static_cast<std::int64_t>(dtype_bytes(shape.dtype));
  std::int64_t most = std::clamp<std::int64_t>(kMaxValueBytes / layer, 1, shape.num_layers);
  if (layers_per_value > 0) most = std::min<std::int64_t>(most, layers_per_value);
  num_groups_ = static_cast<std::int32_t>((shape.num_layers + most - 1) / most);
  layers_per_group_ = (shape.num_layers + num_groups_ - 1) / num_groups_;
  num_groups_ = (shape.num_layers + layers_per_group_ - 1) / layers_per_group_;
}

std::int32_t KvLayout::tokens_in(std::int32_t block) const {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(block_tokens_, num_tokens_ - first_token(block)));
}

std::int32_t KvLayout::layers_in(std::int32_t group) const {
  return std::min(layers_per_group_, shape_.num_layers - group * layers_per_group_);
}

std::int64_t KvLayout::layer_bytes(std::int32_t block) const {
  return std::int64_t{2} * shape_.num_kv_heads * shape_.head_dim * tokens_in(block) *
         static_cast<std::int64_t>(dtype_bytes(shape_.dtype));
}

std::int64_t KvLayout::layer_offset(std::int32_t block, std::int32_t layer) const {
  return layer_bytes(block) * (layer % layers_per_group_);
}

std::int64_t KvLayout::total_bytes() const {
  return std::int64_t{2} * shape_.num_kv_heads * shape_.head_dim *
         static_cast<std::int64_t>(dtype_bytes(shape_.dtype)) * num_tokens_ * shape_.num_layers;
}

RawKvView KvLayout::view(std::span<const std::byte> value, std::int32_t block,
                         std::int32_t layer) const {
  const std::int64_t rows = tokens_in(block);
  const std::int64_t row = shape_.head_dim * static_cast<std::int64_t>(dtype_bytes(shape_.dtype));
  RawKvView v{};
  v.data = value.data() + layer_offset(block, layer);
  v.num_rows = rows;
  v.dtype = shape_.dtype;
  v.row_stride = row;
  v.kv_stride = row * rows;
  v.head_stride = 2 * row * rows;
  return v;
}

SegmentLayout KvLayout::segment(std::uint32_t more_records) const {
  return {static_cast<std::uint32_t>(num_blocks_), static_cast<std::uint32_t>(num_groups_),
          1 + more_records};
}

bool KvLayout::fits(const SegmentLayout& stored) const {
  return stored == segment(stored.num_sketches - 1) && stored.num_sketches > 0;
}

}  // namespace quire
