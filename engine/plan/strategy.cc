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
      {.name = "prophetkv",
       .selector = "all",
       .recomputer = "prophetkv",
       .takes_recompute_ratio = true,
       .typical_recompute = 0.2,
       .summary = "all cached KV; the tokens that the question attends to most are computed again"},
      {.name = "samkv",
       .selector = "samkv",
       .recomputer = "samkv_fusion",
       .recompute_choices = {{"fusion", "samkv_fusion"},
                             {"overwrite", "samkv_overwrite"},
                             {"question", "prophetkv"},
                             {"cacheblend", "cacheblend"},
                             {"epic", "epic"},
                             {"none", "none"}},
       .sparse = true,
       .takes_keep_ratio = true,
       .typical_load = 0.2,
       .typical_recompute = 0.15,
       .summary =
           "the blocks that the question asks for: by the model's retrieval heads where they "
           "are calibrated, else by words; as published beside first and last blocks, which are "
           "computed again and blended"},
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
      {.name = "random",
       .selector = "random",
       .recomputer = "none",
       .sparse = true,
       .takes_keep_ratio = true,
       .typical_load = 0.2,
       .summary = "blocks drawn at random, as they are: what any choice of blocks must beat"},
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
      PlugOption option{.name = kRecomputeOption,
                        .default_value = std::string(s.recompute_choices.front().first),
                        .summary =
                            "how kept tokens are computed again: anchors and outlying ones, "
                            "blended or overwritten; those the question attends to; those "
                            "that cacheblend or epic would take; none, which is the default "
                            "where retrieval heads or words choose"};
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
  const auto word = options.given().find(kRecomputeOption);
  for (const auto& [name, plug] : strategy.recompute_choices) {
    if (word != options.given().end() && name == word->second) return plug;
  }
  return strategy.recomputer;
}

bool names_recomputer(const Strategy& strategy, const PlugOptions& options) {
  if (options.given().contains(std::string(kRecomputeOption))) return true;
  return std::ranges::any_of(recomputers().options(strategy.recomputer), [&](const auto& option) {
    return options.given().contains(std::string(option.name));
  });
}

std::vector<std::span<const PlugOption>> option_tables(const Strategy& strategy,
                                                       const PlugOptions& options) {
  return {recompute_table(strategy), selectors().options(strategy.selector),
          recomputers().options(recomputer_of(strategy, options))};
}

const OptionTable<AutoDecodeOptions>& auto_decode_options() {
  static const OptionTable<AutoDecodeOptions> kTable = {
      number_option("decode_budget", &AutoDecodeOptions::budget, {16, 1 << 20},
                    "tokens a step attends to in a layer, where it does not attend to all")};
  return kTable;
}

AutoChoice choose_strategy(const AutoInput& input) {
  if (input.cached_tokens == 0) return {"recompute", "no document of this prompt is cached"};
  const bool small = input.prompt_tokens <= input.small_context_tokens;
  const bool certified = input.certified_strategy.has_value() && !small;
  const std::string best = certified ? *input.certified_strategy : "exact";
  const double best_ms = certified ? input.certified_ms : input.exact_ms;
  std::string why =
      certified ? "strategy " + best + " " + input.certified_because
      : small
          ? "the prompt has " + std::to_string(input.prompt_tokens) + " tokens; up to " +
                std::to_string(input.small_context_tokens) +
                " (policy.small_ctx, and at most a quarter of the window) auto stays exact; name a "
                "strategy to use all of the cache"
      : input.not_certified.empty()
          ? "approximate strategies are not chosen without a passed fidelity test of this model"
          : input.not_certified;
  if (best_ms <= 0 || input.recompute_ms <= 0) return {best, why, certified};
  const std::string compared = in_ms(best_ms) + " predicted for " + best + ", " +
                               in_ms(input.recompute_ms) + " for a full prefill";
  if (best_ms <= input.recompute_ms) return {best, why + "; " + compared, certified};
  return {"recompute", "loading takes longer than computing: " + compared};
}

Status validate(const CacheOptions& options) {
  std::optional<Strategy> strategy;
  std::vector<std::span<const PlugOption>> tables;
  const std::string_view compress = options.compress == "auto" ? "none"
                                                               : std::string_view(options.compress);
  const std::string_view decode = options.decode == "auto" ? "dense"
                                                           : std::string_view(options.decode);
  if (options.strategy != "auto") {
    QUIRE_ASSIGN_OR_RETURN(strategy, find_strategy(options.strategy));
    tables = option_tables(*strategy, options.options);
  }
  tables.push_back(compressors().options(compress));
  tables.push_back(options.decode == "auto" ? auto_decode_options().described()
                                            : retrievers().options(decode));
  if (compressors().has(compress) && retrievers().has(decode))
    QUIRE_RETURN_IF_ERROR(check_options(
        options.options, tables,
        {.without = "the choice of strategy, compress and decode",
         .with = "the strategy, of cache.compress or of cache.decode as they are chosen"}));
  if (strategy) {
    QUIRE_RETURN_IF_ERROR(selectors().make(strategy->selector, options.options).status());
    QUIRE_RETURN_IF_ERROR(
        recomputers().make(recomputer_of(*strategy, options.options), options.options).status());
  }
  QUIRE_ASSIGN_OR_RETURN(const auto compressor, compressors().make(compress, options.options));
  QUIRE_RETURN_IF_ERROR(retrievers().make(decode, options.options).status());
  if (compressor->drops_rows() && decode != "dense") {
    return Status::invalid(
        "cache.decode",
        std::string(decode) +
            " needs what compression leaves out: take drop_mode demote, or decode dense");
  }
  if (options.positions && *options.positions != PositionMode::kGlobal &&
      !(strategy && strategy->positions_selectable)) {
    return Status::invalid("cache.positions",
                           "only reuse and anchors let a request choose positions; strategy " +
                               options.strategy +
                               " places every token where the concatenation has it");
  }
  const std::string_view prompt = options.prompt_compression;
  if (prompt_compressors().has(prompt)) {
    const std::span<const PlugOption> table = prompt_compressors().options(prompt);
    QUIRE_RETURN_IF_ERROR(check_options(options.prompt_options, std::span(&table, 1),
                                        {"cache.prompt_compression", prompt, prompt}));
  }
  QUIRE_RETURN_IF_ERROR(prompt_compressors().make(prompt, options.prompt_options).status());
  const auto ratio = [](const std::optional<double>& x, const char* field) {
    return !x || (*x >= 0 && *x <= 1) ? Status() : Status::invalid(field, "must lie in [0, 1]");
  };
  QUIRE_RETURN_IF_ERROR(ratio(options.keep_ratio, "cache.keep_ratio"));
  QUIRE_RETURN_IF_ERROR(ratio(options.recompute_ratio, "cache.recompute_ratio"));
  return {};
}

}  // namespace quire
