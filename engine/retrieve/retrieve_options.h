/// This file declares the options that retrievers share, once for all of them.
#pragma once

#include <cstdint>

#include "engine/plug/option_table.h"
#include "engine/retrieve/fixed_rows.h"

namespace quire {

/// The base of retrievers' options. A derived struct sets its own defaults.
struct RetrieveOptions {
  std::int32_t budget = 2048;     ///< tokens a step attends to in a layer
  FixedRows sink, window;         ///< first and last tokens that are always attended to
  std::int32_t dense_layers = 0;  ///< number of first layers that attend to everything
};

inline OptionField<RetrieveOptions> budget_option(
    OptionRange range,
    std::string_view summary = "tokens a step attends to in a layer, sinks and window among them") {
  return number_option("decode_budget", &RetrieveOptions::budget, range, summary);
}
inline OptionField<RetrieveOptions> sink_option() {
  return fixed_rows_option("decode_sink", &RetrieveOptions::sink, {0, 1 << 20},
                           "first tokens that are always attended to");
}
inline OptionField<RetrieveOptions> window_option(
    std::string_view summary = "last tokens that are always attended to") {
  return fixed_rows_option("decode_window", &RetrieveOptions::window, {0, 1 << 20}, summary);
}
inline OptionField<RetrieveOptions> dense_layers_option() {
  return number_option("decode_dense_layers", &RetrieveOptions::dense_layers, {0, 1024},
                       "first layers that attend to everything");
}

}  // namespace quire
