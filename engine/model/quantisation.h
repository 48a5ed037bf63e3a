/// Quantisation says how the matrices of a model folder are stored, by its quantization_config.
/// Internal to engine/model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"
#include "engine/model/compressed_folder.h"
#include "engine/model/four_bit_folder.h"

namespace quire {

using Quantisation = std::variant<FourBitLayout, CompressedLayout>;

/// Reads a quantization_config through `in`. Errors go to `in`: other methods, and those of the
/// method's own reader.
Quantisation read_quantisation(JsonFields& in);

/// Returns what a config.json says that load_model_config() accepted; none without
/// quantization_config.
Result<std::optional<Quantisation>> quantisation_of(std::string_view config_json);

/// Makes the source of a folder's tensors. The folder must outlive it.
std::unique_ptr<WeightSource> quantised_weights(const TensorFolder& folder, std::string location,
                                                const Quantisation& quantisation);

}  // namespace quire
