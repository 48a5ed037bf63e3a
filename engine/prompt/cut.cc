#include "engine/prompt/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "base/index.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

constexpr std::int64_t kUsualCapacity = 2048;

/// Takes tokens one by one until there are enough.
class Taken {
 public:
  Taken(std::span<const std::uint8_t> cuttable, std::int64_t most)
      : cuttable_(cuttable), most_(most), taken_(cuttable.size(), 0) {}

  bool full() const { return count_ >= most_; }
  std::int64_t left() const { return most_ - count_; }
  void take(std::int64_t token) {
    if (full() || token < 0 || token >= count_of(taken_) || !cuttable_[at(token)] ||
        taken_[at(token)])
      return;
    taken_[at(token)] = 1;
    ++count_;
  }
  std::int64_t missing_of(const RowRange& s) const {
    std::int64_t n = 0;
    for (std::int64_t t = s.begin; t < s.end; ++t) n += cuttable_[at(t)] && !taken_[at(t)] ? 1 : 0;
    return n;
  }
  std::vector<std::int32_t> ascending() const {
    std::vector<std::int32_t> out;
    for (std::size_t t = 0; t < taken_.size(); ++t) {
      if (taken_[t]) out.push_back(static_cast<std::int32_t>(t));
    }
    return out;
  }

 private:
  const std::span<const std::uint8_t> cuttable_;
  const std::int64_t most_;
  std::vector<std::uint8_t> taken_;
  std::int64_t count_ = 0;
};

}  // namespace

OptionFields<CutOptions> cut_options() {
  return {
      number_option("capacity", &CutOptions::capacity, {1, 1e7}, number_text(kUsualCapacity),
                    "tokens of uncached text that the target sees, the window among them"),
      number_option("keep_ratio", &CutOptions::keep_ratio, {0, 1},
                    "share of the uncached text's tokens that stay, in the place of capacity; 0: "
                    "as capacity says"),
      number_option("window", &CutOptions::window, {1, 4096},
                    "last tokens of the prompt, which always stay; fewer than capacity"),
  };
}

Status CutOptions::finish(std::string_view field) const {
  if (keep_ratio > 0) {
    if (!capacity) return {};
    return Status::invalid(std::string(field) + ".keep_ratio",
                           "stands in the place of capacity: give one of the two");
  }
  const std::int64_t most = capacity.value_or(kUsualCapacity);
  if (most > window) return {};
  return Status::invalid(std::string(field) + ".capacity",
                         "is " + std::to_string(most) + " and must be above window, " +
                             std::to_string(window) + ": the window's tokens always stay");
}

std::int64_t CutOptions::capacity_of(std::int64_t tokens) const {
  if (keep_ratio <= 0) return capacity.value_or(kUsualCapacity);
  const auto share = static_cast<std::int64_t>(
      std::floor(keep_ratio * static_cast<double>(tokens) + 1e-6));
  return std::max(share, window + 1);
}

std::vector<float> smoothed(std::span<const float> scores, Pooling pooling, std::int32_t kernel) {
  std::vector<float> out(scores.begin(), scores.end());
  if (pooling == Pooling::kNone || kernel <= 1) return out;
  const auto n = count_of(scores);
  const std::int64_t before = (kernel - 1) / 2, after = kernel - 1 - before;
  for (std::int64_t j = 0; j < n; ++j) {
    const auto begin = scores.begin() + std::max<std::int64_t>(0, j - before),
               end = scores.begin() + std::min(n, j + after + 1);
    out[at(j)] = pooling == Pooling::kMax
                     ? std::max(0.0f, *std::max_element(begin, end))
                     : std::accumulate(begin, end, 0.0f) / static_cast<float>(kernel);
  }
  return out;
}

std::vector<std::int32_t> kept_tokens(const CuttablePrompt& prompt, const CutSettings& settings) {
  const auto n = count_of(prompt.cuttable);
  Taken taken(prompt.cuttable, settings.capacity);
  for (std::int64_t t = std::max<std::int64_t>(0, n - settings.window); t < n; ++t) taken.take(t);
  for (const RowRange& s : prompt.stays) {
    if (taken.missing_of(s) > taken.left()) continue;
    for (std::int64_t t = s.begin; t < s.end; ++t) taken.take(t);
  }
  std::vector<float> ranked = smoothed(prompt.scores, settings.pooling, settings.kernel);
  for (std::size_t t = 0; t < ranked.size(); ++t) {
    if (!prompt.cuttable[t]) ranked[t] = -std::numeric_limits<float>::infinity();
  }
  const std::int64_t before = (settings.neighbors - 1) / 2, after = settings.neighbors - 1 - before;
  for (const std::int32_t peak : top_k(ranked, settings.capacity)) {
    if (taken.full()) break;
    taken.take(peak);
    for (std::int64_t distance = 1; distance <= std::max(before, after); ++distance) {
      if (distance <= before) taken.take(peak - distance);
      if (distance <= after) taken.take(peak + distance);
    }
  }
  return taken.ascending();
}

}  // namespace quire
