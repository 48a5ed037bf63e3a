#include "engine/compress/ranked.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "kernels/attention_vslash.h"

namespace quire {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

bool has(std::span<const PlugOption> table, std::string_view name) {
  return std::any_of(table.begin(), table.end(),
                     [&](const PlugOption& o) { return o.name == name; });
}

}  // namespace

std::vector<PlugOption> ranked_options() {
  return {
      {.name = "capacity",
       .default_value = "1024",
       .least = 1,
       .most = 1e7,
       .summary = "rows of each layer and KV head that stay hot, the window among them"},
      {.name = "window",
       .default_value = "32",
       .least = 1,
       .most = 4096,
       .summary = "last prompt rows that always stay; fewer than capacity"},
      {.name = "drop_mode",
       .default_value = "demote",
       .values = {"demote", "drop"},
       .summary = "the rest stays for a retriever, or leaves the cache for good"},
  };
}

std::vector<PlugOption> window_options(std::string_view reduce) {
  std::vector<PlugOption> table = ranked_options();
  table.push_back({.name = "pool",
                   .default_value = "max",
                   .values = {"max", "avg", "none"},
                   .summary = "pooling of scores over neighbouring rows of a document"});
  table.push_back({.name = "kernel",
                   .default_value = "7",
                   .least = 1,
                   .most = 255,
                   .summary = "rows pooled together, odd"});
  table.push_back({.name = "reduce",
                   .default_value = reduce,
                   .values = {"mean", "max"},
                   .summary = "over the window's rows and a KV head's query heads"});
  return table;
}

std::vector<PlugOption> lookahead_options() {
  return {
      {.name = "lookahead",
       .default_value = "12",
       .least = 0,
       .most = kMostLookAhead,
       .summary = "tokens of the draft's answer whose attention ranks, too"},
      {.name = "window_share",
       .default_value = "0.25",
       .least = 0,
       .most = 1,
       .summary = "share of the ranked rows that the window chooses without them; 0: as published"},
  };
}

std::vector<PlugOption> sparse_prefill_options() {
  return {
      {.name = "prefill",
       .default_value = "dense",
       .values = {"dense", "sparse"},
       .summary = "attention of a prompt that is computed whole: to everything, or to a near band "
                  "and the best columns"},
      {.name = "prefill_band",
       .default_value = "2048",
       .least = 64,
       .most = 1e6,
       .summary = "rows before it that a row sees in a sparse prefill, a multiple of 64"},
      {.name = "prefill_columns",
       .default_value = "2048",
       .least = 0,
       .most = 1e6,
       .summary = "rows before the band that it sees, per layer and KV head"},
  };
}

std::vector<PlugOption> adaptive_options() {
  return {
      {.name = "floor",
       .default_value = "0.2",
       .least = 0,
       .most = 1,
       .summary = "share of the budget that every KV head has in any case"},
      {.name = "normalize",
       .default_value = "off",
       .values = {"on", "off"},
       .summary = "heads whose attention is spread out count less"},
  };
}

std::int32_t RankedCompressor::lookahead_tokens(const PlugOptions& options) const {
  return has(table_, "lookahead") ? static_cast<std::int32_t>(options.number(table_, "lookahead"))
                                  : 0;
}

std::optional<SparseRule> RankedCompressor::sparse_prefill(const PlugOptions& options) const {
  if (!has(table_, "prefill") || options.word(table_, "prefill") != "sparse") return std::nullopt;
  return SparseRule{static_cast<std::int64_t>(options.number(table_, "prefill_band")),
                    static_cast<std::int64_t>(options.number(table_, "prefill_columns"))};
}

SparseReport RankedCompressor::sparse_report() const {
  return sparse_ != nullptr ? sparse_->report() : SparseReport{};
}

RankedSettings RankedCompressor::read(const PlugOptions& options) const {
  RankedSettings out;
  out.capacity = static_cast<std::int64_t>(options.number(table_, "capacity"));
  out.window = static_cast<std::int64_t>(options.number(table_, "window"));
  out.drop = options.word(table_, "drop_mode") == "drop";
  if (has(table_, "window_share")) out.window_share = options.number(table_, "window_share");
  if (!has(table_, "pool")) return out;
  const std::string_view pool = options.word(table_, "pool");
  out.pooling = pool == "max" ? Pooling::kMax : pool == "avg" ? Pooling::kAverage : Pooling::kNone;
  out.kernel = static_cast<std::int32_t>(options.number(table_, "kernel"));
  out.reduction = options.word(table_, "reduce") == "max" ? ScoreReduction::kMax
                                                          : ScoreReduction::kSum;
  return out;
}

Status RankedCompressor::check(const PlugOptions& options) const {
  for (const std::string_view name :
       {"capacity", "window", "kernel", "lookahead", "prefill_band", "prefill_columns"}) {
    if (!has(table_, name)) continue;
    const double x = options.number(table_, name);
    if (x != std::floor(x))
      return Status::invalid("cache.options." + std::string(name), "must be a whole number");
  }
  const RankedSettings s = read(options);
  if (s.capacity <= s.window) {
    return Status::invalid("cache.options.capacity",
                           "is " + std::to_string(s.capacity) + " and must be above window, " +
                               std::to_string(s.window) + ": the window's rows always stay");
  }
  if (s.kernel % 2 == 0)
    return Status::invalid("cache.options.kernel", "must be odd, is " + std::to_string(s.kernel));
  return check_sparse_prefill(options);
}

