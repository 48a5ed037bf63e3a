/// The best of a stream of rows, in memory for twice as many.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace quire {

/// Rows are offered in ascending order; of equal values the smaller row is better. Values are finite.
class TopRows {
 public:
  /// At most k rows, k >= 1.
  explicit TopRows(std::int64_t k) : k_(static_cast<std::size_t>(k)) {}

  /// No value up to this one is taken any more: once k rows are better or as good, an equal one further behind is not.
  float least() const { return least_; }
  void offer(float value, std::int32_t row) {
    if (!(value > least_)) return;
    values_.push_back(value);
    rows_.push_back(row);
    if (rows_.size() == 2 * k_) cut();
  }
  /// Ascending rows. Nothing is left.
  std::vector<std::int32_t> take() {
    if (rows_.size() > k_) cut();
    values_.clear();
    least_ = -std::numeric_limits<float>::infinity();
    return std::move(rows_);
  }

 private:
  /// Keeps the k best, in their order.
  void cut() {
    sorted_.assign(values_.begin(), values_.end());
    std::nth_element(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(k_ - 1), sorted_.end(), std::greater<>());
    least_ = sorted_[k_ - 1];
    std::int64_t equals = static_cast<std::int64_t>(k_) - std::count_if(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(k_), [this](float x) { return x > least_; });
    std::size_t kept = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      if (values_[i] < least_ || (values_[i] == least_ && equals-- <= 0)) continue;
      values_[kept] = values_[i];
      rows_[kept++] = rows_[i];
    }
    values_.resize(kept);
    rows_.resize(kept);
  }

  const std::size_t k_;
  std::vector<float> values_, sorted_;
  std::vector<std::int32_t> rows_;
  float least_ = -std::numeric_limits<float>::infinity();
};

}  // namespace quire
