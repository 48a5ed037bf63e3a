/// Calibration of a model's stable layers from sketches of documents, and where the result is kept.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "cachestore/format/key.h"
#include "cachestore/store.h"
#include "engine/record/sketch.h"
#include "engine/record/stable_layers.h"

namespace quire {

/// Fewest blocks of a document with which the 3-sigma test can find anything.
inline constexpr std::int32_t kCalibrationBlocks = 11;

/// Scores layers over documents: in each document, the block that ranks lowest by alpha over all
/// layers on average gives a point to every layer in which its alpha lies more than 3 population
/// standard deviations below the layer's mean.
class StableLayerCalibration {
 public:
  explicit StableLayerCalibration(std::int32_t num_layers) : scores_(to_size(num_layers)) {}

  /// False: not counted (too few blocks, no statistics, or of another model).
  bool add(const SketchView& sketch);
  /// The same from bare statistics [num_layers, num_blocks].
  bool add(std::span<const BlockStats> stats, std::int32_t num_blocks);

  std::int64_t documents() const { return documents_; }
  std::span<const std::int64_t> scores() const { return scores_; }
  /// From the first layer of the last quarter that has at least half of the highest score of all
  /// layers, to the last layer. Errors: kFailedPrecondition (no document counted; no layer
  /// qualifies): the default stays.
  Result<StableLayers> result() const;

 private:
  std::vector<std::int64_t> scores_;
  std::int64_t documents_ = 0;
};

/// Returns the name of the model's record in the store: "stable-layers/" and the hex fingerprint.
std::string stable_layers_record(const Digest& fingerprint);
/// Keeps the result in that record, as "1 FIRST LAST DOCUMENTS".
Status save_stable_layers(Store& store, const Digest& fingerprint, const StableLayers& layers,
                          std::int64_t documents);
/// What was kept for this model. Errors: kNotFound (never calibrated), kCorruption (not readable,
/// or outside num_layers), kIo.
Result<StableLayers> load_stable_layers(Store& store, const Digest& fingerprint,
                                        std::int32_t num_layers);

/// Text of a record; for the functions above and their tests.
std::string encode_stable_layers(const StableLayers& layers, std::int64_t documents);
Result<StableLayers> decode_stable_layers(std::string_view text, std::int32_t num_layers);

}  // namespace quire
