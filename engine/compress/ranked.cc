#include "engine/compress/ranked.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>

#include "base/index.h"
#include "kernels/attention/attention_vslash.h"

namespace quire {
namespace {

constexpr std::int64_t kUsualBand = 2048, kUsualColumns = 2048;

}  // namespace

OptionFields<RankedOptions> ranked_options() {
  return {
      number_option("capacity", &RankedOptions::capacity, {1, 1e7},
                    "rows of each layer and KV head that stay hot, the window among them"),
      number_option("window", &RankedOptions::window, {1, 4096},
                    "last prompt rows that always stay; fewer than capacity"),
      words_option("drop_mode", &RankedOptions::drop, {{"demote", false}, {"drop", true}},
                   "the rest stays for a retriever, or leaves the cache for good"),
  };
}

OptionFields<RankedOptions> window_options() {
  OptionFields<RankedOptions> fields = ranked_options();
  fields.push_back(
      words_option("pool", &RankedOptions::pooling,
                   {{"max", Pooling::kMax}, {"avg", Pooling::kAverage}, {"none", Pooling::kNone}},
                   "pooling of scores over neighbouring rows of a document"));
  fields.push_back(
      number_option("kernel", &RankedOptions::kernel, {1, 255}, "rows pooled together, odd"));
  fields.push_back(words_option("reduce", &RankedOptions::reduction,
                                {{"mean", ScoreReduction::kSum}, {"max", ScoreReduction::kMax}},
                                "over the window's rows and a KV head's query heads"));
  return fields;
}

OptionFields<RankedOptions> lookahead_options() {
  return {
      number_option("lookahead", &RankedOptions::lookahead, {0, kMostLookAhead},
                    "tokens of the draft's answer whose attention ranks, too"),
      number_option("window_share", &RankedOptions::window_share, {0, 1},
                    "share of the ranked rows that the window chooses without them; 0: as "
                    "published"),
  };
}

OptionFields<RankedOptions> sparse_prefill_options() {
  return {
      words_option("prefill", &RankedOptions::sparse_prefill, {{"dense", false}, {"sparse", true}},
                   "attention of a prompt that is computed whole: to everything, or to a near band "
                   "and the best columns"),
      number_option("prefill_band", &RankedOptions::prefill_band, {64, 1e6},
                    number_text(kUsualBand),
                    "rows before it that a row sees in a sparse prefill, a multiple of 64"),
      number_option("prefill_columns", &RankedOptions::prefill_columns, {0, 1e6},
                    number_text(kUsualColumns),
                    "rows before the band that it sees, per layer and KV head"),
  };
}

OptionFields<RankedOptions> adaptive_options() {
  return {
      number_option("floor", &RankedOptions::floor, {0, 1},
                    "share of the budget that every KV head has in any case"),
      flag_option("normalize", &RankedOptions::normalize,
                  "heads whose attention is spread out count less"),
  };
}

std::optional<SparseRule> RankedOptions::sparse_rule() const {
  if (!sparse_prefill) return std::nullopt;
  return SparseRule{prefill_band.value_or(kUsualBand), prefill_columns.value_or(kUsualColumns)};
}

Status RankedOptions::finish(std::string_view field) const {
  const std::string of = std::string(field) + ".";
  if (capacity <= window) {
    return Status::invalid(of + "capacity",
                           "is " + std::to_string(capacity) + " and must be above window, " +
                               std::to_string(window) + ": the window's rows always stay");
  }
  if (kernel % 2 == 0)
    return Status::invalid(of + "kernel", "must be odd, is " + std::to_string(kernel));
  if (!sparse_prefill && prefill_band)
    return Status::invalid(of + "prefill_band", "needs prefill=sparse");
  if (!sparse_prefill && prefill_columns)
    return Status::invalid(of + "prefill_columns", "needs prefill=sparse");
  if (const auto rule = sparse_rule(); rule && rule->band % kVslashTile != 0) {
    return Status::invalid(of + "prefill_band", "must be a multiple of " +
                                                    std::to_string(kVslashTile) + ", is " +
                                                    std::to_string(rule->band));
  }
  return {};
}

SparseReport RankedCompressor::sparse_report() const {
  return sparse_ != nullptr ? sparse_->report() : SparseReport{};
}

Status RankedCompressor::begin(const CompressSetup& setup) {
  setup_ = setup;
  if (watch_ == Watch::kNothing) return {};
  const std::int64_t window_begin = std::max<std::int64_t>(setup.question_begin,
                                                           setup.question_end - options_.window);
  const auto first = watch_ == Watch::kPrompt ? std::numeric_limits<std::int32_t>::min()
                                              : static_cast<std::int32_t>(window_begin);
  if (setup.sparse) {
    SparsePrefillScores::Settings sparse;
    sparse.rule = *sparse_prefill();
    sparse.pooling = options_.pooling;
    sparse.kernel = options_.kernel;
    sparse.reduction = options_.reduction;
    auto observed = std::make_unique<SparsePrefillScores>(setup, first, sparse);
    sparse_ = observed.get();
    observed_ = std::move(observed);
    return {};
  }
  observed_ = std::make_unique<WindowScores>(setup, first, options_.reduction);
  return {};
}

std::vector<float> RankedCompressor::scores(std::int32_t layer, std::int32_t kv_head,
                                            const LayerRows& rows) const {
  return observed_->scores(layer, kv_head, rows.num_rows);
}

std::vector<std::vector<std::int32_t>> RankedCompressor::rank_layer(std::int32_t layer,
                                                                    const LayerRows& rows) const {
  const Candidates c = candidates(rows, options_.capacity, options_.window);
  std::vector<std::vector<float>> all, competing;
  for (std::int32_t m = 0; m < setup_.num_kv_heads; ++m) {
    all.push_back(scores(layer, m, rows));
    pool_scores(all.back(), c.pooled, options_.pooling, options_.kernel);
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
  if (options_.window_share == 0 || observed_ == nullptr || !observed_->saw_ahead())
    return best_rows(scores, c.ranked, budget);
  budget = std::min(budget, count_of(c.ranked));
  const auto of_window = static_cast<std::int64_t>(options_.window_share *
                                                   static_cast<double>(budget));
  std::vector<std::int32_t> best = best_rows(scores, c.ranked, budget - of_window), left,
                            ordered = best;
  std::sort(ordered.begin(), ordered.end());
  std::set_difference(c.ranked.begin(), c.ranked.end(), ordered.begin(), ordered.end(),
                      std::back_inserter(left));
  std::vector<float> window = observed_->scores(layer, kv_head, rows.num_rows,
                                                WindowScores::From::kPrompt);
  pool_scores(window, c.pooled, options_.pooling, options_.kernel);
  const std::vector<std::int32_t> more = best_rows(window, left, of_window);
  best.insert(best.end(), more.begin(), more.end());
  return best;
}

Result<RetainedRows> RankedCompressor::compress(const CompressInput& input) {
  const auto fits = [this](const LayerRows& rows) { return rows.num_rows <= options_.capacity; };
  RetainedRows retained;
  if (std::all_of(input.layers.begin(), input.layers.end(), fits)) return retained;
  retained.drop = options_.drop;
  for (std::int32_t layer = 0; layer < setup_.num_layers; ++layer)
    retained.hot.push_back(rank_layer(layer, input.layers[at(layer)]));
  return retained;
}

}  // namespace quire
