#include "engine/prompt/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/topk.h"

namespace quire {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Takes tokens one by one until there are enough.
class Taken {
 public:
  Taken(std::span<const std::uint8_t> cuttable, std::int64_t most)
      : cuttable_(cuttable), most_(most), taken_(cuttable.size(), 0) {}

  bool full() const { return count_ >= most_; }
  std::int64_t left() const { return most_ - count_; }
  void take(std::int64_t token) {
    if (full() || token < 0 || token >= static_cast<std::int64_t>(taken_.size()) ||
        !cuttable_[at(token)] || taken_[at(token)])
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

std::vector<PlugOption> cut_options() {
  return {
      {.name = "capacity",
       .default_value = "2048",
       .least = 1,
       .most = 1e7,
       .summary = "tokens of uncached text that the target sees, the window among them"},
      {.name = "keep_ratio",
       .default_value = "0",
       .least = 0,
       .most = 1,
       .summary = "share of the uncached text's tokens that stay, in the place of capacity; 0: as "
                  "capacity says"},
      {.name = "window",
       .default_value = "64",
       .least = 1,
       .most = 4096,
       .summary = "last tokens of the prompt, which always stay; fewer than capacity"},
  };
}

Status check_cut(std::span<const PlugOption> table, const PlugOptions& options) {
  for (const PlugOption& o : table) {
    if (!o.values.empty() || o.name == "keep_ratio") continue;
    const double x = options.number(table, o.name);
    if (x != std::floor(x))
      return Status::invalid("cache.prompt_compression." + std::string(o.name),
                             "must be a whole number");
  }
  if (options.number(table, "keep_ratio") > 0) {
    if (!options.given().contains("capacity")) return {};
    return Status::invalid("cache.prompt_compression.keep_ratio",
                           "stands in the place of capacity: give one of the two");
  }
  const auto capacity = static_cast<std::int64_t>(options.number(table, "capacity")),
             window = static_cast<std::int64_t>(options.number(table, "window"));
  if (capacity > window) return {};
  return Status::invalid("cache.prompt_compression.capacity",
                         "is " + std::to_string(capacity) + " and must be above window, " +
                             std::to_string(window) + ": the window's tokens always stay");
}

std::int64_t cut_capacity(std::span<const PlugOption> table, const PlugOptions& options,
                          std::int64_t tokens) {
  const double ratio = options.number(table, "keep_ratio");
  if (ratio <= 0) return static_cast<std::int64_t>(options.number(table, "capacity"));
  const auto share = static_cast<std::int64_t>(
      std::floor(ratio * static_cast<double>(tokens) + 1e-6));
  return std::max(share, static_cast<std::int64_t>(options.number(table, "window")) + 1);
}

std::vector<float> smoothed(std::span<const float> scores, Pooling pooling, std::int32_t kernel) {
  std::vector<float> out(scores.begin(), scores.end());
  if (pooling == Pooling::kNone || kernel <= 1) return out;
  const auto n = static_cast<std::int64_t>(scores.size());
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
  const auto n = static_cast<std::int64_t>(prompt.cuttable.size());
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
