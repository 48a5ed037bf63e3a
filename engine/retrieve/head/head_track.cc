#include "engine/retrieve/head/head_track.h"

#include <algorithm>

#include "base/index.h"

namespace quire {

void HeadTrack::take(std::int32_t layer, std::span<const std::int32_t> rows, const float* x) {
  if (rows.empty()) return;
  const auto hidden = to_size(head_->config().hidden_size), dim = to_size(head_->feature_dim());
  const std::size_t needed = (to_size(rows.back()) + 2) * dim;
  if (features_.size() < needed) features_.resize(needed, 0.0f);
  const auto layers = head_->feature_layers();
  for (std::size_t part = 0; part < layers.size(); ++part) {
    if (layers[part] != layer) continue;
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy_n(x + i * hidden, hidden,
                  features_.data() + (to_size(rows[i]) + 1) * dim + part * hidden);
  }
}

void HeadTrack::append(std::span<const std::int32_t> token_ids,
                       std::span<const std::int32_t> positions) {
  token_ids_.insert(token_ids_.end(), token_ids.begin(), token_ids.end());
  positions_.insert(positions_.end(), positions.begin(), positions.end());
}

Status HeadTrack::add_computed(std::span<const std::int32_t> token_ids,
                               std::span<const std::int32_t> positions) {
  if (token_ids.empty()) return {};
  if (head_ == nullptr) {
    append(token_ids, positions);
    return {};
  }
  const auto key_dim = to_size(head_->config().key_dim()), dim = to_size(head_->feature_dim());
  const std::size_t before = keys_.size();
  keys_.resize(before + token_ids.size() * key_dim);
  const bool featured = input_ == HeadInput::kFeature;
  if (featured) {
    features_.resize(std::max(features_.size(), (token_ids.size() + 1) * dim), 0.0f);
    if (last_feature_.empty())
      std::fill_n(features_.begin(), dim, 0.0f);
    else
      std::copy(last_feature_.begin(), last_feature_.end(), features_.begin());
  }
  if (Status s = head_->project(token_ids, featured ? features_.data() : nullptr, nullptr,
                                keys_.data() + before);
      !s.ok()) {
    keys_.resize(before);
    return s;
  }
  append(token_ids, positions);
  if (featured) {
    const auto last = features_.begin() + static_cast<std::ptrdiff_t>(token_ids.size() * dim);
    last_feature_.assign(last, last + static_cast<std::ptrdiff_t>(dim));
    features_.clear();
  }
  return {};
}

Status HeadTrack::add_embedded(std::span<const std::int32_t> token_ids,
                               std::span<const std::int32_t> positions) {
  if (head_ == nullptr) return add_computed(token_ids, positions);
  std::vector<float> keys(token_ids.size() * to_size(head_->config().key_dim()));
  QUIRE_RETURN_IF_ERROR(head_->project(token_ids, nullptr, nullptr, keys.data()));
  add_known(token_ids, positions, keys);
  return {};
}

void HeadTrack::add_known(std::span<const std::int32_t> token_ids,
                          std::span<const std::int32_t> positions, std::span<const float> keys) {
  QUIRE_CHECK(
      head_ != nullptr && keys.size() == token_ids.size() * to_size(head_->config().key_dim()),
      "a key for every token");
  append(token_ids, positions);
  keys_.insert(keys_.end(), keys.begin(), keys.end());
  last_feature_.clear();
}

}  // namespace quire
