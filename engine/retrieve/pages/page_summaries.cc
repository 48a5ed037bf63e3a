#include "engine/retrieve/pages/page_summaries.h"

#include <algorithm>

#include "base/index.h"
#include "engine/retrieve/choosing_memory.h"
#include "kernels/parallel.h"

namespace quire {

Status PageSummaries::extend(Compute& compute, const KvView& kv, std::span<const RowRange> pages,
                             PageSummary summary) {
  if (static_cast<std::int32_t>(pages.size()) == num_pages_) return {};
  num_kv_heads_ = kv.num_kv_heads;
  head_dim_ = kv.head_dim;
  if (memory_ != nullptr) return extend_bounds(compute, kv, pages, summary);
  return extend_transposed(kv, pages.subspan(at(num_pages_)), summary);
}

Result<std::int32_t> PageSummaries::extend_but_one(Compute& compute, const KvView& kv,
                                                   std::span<const RowRange> pages,
                                                   PageSummary summary) {
  const auto complete = static_cast<std::int32_t>(pages.size());
  if (complete == num_pages_ + 1 && complete <= most_pages_) return num_pages_;
  QUIRE_RETURN_IF_ERROR(extend(compute, kv, pages, summary));
  return -1;
}

Status PageSummaries::extend_bounds(Compute& compute, const KvView& kv,
                                    std::span<const RowRange> pages, PageSummary summary) {
  const auto complete = static_cast<std::int32_t>(pages.size());
  // Compute all bounds again: reading the keys is cheaper than copying the old bounds.
  if (complete > most_pages_) {
    most_pages_ = num_pages_ = 0;
    const std::int64_t room = with_room(complete);
    QUIRE_RETURN_IF_ERROR(bounds_.reserve(memory_, values_of(room, kv.num_kv_heads, kv.head_dim)));
    most_pages_ = static_cast<std::int32_t>(room);
  }
  const auto fresh = pages.subspan(at(num_pages_));
  QUIRE_RETURN_IF_ERROR(compute.choice().page_bounds(
      {kv, fresh.data(), count_of(fresh),
       bounds_.data() + values_of(num_pages_, kv.num_kv_heads, kv.head_dim), summary}));
  num_pages_ = complete;
  return {};
}

Status PageSummaries::extend_transposed(const KvView& kv, std::span<const RowRange> pages,
                                        PageSummary summary) {
  const std::int64_t dim = kv.head_dim, heads = kv.num_kv_heads;
  std::vector<std::uint16_t> bounds(pages.size() * to_size(heads * 2 * dim));
  QUIRE_RETURN_IF_ERROR(page_bounds({kv, pages.data(), count_of(pages), bounds.data(), summary}));
  const std::uint16_t* from = bounds.data();
  for (std::size_t i = 0; i < pages.size(); ++i, ++num_pages_) {
    if (num_pages_ % kTransposeRows == 0) {
      blocks_memory_.push_back(
          std::make_unique<std::uint16_t[]>(to_size(heads * dim * kTransposeRows * 2)));
      blocks_.push_back(blocks_memory_.back().get());
    }
    for (std::int64_t m = 0; m < heads; ++m, from += 2 * dim) {
      std::uint16_t* to = blocks_memory_.back().get() + transposed_at(head_dim_, m, 0, num_pages_);
      for (std::int64_t c = 0; c < dim; ++c) {
        to[c * kTransposeRows * 2] = from[c];
        to[c * kTransposeRows * 2 + 1] = from[dim + c];
      }
    }
  }
  return {};
}

Status PageSummaries::score(Compute& compute, const Query& q, float* scores) const {
  const std::int64_t pages = q.end - q.begin;
  if (memory_ != nullptr) {
    return compute.choice().page_scores(
        {q.query, bounds_.data() + values_of(q.begin, num_kv_heads_, head_dim_), pages, pages,
         q.num_heads, num_kv_heads_, head_dim_, q.scale, scores});
  }
  const std::int64_t group = q.num_heads / num_kv_heads_;
  std::vector<std::int64_t> heads;
  for (std::int64_t m = 0; m < num_kv_heads_; ++m) {
    if (q.kv_heads == nullptr || (*q.kv_heads)[at(m)]) heads.push_back(m);
  }
  std::vector<Status> status(heads.size());
  parallel_tasks(count_of(heads), [&](std::int64_t i) {
    const auto at = to_size(i);
    status[at] = score_head(q, heads[at], scores + heads[at] * group * pages);
  });
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  return {};
}

Status PageSummaries::score_head(const Query& q, std::int64_t kv_head, float* scores) const {
  const std::int32_t group = q.num_heads / num_kv_heads_;
  const float* query = q.query + kv_head * group * head_dim_;
  // Positive components multiply the high values, negative ones the low values.
  thread_local std::vector<float> pairs;
  pairs.resize(to_size(group) * to_size(head_dim_) * 2);
  for (std::size_t i = 0; i < pairs.size() / 2; ++i) {
    pairs[2 * i] = std::min(query[i], 0.0f);
    pairs[2 * i + 1] = std::max(query[i], 0.0f);
  }
  return transposed_scores({pairs.data(),
                            {blocks_.data(), num_pages_, num_kv_heads_, head_dim_},
                            q.begin,
                            q.end - q.begin,
                            static_cast<std::int32_t>(kv_head),
                            1,
                            group,
                            q.scale,
                            scores,
                            q.end - q.begin});
}

}  // namespace quire
