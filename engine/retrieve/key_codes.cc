#include "engine/retrieve/key_codes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/index.h"
#include "kernels/choice/page_bounds.h"

namespace quire {
namespace {

constexpr std::int64_t kRangeRows = 1024;  ///< rows scanned by one thread
constexpr std::int64_t kAnswerBlocks = 8;
constexpr float kLargestCode = 255;

}  // namespace

/// Finds the least and the largest key of each channel.
Status KeyCodes::find_ranges(const KvView& kv, std::int64_t end) {
  num_kv_heads_ = kv.num_kv_heads;
  head_dim_ = kv.head_dim;
  const auto dim = to_size(kv.head_dim), width = to_size(kv.num_kv_heads) * dim;
  std::vector<RowRange> ranges;
  for (std::int64_t row = 0; row < end; row += kRangeRows)
    ranges.push_back({row, std::min(end, row + kRangeRows)});
  std::vector<std::uint16_t> bounds(ranges.size() * 2 * width);
  QUIRE_RETURN_IF_ERROR(
      page_bounds({kv, ranges.data(), count_of(ranges), bounds.data(), PageSummary::kExtremes}));
  lows_.resize(width);
  steps_.resize(width);
  for (std::size_t i = 0; i < width; ++i) {
    const std::size_t at = i / dim * 2 * dim + i % dim;
    float low = bf16_to_f32(bounds[at]), high = bf16_to_f32(bounds[at + dim]);
    for (std::size_t s = 1; s < ranges.size(); ++s) {
      low = std::min(low, bf16_to_f32(bounds[s * 2 * width + at]));
      high = std::max(high, bf16_to_f32(bounds[s * 2 * width + at + dim]));
    }
    lows_[i] = low;
    steps_[i] = (high - low) / kLargestCode;
  }
  return {};
}

/// Allocates a prompt's blocks in one piece, and an answer's in pieces of kAnswerBlocks.
Status KeyCodes::make_room(std::int64_t rows) {
  const std::int64_t have = count_of(blocks_), missing = (rows + kCodeRows - 1) / kCodeRows - have;
  if (missing <= 0) return {};
  const std::int64_t more = std::max(missing, have > 0 ? kAnswerBlocks : 1);
  HostSlab slab(to_size(more * block_bytes()));
  if (slab.data() == nullptr)
    return Status::exhausted("the system gives no memory for codes of keys (" +
                             std::to_string(more * block_bytes()) + " bytes asked)");
  for (std::int64_t b = 0; b < more; ++b)
    blocks_.push_back(static_cast<std::uint8_t*>(slab.data()) + b * block_bytes());
  memory_.push_back(std::move(slab));
  return {};
}

Status KeyCodes::extend(const KvView& kv, std::int64_t end) {
  if (end <= num_rows_) return {};
  if (num_rows_ == 0) QUIRE_RETURN_IF_ERROR(find_ranges(kv, end));
  QUIRE_RETURN_IF_ERROR(make_room(end));
  QUIRE_RETURN_IF_ERROR(
      key_codes({kv, num_rows_, end, lows_.data(), steps_.data(), blocks_.data()}));
  num_rows_ = end;
  return {};
}

float KeyCodes::constant(std::int32_t kv_head, const float* query, float scale) const {
  const float* lows = lows_.data() + std::int64_t{kv_head} * head_dim_;
  float sum = 0;
  for (std::int32_t c = 0; c < head_dim_; ++c) sum += query[c] * lows[c];
  return scale * sum;
}

Status KeyCodes::score(std::int32_t kv_head, const float* query, std::int32_t group, float scale,
                       std::span<const std::int32_t> rows, float* scores) const {
  const auto n = count_of(rows);
  return code_scores({query,
                      group,
                      head_dim_,
                      scale,
                      {blocks_.data(), steps_.data(), num_rows_, num_kv_heads_, head_dim_},
                      kv_head,
                      rows.data(),
                      n,
                      scores,
                      n});
}

Status KeyCodes::score_all(std::int32_t kv_head, const float* query, std::int32_t group,
                           float scale, float* scores) const {
  return code_scores({query,
                      group,
                      head_dim_,
                      scale,
                      {blocks_.data(), steps_.data(), num_rows_, num_kv_heads_, head_dim_},
                      kv_head,
                      nullptr,
                      num_rows_,
                      scores,
                      num_rows_});
}

}  // namespace quire
