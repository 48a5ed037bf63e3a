#include "engine/retrieve/head_keys.h"

#include "kernels/rope.h"

namespace quire {
namespace {

std::int64_t page_bytes(const RetrievalHeadConfig& head, DType dtype) { return kPageTokens * head.key_dim() * static_cast<std::int64_t>(dtype_bytes(dtype)); }

}  // namespace

std::int64_t HeadKeys::bytes_for(const RetrievalHeadConfig& head, DType dtype, std::int64_t rows) {
  return (rows + kPageTokens - 1) / kPageTokens * page_bytes(head, dtype);
}

std::int64_t HeadKeys::bytes() const { return static_cast<std::int64_t>(memory_.size()) * page_bytes(head_.config(), dtype_); }

Status HeadKeys::append(const float* raw, std::span<const std::int32_t> positions) {
  const RetrievalHeadConfig& c = head_.config();
  const auto n = static_cast<std::int64_t>(positions.size());
  rotated_.resize(static_cast<std::size_t>(n * c.key_dim()));
  QUIRE_RETURN_IF_ERROR(rope_rotate(head_.rope(), {.x = raw, .out = rotated_.data(), .positions = positions.data(), .rows = n, .num_heads = c.num_kv_heads, .ldx = c.key_dim(), .ldo = c.key_dim()}));
  while (static_cast<std::int64_t>(memory_.size()) * kPageTokens < num_rows() + n) {
    QUIRE_ASSIGN_OR_RETURN(DeviceBuffer page, device_.allocate(page_bytes(c, dtype_)));
    pages_.push_back(page.data());
    memory_.push_back(std::move(page));
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = num_rows() + i;
    std::byte* page = memory_[static_cast<std::size_t>(row / kPageTokens)].data();
    for (std::int64_t m = 0; m < c.num_kv_heads; ++m) {
      const std::int64_t to = (m * kPageTokens + row % kPageTokens) * c.head_dim;
      for (std::int64_t x = 0; x < c.head_dim; ++x) store_f32(page, dtype_, to + x, rotated_[static_cast<std::size_t>(i * c.key_dim() + m * c.head_dim + x)]);
    }
  }
  for (const std::int32_t position : positions) {
    sorted_ = sorted_ && (positions_.empty() || position > positions_.back());
    positions_.push_back(position);
  }
  return {};
}

KvView HeadKeys::view() const {
  const RetrievalHeadConfig& c = head_.config();
  const std::int64_t row_bytes = c.head_dim * static_cast<std::int64_t>(dtype_bytes(dtype_));
  return KvView{.pages = pages_.data(), .positions = positions_.data(), .num_rows = num_rows(), .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .dtype = dtype_,
                .kv_stride = 0, .head_stride = kPageTokens * row_bytes, .token_stride = row_bytes, .sorted = sorted_};
}

}  // namespace quire
