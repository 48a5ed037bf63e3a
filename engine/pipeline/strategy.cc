#include "engine/pipeline/strategy.h"

#include "engine/compress/compressor.h"
#include "engine/retrieve/retriever.h"

namespace quire {

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> kStrategies = {
      {.name = "recompute", .selector = "all", .recomputer = "full", .same_as_recompute = true,
       .summary = "full prefill of the concatenation, no reuse"},
      {.name = "exact", .selector = "all", .recomputer = "inexact", .same_as_recompute = true,
       .summary = "reuses only what is a token-identical prefix; same output as recompute"},
      {.name = "reuse", .selector = "all", .recomputer = "none", .positions_selectable = true,
       .summary = "all cached KV as it is, at its place in the concatenation"},
      {.name = "epic", .selector = "all", .recomputer = "epic", .takes_recompute_ratio = true,
       .summary = "all cached KV; the first tokens of every document but the first are computed again"},
      {.name = "cacheblend", .selector = "all", .recomputer = "cacheblend", .takes_recompute_ratio = true,
       .summary = "all cached KV; the tokens whose values deviate most in an early layer are computed again"},
      {.name = "anchors", .selector = "anchors", .recomputer = "none", .positions_selectable = true, .sparse = true,
       .summary = "first and last blocks of every document only, as they are"},
  };
  return kStrategies;
}

Result<Strategy> find_strategy(std::string_view name) {
  std::string known = "auto";
  for (const Strategy& s : strategies()) {
    if (s.name == name) return s;
    known += ", ";
    known += s.name;
  }
  return Status::invalid("cache.strategy", "'" + std::string(name) + "' is not known; this build has: " + known);
}

AutoChoice choose_strategy(const AutoInput& input) {
  if (input.prompt_tokens <= input.small_context_tokens) {
    return {"recompute", "the prompt has " + std::to_string(input.prompt_tokens) + " tokens; up to " +
                             std::to_string(input.small_context_tokens) + " a full prefill is cheap"};
  }
  if (input.cached_tokens == 0) return {"recompute", "no document of this prompt is cached"};
  if (input.certified_strategy) {
    const auto certified = find_strategy(*input.certified_strategy);
    if (certified.ok()) return {certified->name, "strategy " + *input.certified_strategy + " passed the fidelity test of this model"};
  }
  return {"exact", "approximate strategies are not chosen without a passed fidelity test of this model"};
}

Status validate(const CacheOptions& options) {
  bool positions_selectable = false;
  if (options.strategy != "auto") {
    QUIRE_ASSIGN_OR_RETURN(const Strategy strategy, find_strategy(options.strategy));
    positions_selectable = strategy.positions_selectable;
  }
  if (options.positions && *options.positions != PositionMode::kGlobal && !positions_selectable) {
    return Status::invalid("cache.positions", "only strategy reuse lets a request choose positions; strategy " + options.strategy +
                                                  " places every token where the concatenation has it");
  }
  const auto ratio = [](const std::optional<double>& x, const char* field) {
    return !x || (*x >= 0 && *x <= 1) ? Status() : Status::invalid(field, "must lie in [0, 1]");
  };
  QUIRE_RETURN_IF_ERROR(ratio(options.keep_ratio, "cache.keep_ratio"));
  QUIRE_RETURN_IF_ERROR(ratio(options.recompute_ratio, "cache.recompute_ratio"));
  if (options.compress != "auto") QUIRE_RETURN_IF_ERROR(make_compressor(options.compress).status());
  if (options.decode != "auto") QUIRE_RETURN_IF_ERROR(make_retriever(options.decode).status());
  return {};
}

}  // namespace quire
