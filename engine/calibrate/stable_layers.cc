#include "engine/calibrate/stable_layers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/index.h"

namespace quire {
namespace {

/// Ranks by alpha, 0 = smallest; blocks without a fit come last.
void add_ranks(std::span<const BlockStats> blocks, std::vector<std::int64_t>& ranks) {
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto alpha = [&blocks](std::size_t b) {
    return std::isfinite(blocks[b].alpha) ? blocks[b].alpha : INFINITY;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return alpha(a) < alpha(b); });
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    ranks[order[rank]] += static_cast<std::int64_t>(rank);
}

/// Whether the block's alpha lies more than 3 standard deviations below the mean of its layer.
bool stands_out(std::span<const BlockStats> blocks, std::size_t block) {
  double count = 0, sum = 0, squares = 0;
  for (const BlockStats& b : blocks) {
    if (!std::isfinite(b.alpha)) continue;
    count += 1;
    sum += b.alpha;
  }
  const double mean = sum / count;
  for (const BlockStats& b : blocks) {
    if (std::isfinite(b.alpha)) squares += (b.alpha - mean) * (b.alpha - mean);
  }
  return double{blocks[block].alpha} < mean - 3.0 * std::sqrt(squares / count);
}

}  // namespace

bool StableLayerCalibration::add(std::span<const BlockStats> stats, std::int32_t num_blocks) {
  const auto blocks = to_size(num_blocks);
  if (num_blocks < kCalibrationBlocks || stats.size() != scores_.size() * blocks) return false;
  std::vector<std::int64_t> ranks(blocks, 0);
  for (std::size_t layer = 0; layer < scores_.size(); ++layer)
    add_ranks(stats.subspan(layer * blocks, blocks), ranks);
  // The sum of ranks orders blocks as their mean does.
  const auto best = to_size(std::min_element(ranks.begin(), ranks.end()) - ranks.begin());
  for (std::size_t layer = 0; layer < scores_.size(); ++layer)
    scores_[layer] += stands_out(stats.subspan(layer * blocks, blocks), best);
  ++documents_;
  return true;
}

bool StableLayerCalibration::add(const SketchView& sketch) {
  if (!sketch.has(kSketchStats) || static_cast<std::size_t>(sketch.num_layers()) != scores_.size())
    return false;
  std::vector<BlockStats> stats;
  for (std::int32_t layer = 0; layer < sketch.num_layers(); ++layer) {
    for (std::int32_t block = 0; block < sketch.num_blocks(); ++block)
      stats.push_back(sketch.stats(layer, block));
  }
  return add(stats, sketch.num_blocks());
}

Result<StableLayers> StableLayerCalibration::result() const {
  if (documents_ == 0) {
    return Status::precondition("no document has the " + std::to_string(kCalibrationBlocks) +
                                " blocks that calibration needs: give longer ones");
  }
  const auto layers = static_cast<std::int32_t>(scores_.size());
  const std::int64_t highest = *std::max_element(scores_.begin(), scores_.end());
  for (std::int32_t layer = layers - (layers + 3) / 4; highest > 0 && layer < layers; ++layer) {
    if (2 * scores_[at(layer)] >= highest) return StableLayers{layer, layers - 1};
  }
  return Status::precondition(
      "no layer of the last quarter singles out a block in these documents: the default stays");
}

std::string stable_layers_record(const Digest& fingerprint) {
  return "stable-layers/" + fingerprint.hex();
}

std::string encode_stable_layers(const StableLayers& layers, std::int64_t documents) {
  return "1 " + std::to_string(layers.first) + " " + std::to_string(layers.last) + " " +
         std::to_string(documents);
}

Result<StableLayers> decode_stable_layers(std::string_view text, std::int32_t num_layers) {
  std::int64_t fields[4] = {};
  const char *at = text.data(), *end = text.data() + text.size();
  for (std::size_t i = 0; i < 4; ++i) {
    if (i > 0 && (at == end || *at++ != ' '))
      return Status::corruption("stable layers: a field is missing");
    const auto [next, error] = std::from_chars(at, end, fields[i]);
    if (error != std::errc()) return Status::corruption("stable layers: a field is not a number");
    at = next;
  }
  if (at != end || fields[0] != 1)
    return Status::corruption("stable layers: unknown version or text behind the fields");
  if (fields[1] < 0 || fields[1] > fields[2] || fields[2] >= num_layers || fields[3] < 1)
    return Status::corruption("stable layers: outside the model");
  return StableLayers{static_cast<std::int32_t>(fields[1]), static_cast<std::int32_t>(fields[2])};
}

Status save_stable_layers(Store& store, const Digest& fingerprint, const StableLayers& layers,
                          std::int64_t documents) {
  return store.put_meta(stable_layers_record(fingerprint), encode_stable_layers(layers, documents));
}

Result<StableLayers> load_stable_layers(Store& store, const Digest& fingerprint,
                                        std::int32_t num_layers) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, store.get_meta(stable_layers_record(fingerprint)));
  return decode_stable_layers(text, num_layers);
}

}  // namespace quire
