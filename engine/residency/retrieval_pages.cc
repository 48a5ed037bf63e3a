#include "engine/residency/retrieval_pages.h"

#include <algorithm>

#include "base/index.h"

namespace quire {

RetrievalPages::Key RetrievalPages::key_of(std::int32_t position) const {
  const auto after = std::upper_bound(
      contexts_.begin(), contexts_.end(), position,
      [](std::int64_t p, const ContextRows& c) { return p < c.first_position; });
  if (after == contexts_.begin()) return {0, position / page_tokens_};
  const ContextRows& context = after[-1];
  const std::int64_t index = after - contexts_.begin(),
                     end = context.first_position + context.num_tokens;
  if (position < end) return {2 * index - 1, (position - context.first_position) / page_tokens_};
  return {2 * index, (position - end) / page_tokens_};
}

void RetrievalPages::extend(std::span<const std::int32_t> positions) {
  for (; num_rows_ < count_of(positions); ++num_rows_) {
    const Key key = key_of(positions[at(num_rows_)]);
    if (pages_.empty() || full(pages_.back()) || !(key == last_))
      pages_.push_back({num_rows_, num_rows_});
    ++pages_.back().end;
    last_ = key;
  }
}

}  // namespace quire
