/// This file names strategies: one plug per socket, and what a request may set for each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/api/plan.h"
#include "engine/plug/option_table.h"

namespace quire {

struct Strategy {
  std::string_view name;
  std::string_view selector, recomputer;
  /// Words of the option `recompute` and the plug that each selects; the first is `recomputer`.
  /// Empty: there is no such option.
  std::vector<std::pair<std::string_view, std::string_view>> recompute_choices = {};
  bool positions_selectable = false;  ///< a request may set cache.positions
  /// True if it may drop blocks, so that it also serves prompts longer than the window (compact
  /// positions).
  bool sparse = false;
  bool same_as_recompute = false;  ///< its output equals that of a full prefill, token for token
  bool takes_keep_ratio = false, takes_recompute_ratio = false;
  /// Shares of the documents' tokens that it usually loads and recomputes, for predictions before
  /// anything runs.
  double typical_load = 1, typical_recompute = 0;
  std::string_view summary;
};

/// Lists the strategies of this build, without "auto".
const std::vector<Strategy>& strategies();
/// Returns the strategy with this name. Errors: kInvalidArgument (field cache.strategy), listing
/// the known names.
Result<Strategy> find_strategy(std::string_view name);

/// Returns the recomputer that these options select.
std::string_view recomputer_of(const Strategy& strategy, const PlugOptions& options);
/// Returns whether the options name a recomputer, or set what only the strategy's own reads.
bool names_recomputer(const Strategy& strategy, const PlugOptions& options);
/// Returns the tables of all options that cache.options may set under this strategy with the
/// recomputer they select. The compressor's options are not included.
std::vector<std::span<const PlugOption>> option_tables(const Strategy& strategy,
                                                       const PlugOptions& options);

/// The options of cache.decode `auto`: those that every retriever it may resolve to interprets
/// alike.
struct AutoDecodeOptions {
  std::int64_t budget = 2048;
};
const OptionTable<AutoDecodeOptions>& auto_decode_options();

/// Inputs of the `auto` decision.
struct AutoInput {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, small_context_tokens = 0;
  /// An approximate strategy that is shown to be good enough with this model.
  std::optional<std::string> certified_strategy;
  std::string certified_because;  ///< how: "passed the fidelity test of this model"
  std::string not_certified;      ///< why there is none; empty: nothing has passed
  /// Predicted ms until the first token, from measured speeds; 0: unknown.
  double recompute_ms = 0, exact_ms = 0, certified_ms = 0;
};
struct AutoChoice {
  std::string strategy;
  std::string reason;
  bool certified = false;  ///< it is the certified strategy
};
/// Chooses the certified strategy, else `exact`, and `recompute` if loading takes longer than
/// computing. Short prompts are answered exactly, because little can be saved. It never chooses an
/// approximation without evidence.
AutoChoice choose_strategy(const AutoInput& input);

/// Checks names, ranges and combinations of CacheOptions before anything is looked up. Errors:
/// kInvalidArgument, field cache.*.
Status validate(const CacheOptions& options);

}  // namespace quire
