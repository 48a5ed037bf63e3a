#include "engine/prompt/retokenization.h"

#include <algorithm>
#include <string>

#include "base/index.h"

namespace quire {

Retokenization::Retokenization(const Tokenizer& from, std::span<const std::int32_t> ids,
                               const Tokenizer& to) {
  std::string text;
  for (const std::int32_t id : ids) {
    const auto begin = static_cast<std::uint32_t>(text.size());
    if (!from.is_special(id)) text += from.token_bytes(id);
    from_spans_.push_back({begin, static_cast<std::uint32_t>(text.size())});
  }
  if (from.strips_first_space() && text.starts_with(' ')) {
    // The space that encoding adds in front is not part of the text.
    text.erase(0, 1);
    for (TokenSpan& span : from_spans_)
      span = {span.begin - std::min(span.begin, 1u), span.end - std::min(span.end, 1u)};
  }
  if (to.add_bos() && to.bos_id()) {
    ids_.push_back(*to.bos_id());
    to_spans_.push_back({0, 0});
  }
  Encoding encoded = to.encode_with_offsets(text, Special::kNone, Start::kText);
  ids_.insert(ids_.end(), encoded.ids.begin(), encoded.ids.end());
  to_spans_.insert(to_spans_.end(), encoded.spans.begin(), encoded.spans.end());
}

std::vector<float> Retokenization::bring_back(std::span<const float> scores) const {
  std::vector<float> out(from_spans_.size(), 0.0f);
  std::size_t first = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const TokenSpan& own = from_spans_[i];
    while (first < to_spans_.size() && to_spans_[first].end <= own.begin) ++first;
    for (std::size_t j = first; j < to_spans_.size() && to_spans_[j].begin < own.end; ++j) {
      if (to_spans_[j].end > own.begin) out[i] = std::max(out[i], scores[j]);
    }
  }
  return out;
}

std::vector<RowRange> Retokenization::bring_over(std::span<const RowRange> ranges) const {
  std::vector<RowRange> out;
  std::size_t first = 0;
  for (const RowRange& s : ranges) {
    if (s.end <= s.begin) continue;
    const TokenSpan bytes{from_spans_[at(s.begin)].begin, from_spans_[at(s.end - 1)].end};
    if (bytes.end <= bytes.begin) continue;
    while (first < to_spans_.size() && to_spans_[first].end <= bytes.begin) ++first;
    std::size_t end = first;
    while (end < to_spans_.size() && to_spans_[end].begin < bytes.end) ++end;
    if (end == first) continue;
    const RowRange own{static_cast<std::int64_t>(first), static_cast<std::int64_t>(end)};
    // Two ranges may end and begin within one token.
    if (!out.empty() && out.back().end >= own.begin)
      out.back().end = std::max(out.back().end, own.end);
    else
      out.push_back(own);
  }
  return out;
}

}  // namespace quire
