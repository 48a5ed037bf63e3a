/// Strategies by name: one plug per socket, and what a request may ask of each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/pipeline/plan.h"
#include "kernels/base/status.h"

namespace quire {

struct Strategy {
  std::string_view name;
  std::string_view selector, recomputer;
  bool positions_selectable = false;    ///< a request may set cache.positions
  bool sparse = false;                  ///< may drop blocks, so it may also serve prompts longer than the window (compact positions)
  bool same_as_recompute = false;       ///< its output equals a full prefill token for token
  bool takes_keep_ratio = false, takes_recompute_ratio = false;
  std::string_view summary;
};

/// Strategies of this build, without "auto".
const std::vector<Strategy>& strategies();
/// Errors: kInvalidArgument (field cache.strategy) naming those of this build.
Result<Strategy> find_strategy(std::string_view name);

/// What `auto` decides by.
struct AutoInput {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, small_context_tokens = 0;
  std::optional<std::string> certified_strategy;  ///< an approximation with a passed fidelity certificate of this model
};
struct AutoChoice {
  std::string_view strategy;
  std::string reason;
};
/// An approximation only if it is certified for the model.
AutoChoice choose_strategy(const AutoInput& input);

/// Names, ranges and combinations of CacheOptions, before anything is looked up. Errors: kInvalidArgument, field cache.*.
Status validate(const CacheOptions& options);

}  // namespace quire
