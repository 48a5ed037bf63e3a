#include "engine/retrieve/head/head_keys.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/index.h"
#include "engine/retrieve/head/head_selection.h"
#include "kernels/rows/rope.h"

namespace quire {
namespace {

static_assert(kTransposeRows == kPageTokens, "a block is a page");
/// The rows beyond a quarter: a margin for rows that codes rank wrong.
constexpr std::int64_t kSpareRows = 64;

KvView shape_of(const RetrievalHeadConfig& head) {
  const std::int64_t row_bytes = head.head_dim * static_cast<std::int64_t>(sizeof(std::uint16_t));
  return {.pages = nullptr,
          .positions = nullptr,
          .num_rows = 0,
          .num_kv_heads = head.num_kv_heads,
          .head_dim = head.head_dim,
          .dtype = DType::kBF16,
          .kv_stride = 0,
          .head_stride = kPageTokens * row_bytes,
          .token_stride = row_bytes,
          .sorted = false};
}

std::int64_t block_bytes(const RetrievalHeadConfig& head) {
  return kTransposeRows * head.key_dim() * static_cast<std::int64_t>(sizeof(std::uint16_t));
}

}  // namespace

std::int64_t HeadKeys::bytes_for(const RetrievalHeadConfig& head, std::int64_t rows) {
  return (rows + kTransposeRows - 1) / kTransposeRows * block_bytes(head);
}

std::int64_t HeadKeys::bytes() const { return count_of(memory_) * block_bytes(head_.config()); }

HeadKeys::HeadKeys(DevicePool& device, const RetrievalHead& head)
    : device_(device), head_(head), has_codes_(KeyCodes::pay(shape_of(head.config()))) {}

/// Returns the address of a pair of channels of a row, in blocks [kv_heads][row][channel] or
/// TransposedRows.
std::uint16_t* HeadKeys::pair_at(std::int64_t row, std::int32_t kv_head, std::int32_t pair) const {
  const std::int32_t dim = head_.config().head_dim;
  auto* block = reinterpret_cast<std::uint16_t*>(memory_[at(row / kTransposeRows)].data());
  return block + (has_codes_ ? (kv_head * kPageTokens + row % kPageTokens) * dim + 2 * pair
                             : transposed_at(dim / 2, kv_head, pair, row));
}

Status HeadKeys::append(const float* raw, std::span<const std::int32_t> positions) {
  const RetrievalHeadConfig& c = head_.config();
  const auto n = count_of(positions);
  rotated_.resize(to_size(n * c.key_dim()));
  QUIRE_RETURN_IF_ERROR(rope_rotate(head_.rope(), {.x = raw,
                                                   .out = rotated_.data(),
                                                   .positions = positions.data(),
                                                   .rows = n,
                                                   .num_heads = c.num_kv_heads,
                                                   .ldx = c.key_dim(),
                                                   .ldo = c.key_dim()}));
  while (count_of(memory_) * kTransposeRows < num_rows() + n) {
    QUIRE_ASSIGN_OR_RETURN(PoolMemory block, device_.allocate(block_bytes(c)));
    blocks_.push_back(reinterpret_cast<const std::uint16_t*>(block.data()));
    pages_.push_back(block.data());
    memory_.push_back(std::move(block));
  }
  const std::int32_t pairs = c.head_dim / 2;
  const float* key = rotated_.data();
  for (std::int64_t row = num_rows(); row < num_rows() + n; ++row) {
    for (std::int32_t m = 0; m < c.num_kv_heads; ++m) {
      for (std::int32_t p = 0; p < pairs; ++p, key += 2) {
        std::uint16_t* to = pair_at(row, m, p);
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

KvView HeadKeys::rows() const {
  KvView rows = shape_of(head_.config());
  rows.pages = pages_.data();
  rows.positions = positions_.data();
  rows.num_rows = num_rows();
  rows.sorted = sorted_;
  return rows;
}

Status HeadKeys::score(const float* query, std::int32_t position, std::int32_t target_kv_heads,
                       std::int64_t chosen, const std::vector<bool>* heads,
                       std::vector<float>& scores) {
  const std::int32_t num_heads = head_.config().num_heads;
  if (!has_codes_)
    return head_scores(TransposedHeadScoresArgs{.query = query,
                                                .position = position,
                                                .num_heads = num_heads,
                                                .keys = view(),
                                                .target_kv_heads = target_kv_heads,
                                                .heads = heads},
                       scores);
  const std::int64_t most = chosen + chosen / 4 + kSpareRows;
  // Codes do not pay for few rows.
  if (num_rows() <= 2 * most)
    return head_scores(HeadScoresArgs{.query = query,
                                      .position = position,
                                      .num_heads = num_heads,
                                      .keys = rows(),
                                      .target_kv_heads = target_kv_heads},
                       scores);
  QUIRE_RETURN_IF_ERROR(codes_.extend(rows(), num_rows()));
  return head_scores(CodedHeadScoresArgs{.query = query,
                                         .position = position,
                                         .num_heads = num_heads,
                                         .keys = rows(),
                                         .codes = codes_,
                                         .most = most,
                                         .target_kv_heads = target_kv_heads,
                                         .heads = heads},
                     scores);
}

TransposedKeys HeadKeys::view() const {
  return {{blocks_.data(), num_rows(), head_.config().num_kv_heads, head_.config().head_dim / 2},
          positions_.data(),
          sorted_};
}

}  // namespace quire
