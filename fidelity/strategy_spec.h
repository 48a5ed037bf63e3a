/// A strategy with settings, as written on the command line: "samkv:bias=off,keep_ratio=0.3".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/api/plan.h"

namespace quire {

struct StrategySpec {
  std::string text;          ///< canonical: settings sorted by name; the name of the rows
  std::string strategy;      ///< what stands before the colon
  CacheOptions cache;        ///< checked by the engine's own rules
  bool approximate = false;  ///< its output may differ from full recompute
  bool default_settings() const { return text == strategy; }
};

/// NAME or NAME:key=value,key=value. Keys: positions (aligned, naive or compact), keep_ratio,
/// recompute_ratio, compress, decode, prompt_compression, dedupe (on, off); prompt_compression.KEY
/// is a setting of the prompt's compression; any other key is an option of the strategy's plugs.
/// Errors: kInvalidArgument, field "strategies".
Result<StrategySpec> parse_strategy_spec(std::string_view text);
/// Specs separated by commas; a part with '=' and no colon goes on with the settings of the spec
/// before it. Errors: as above; twice the same spec; none at all.
Result<std::vector<StrategySpec>> parse_strategy_list(std::string_view text);

}  // namespace quire