Status RankedCompressor::check_sparse_prefill(const PlugOptions& options) const {
  const std::optional<SparseRule> rule = sparse_prefill(options);
  for (const std::string_view name : {"prefill_band", "prefill_columns"}) {
    if (!rule && options.given().contains(name))
      return Status::invalid("cache.options." + std::string(name), "needs prefill=sparse");
  }
  if (rule && rule->band % kVslashTile != 0) {
    return Status::invalid("cache.options.prefill_band", "must be a multiple of " +
                                                             std::to_string(kVslashTile) + ", is " +
                                                             std::to_string(rule->band));
  }
  return {};
}

Status RankedCompressor::begin(const CompressSetup& setup) {
  setup_ = setup;
  settings_ = read(*setup.options);
  if (watch_ == Watch::kNothing) return {};
  const std::int64_t window_begin = std::max<std::int64_t>(setup.question_begin,
                                                           setup.question_end - settings_.window);
  const auto first = watch_ == Watch::kPrompt ? std::numeric_limits<std::int32_t>::min()
                                              : static_cast<std::int32_t>(window_begin);
  if (setup.sparse) {
    SparsePrefillScores::Settings sparse;
    sparse.rule = *sparse_prefill(*setup.options);
    sparse.pooling = settings_.pooling;
    sparse.kernel = settings_.kernel;
    sparse.reduction = settings_.reduction;
    auto observed = std::make_unique<SparsePrefillScores>(setup, first, sparse);
    sparse_ = observed.get();
    observed_ = std::move(observed);
    return {};
  }
  observed_ = std::make_unique<WindowScores>(setup, first, settings_.reduction);
  return {};
}

std::vector<float> RankedCompressor::scores(std::int32_t layer, std::int32_t kv_head,
                                            const LayerRows& rows) const {
  return observed_->scores(layer, kv_head, rows.num_rows);
}

std::vector<std::vector<std::int32_t>> RankedCompressor::rank_layer(std::int32_t layer,
                                                                    const LayerRows& rows) const {
  const Candidates c = candidates(rows, settings_.capacity, settings_.window);
  std::vector<std::vector<float>> all, competing;
  for (std::int32_t m = 0; m < setup_.num_kv_heads; ++m) {
    all.push_back(scores(layer, m, rows));
    pool_scores(all.back(), c.pooled, settings_.pooling, settings_.kernel);
    competing.emplace_back();
    for (const std::int32_t row : c.ranked) competing.back().push_back(all.back()[at(row)]);
  }
  const std::vector<std::int64_t> budgets = head_budgets(competing, layer_budget(layer, c));
  std::vector<std::vector<std::int32_t>> hot(at(setup_.num_kv_heads), c.kept);
  for (std::size_t m = 0; m < hot.size(); ++m) {
    const std::vector<std::int32_t> best = best_of_head(layer, static_cast<std::int32_t>(m), rows,
                                                        c, all[m], budgets[m]);
    hot[m].insert(hot[m].end(), best.begin(), best.end());
  }
  return hot;
}

/// Ranks with a share of rows reserved for the window, as a wrong look-ahead would otherwise fill
/// the ranking with rows it attends to.
std::vector<std::int32_t> RankedCompressor::best_of_head(std::int32_t layer, std::int32_t kv_head,
                                                         const LayerRows& rows, const Candidates& c,
                                                         std::span<const float> scores,
                                                         std::int64_t budget) const {
  if (settings_.window_share == 0 || observed_ == nullptr || !observed_->saw_ahead())
    return best_rows(scores, c.ranked, budget);
  budget = std::min(budget, static_cast<std::int64_t>(c.ranked.size()));
  const auto of_window = static_cast<std::int64_t>(settings_.window_share *
                                                   static_cast<double>(budget));
  std::vector<std::int32_t> best = best_rows(scores, c.ranked, budget - of_window), left,
                            ordered = best;
  std::sort(ordered.begin(), ordered.end());
  std::set_difference(c.ranked.begin(), c.ranked.end(), ordered.begin(), ordered.end(),
                      std::back_inserter(left));
  std::vector<float> window = observed_->scores(layer, kv_head, rows.num_rows,
                                                WindowScores::From::kPrompt);
  pool_scores(window, c.pooled, settings_.pooling, settings_.kernel);
  const std::vector<std::int32_t> more = best_rows(window, left, of_window);
  best.insert(best.end(), more.begin(), more.end());
  return best;
}

Result<RetainedRows> RankedCompressor::compress(const CompressInput& input) {
  const auto fits = [this](const LayerRows& rows) { return rows.num_rows <= settings_.capacity; };
  RetainedRows retained;
  if (std::all_of(input.layers.begin(), input.layers.end(), fits)) return retained;
  retained.drop = settings_.drop;
  for (std::int32_t layer = 0; layer < setup_.num_layers; ++layer)
    retained.hot.push_back(rank_layer(layer, input.layers[at(layer)]));
  return retained;
}

}  // namespace quire
