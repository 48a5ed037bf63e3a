/// Strategies by name: one plug per socket, and what a request may ask of each.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/api/plan.h"

namespace quire {

struct Strategy {
  std::string_view name;
  std::string_view selector, recomputer;
  /// Words of the option `recompute` and the plug each stands for; the first is `recomputer`.
  /// Empty: there is no such option.
  std::vector<std::pair<std::string_view, std::string_view>> recompute_choices = {};
  bool positions_selectable = false;  ///< a request may set cache.positions
  /// May drop blocks, so it may also serve prompts longer than the window (compact positions)
  bool sparse = false;
  bool same_as_recompute = false;  ///< its output equals a full prefill token for token
  bool takes_keep_ratio = false, takes_recompute_ratio = false;
  /// What it usually reads and computes again, as shares of the documents' tokens: for predictions
  /// before anything runs.
  double typical_load = 1, typical_recompute = 0;
  std::string_view summary;
};

/// Strategies of this build, without "auto".
const std::vector<Strategy>& strategies();
/// Errors: kInvalidArgument (field cache.strategy) naming those of this build.
Result<Strategy> find_strategy(std::string_view name);

/// The recomputer these options choose.
std::string_view recomputer_of(const Strategy& strategy, const PlugOptions& options);
/// Tables of everything cache.options may name under this strategy, given the recomputer they
/// choose; the compressor's come on top.
std::vector<std::span<const PlugOption>> option_tables(const Strategy& strategy,
                                                       const PlugOptions& options);

/// Options of cache.decode `auto`: those that every retriever it may become takes in the same
/// sense.
std::span<const PlugOption> auto_decode_options();

/// What `auto` decides by.
struct AutoInput {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, small_context_tokens = 0;
  /// An approximate strategy whose fidelity certificate for this model passes
  std::optional<std::string> certified_strategy;
  /// Predicted ms until the first token, from measured speeds; 0: not known yet.
  double recompute_ms = 0, exact_ms = 0, certified_ms = 0;
};
struct AutoChoice {
  std::string strategy;
  std::string reason;
};
/// The quickest of: the certified strategy, else `exact`; and `recompute` where loading takes
/// longer than computing. Never an approximation without a certificate.
AutoChoice choose_strategy(const AutoInput& input);

/// Names, ranges and combinations of CacheOptions, before anything is looked up. Errors:
/// kInvalidArgument, field cache.*.
Status validate(const CacheOptions& options);

}  // namespace quire
