#include "engine/retrieve/head_keys.h"

#include "kernels/base/dtype.h"
#include "kernels/rope.h"

namespace quire {
namespace {

std::int64_t block_bytes(const RetrievalHeadConfig& head) { return kTurnedRows * head.key_dim() * static_cast<std::int64_t>(sizeof(std::uint16_t)); }

}  // namespace

std::int64_t HeadKeys::bytes_for(const RetrievalHeadConfig& head, std::int64_t rows) { return (rows + kTurnedRows - 1) / kTurnedRows * block_bytes(head); }

std::int64_t HeadKeys::bytes() const { return static_cast<std::int64_t>(memory_.size()) * block_bytes(head_.config()); }

Status HeadKeys::append(const float* raw, std::span<const std::int32_t> positions) {
  const RetrievalHeadConfig& c = head_.config();
  const auto n = static_cast<std::int64_t>(positions.size());
  rotated_.resize(static_cast<std::size_t>(n * c.key_dim()));
  QUIRE_RETURN_IF_ERROR(rope_rotate(head_.rope(), {.x = raw, .out = rotated_.data(), .positions = positions.data(), .rows = n, .num_heads = c.num_kv_heads, .ldx = c.key_dim(), .ldo = c.key_dim()}));
  while (static_cast<std::int64_t>(memory_.size()) * kTurnedRows < num_rows() + n) {
    QUIRE_ASSIGN_OR_RETURN(PoolMemory block, device_.allocate(block_bytes(c)));
    blocks_.push_back(reinterpret_cast<const std::uint16_t*>(block.data()));
    memory_.push_back(std::move(block));
  }
  const std::int32_t pairs = c.head_dim / 2;
  const float* key = rotated_.data();
  for (std::int64_t row = num_rows(); row < num_rows() + n; ++row) {
    auto* block = reinterpret_cast<std::uint16_t*>(memory_[static_cast<std::size_t>(row / kTurnedRows)].data());
    for (std::int32_t m = 0; m < c.num_kv_heads; ++m) {
      for (std::int32_t p = 0; p < pairs; ++p, key += 2) {
        std::uint16_t* to = block + turned_at(pairs, m, p, row);
        to[0] = f32_to_bf16(key[0]);
        to[1] = f32_to_bf16(key[1]);
      }
    }
  }
  for (const std::int32_t position : positions) {
    sorted_ = sorted_ && (positions_.empty() || position > positions_.back());
    positions_.push_back(position);
  }
  return {};
}

TurnedKeys HeadKeys::view() const { return {{blocks_.data(), num_rows(), head_.config().num_kv_heads, head_.config().head_dim / 2}, positions_.data(), sorted_}; }

}  // namespace quire
