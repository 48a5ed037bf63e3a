/// A strategy with settings, in the form of the command line: "samkv:bias=off,keep_ratio=0.3".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/api/plan.h"

namespace quire {

struct StrategySpec {
  std::string text;          ///< canonical form with settings sorted by name; it names the rows
  std::string strategy;      ///< the part before the colon
  CacheOptions cache;        ///< checked by the engine's own rules
  bool approximate = false;  ///< its output may differ from full recompute
  bool default_settings() const { return text == strategy; }
  /// Returns whether `auto` runs what was measured. It takes over the strategy with its ratios,
  /// positions and options, while compression, decoding and dedupe stay the request's: what was
  /// measured with other ones than the default says nothing of that.
  bool auto_applies() const;
};

/// Parses NAME or NAME:key=value,key=value. Keys: positions (aligned, naive, parallel or compact),
/// keep_ratio, recompute_ratio, compress, decode, prompt_compression, dedupe (on, off).
/// prompt_compression.KEY is a setting of the prompt's compression; any other key is an option of
/// the strategy's plugs. Errors: kInvalidArgument, field "strategies".
Result<StrategySpec> parse_strategy_spec(std::string_view text);
/// Parses specs separated by commas. A part with '=' and without a colon belongs to the settings of
/// the previous spec. Errors: those above; a duplicate spec; no spec.
Result<std::vector<StrategySpec>> parse_strategy_list(std::string_view text);

}  // namespace quire
