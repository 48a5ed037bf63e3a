#include "engine/plan/strategy.h"

#include <cstdio>
#include <map>

#include "engine/compress/compressor.h"
#include "engine/prompt/prompt_compressor.h"
#include "engine/recompute/recomputer.h"
#include "engine/retrieve/retriever.h"
#include "engine/select/selector.h"

namespace quire {

const std::vector<Strategy>& strategies() {
  static const std::vector<Strategy> kStrategies = {
      {.name = "recompute",
       .selector = "all",
       .recomputer = "full",
       .same_as_recompute = true,
       .summary = "full prefill of the concatenation, no reuse"},
      {.name = "exact",
       .selector = "all",
       .recomputer = "inexact",
       .same_as_recompute = true,
       .summary = "reuses only what is a token-identical prefix; same output as recompute"},
      {.name = "reuse",
       .selector = "all",
       .recomputer = "none",
       .positions_selectable = true,
       .summary = "all cached KV as it is, at its place in the concatenation"},
      {.name = "epic",
       .selector = "all",
       .recomputer = "epic",
       .takes_recompute_ratio = true,
       .summary =
           "all cached KV; the first tokens of every document but the first are computed again"},
      {.name = "cacheblend",
       .selector = "all",
       .recomputer = "cacheblend",
       .takes_recompute_ratio = true,
       .summary = "all cached KV; the tokens whose values deviate most in an early layer are "
                  "computed again"},
      {.name = "samkv",
       .selector = "samkv",
       .recomputer = "samkv_fusion",
       .recompute_choices = {{"fusion", "samkv_fusion"},
                             {"overwrite", "samkv_overwrite"},
                             {"none", "none"}},
       .sparse = true,
       .takes_keep_ratio = true,
       .typical_load = 0.2,
       .typical_recompute = 0.15,
       .summary = "first and last blocks of every document and what the question asks for of the "
                  "rest; first and last blocks are computed again and blended"},
      {.name = "samkv_overwrite",
       .selector = "samkv",
       .recomputer = "samkv_overwrite",
       .sparse = true,
       .takes_keep_ratio = true,
       .typical_load = 0.2,
       .typical_recompute = 0.15,
       .summary = "as samkv; what is computed again replaces the stored KV"},
      {.name = "samkv_words",
       .selector = "words",
       .recomputer = "samkv_kept",
       .sparse = true,
       .takes_keep_ratio = true,
       .typical_load = 0.2,
       .typical_recompute = 0.16,
       .summary = "the first block of every document and those that match the question's words "
                  "best; every kept token is computed again"},
      {.name = "multi_infllm",
       .selector = "infllm",
       .recomputer = "none",
       .sparse = true,
       .takes_keep_ratio = true,
       .typical_load = 0.5,
       .summary = "the first and last tokens of all documents and the units in between that the "
                  "question likes best, as they are"},
      {.name = "anchors",
       .selector = "anchors",
       .recomputer = "none",
       .positions_selectable = true,
       .sparse = true,
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
  return Status::invalid("cache.strategy",
                         "'" + std::string(name) + "' is not known; this build has: " + known);
}

namespace {

constexpr std::string_view kRecomputeOption = "recompute";

/// Returns a strategy's own option tables, which live as long as the program.
const std::vector<PlugOption>& recompute_table(const Strategy& strategy) {
  static const std::map<std::string_view, std::vector<PlugOption>> kTables = [] {
    std::map<std::string_view, std::vector<PlugOption>> tables;
    for (const Strategy& s : strategies()) {
      std::vector<PlugOption>& table = tables[s.name];
      if (s.recompute_choices.empty()) continue;
      PlugOption option{kRecomputeOption,
                        s.recompute_choices.front().first,
                        {},
                        0,
                        0,
                        "how anchors and outlying tokens are computed again"};
      for (const auto& [word, plug] : s.recompute_choices) option.values.push_back(word);
      table.push_back(std::move(option));
    }
    return tables;
  }();
  return kTables.at(strategy.name);
}

std::string in_ms(double ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f ms", ms);
  return text;
}

}  // namespace

std::string_view recomputer_of(const Strategy& strategy, const PlugOptions& options) {
  if (strategy.recompute_choices.empty()) return strategy.recomputer;
  const std::string_view word = options.word(recompute_table(strategy), kRecomputeOption);
  for (const auto& [name, plug] : strategy.recompute_choices) {
    if (name == word) return plug;
  }
  return strategy.recomputer;
}

std::vector<std::span<const PlugOption>> option_tables(const Strategy& strategy,
                                                       const PlugOptions& options) {
  std::vector<std::span<const PlugOption>> tables = {recompute_table(strategy)};
  // Tables are static, so they outlive the plugs that return them.
  if (const auto selector = make_selector(strategy.selector); selector.ok())
    tables.push_back((*selector)->options());
  if (const auto recomputer = make_recomputer(recomputer_of(strategy, options)); recomputer.ok())
    tables.push_back((*recomputer)->options());
  return tables;
}

std::span<const PlugOption> auto_decode_options() {
  static const std::vector<PlugOption> options = {
      {"decode_budget",
       "2048",
       {},
       16,
       1 << 20,
       "tokens a step attends to in a layer, where it does not attend to all"}};
  return options;
}

AutoChoice choose_strategy(const AutoInput& input) {
  if (input.prompt_tokens <= input.small_context_tokens) {
    return {"recompute", "the prompt has " + std::to_string(input.prompt_tokens) +
                             " tokens; up to " + std::to_string(input.small_context_tokens) +
                             " (policy.small_ctx, and at most a quarter of the window) a full "
                             "prefill is cheap; name a strategy to use the cache"};
  }
  if (input.cached_tokens == 0) return {"recompute", "no document of this prompt is cached"};
  const bool certified = input.certified_strategy.has_value();
  const std::string best = certified ? *input.certified_strategy : "exact";
  const double best_ms = certified ? input.certified_ms : input.exact_ms;
  std::string why =
      certified
          ? "strategy " + best + " passed the fidelity test of this model"
          : "approximate strategies are not chosen without a passed fidelity test of this model";
  if (best_ms <= 0 || input.recompute_ms <= 0) return {best, why};
  const std::string compared = in_ms(best_ms) + " predicted for " + best + ", " +
                               in_ms(input.recompute_ms) + " for a full prefill";
  if (best_ms <= input.recompute_ms) return {best, why + "; " + compared};
  return {"recompute", "loading takes longer than computing: " + compared};
}

Status validate(const CacheOptions& options) {
  bool positions_selectable = false;
  std::vector<std::span<const PlugOption>> tables;
  if (options.strategy != "auto") {
    QUIRE_ASSIGN_OR_RETURN(const Strategy strategy, find_strategy(options.strategy));
    positions_selectable = strategy.positions_selectable;
    tables = option_tables(strategy, options.options);
  }
  // Tables are static, so they outlive the plug that returns them.
  QUIRE_ASSIGN_OR_RETURN(const auto compressor,
                         make_compressor(options.compress == "auto" ? "none" : options.compress));
  tables.push_back(compressor->options());
  QUIRE_ASSIGN_OR_RETURN(const auto retriever,
                         make_retriever(options.decode == "auto" ? "dense" : options.decode));
  tables.push_back(options.decode == "auto" ? auto_decode_options() : retriever->options());
  QUIRE_RETURN_IF_ERROR(check_options(options.options, tables));
  QUIRE_RETURN_IF_ERROR(compressor->check(options.options));
  QUIRE_RETURN_IF_ERROR(retriever->check(options.options));
  if (const auto mode = options.options.given().find("drop_mode");
      mode != options.options.given().end() && mode->second == "drop" &&
      retriever->name() != "dense") {
    return Status::invalid(
        "cache.decode",
        std::string(retriever->name()) +
            " needs what compression leaves out: take drop_mode demote, or decode dense");
  }
  if (options.positions && *options.positions != PositionMode::kGlobal && !positions_selectable) {
    return Status::invalid("cache.positions",
                           "only strategy reuse lets a request choose positions; strategy " +
                               options.strategy +
                               " places every token where the concatenation has it");
  }
  QUIRE_ASSIGN_OR_RETURN(const auto prompt, make_prompt_compressor(options.prompt_compression));
  const std::span<const PlugOption> prompt_table = prompt->options();
  QUIRE_RETURN_IF_ERROR(
      check_options(options.prompt_options, std::span(&prompt_table, 1),
                    {"cache.prompt_compression", prompt->name(), prompt->name()}));
  QUIRE_RETURN_IF_ERROR(prompt->check(options.prompt_options));
  const auto ratio = [](const std::optional<double>& x, const char* field) {
    return !x || (*x >= 0 && *x <= 1) ? Status() : Status::invalid(field, "must lie in [0, 1]");
  };
  QUIRE_RETURN_IF_ERROR(ratio(options.keep_ratio, "cache.keep_ratio"));
  QUIRE_RETURN_IF_ERROR(ratio(options.recompute_ratio, "cache.recompute_ratio"));
  return {};
}

}  // namespace quire
