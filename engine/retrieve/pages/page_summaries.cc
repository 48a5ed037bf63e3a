#include "engine/retrieve/pages/page_summaries.h"

#include <algorithm>

namespace quire {

Status PageSummaries::append(const KvView& kv, std::span<const RowRange> pages,
                             PageSummary summary) {
  const std::int64_t dim = kv.head_dim, heads = kv.num_kv_heads;
  std::vector<std::uint16_t> bounds(pages.size() * static_cast<std::size_t>(heads * 2 * dim));
  QUIRE_RETURN_IF_ERROR(page_bounds(
      {kv, pages.data(), static_cast<std::int64_t>(pages.size()), bounds.data(), summary}));
  num_kv_heads_ = kv.num_kv_heads;
  head_dim_ = kv.head_dim;
  const std::uint16_t* from = bounds.data();
  for (std::size_t i = 0; i < pages.size(); ++i, ++num_pages_) {
    if (num_pages_ % kTransposeRows == 0) {
      memory_.push_back(std::make_unique<std::uint16_t[]>(
          static_cast<std::size_t>(heads * dim * kTransposeRows * 2)));
      blocks_.push_back(memory_.back().get());
    }
    for (std::int64_t m = 0; m < heads; ++m, from += 2 * dim) {
      std::uint16_t* to = memory_.back().get() + transposed_at(head_dim_, m, 0, num_pages_);
      for (std::int64_t c = 0; c < dim; ++c) {
        to[c * kTransposeRows * 2] = from[c];
        to[c * kTransposeRows * 2 + 1] = from[dim + c];
      }
    }
  }
  return {};
}

Status PageSummaries::score(std::int32_t kv_head, const float* query, std::int32_t group,
                            std::int32_t begin, std::int32_t end, float scale,
                            float* scores) const {
  // Positive components multiply the high values, negative ones the low values.
  thread_local std::vector<float> pairs;
  pairs.resize(static_cast<std::size_t>(group) * static_cast<std::size_t>(head_dim_) * 2);
  for (std::size_t i = 0; i < pairs.size() / 2; ++i) {
    pairs[2 * i] = std::min(query[i], 0.0f);
    pairs[2 * i + 1] = std::max(query[i], 0.0f);
  }
  return transposed_scores({pairs.data(),
                            {blocks_.data(), num_pages_, num_kv_heads_, head_dim_},
                            begin,
                            end - begin,
                            kv_head,
                            1,
                            group,
                            scale,
                            scores,
                            end - begin});
}

}  // namespace quire
