#include "engine/compress/sparse_prefill.h"

#include <algorithm>

#include "base/index.h"
#include "kernels/attention/attention_vslash.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

AttentionArgs rows_from(const AttentionArgs& args, std::int64_t first, std::int64_t rows) {
  AttentionArgs out = args;
  out.q += first * args.ldq;
  out.query_positions += first;
  out.rows = rows;
  out.out += first * args.ldo;
  out.lse += first * args.num_heads;
  return out;
}

/// Returns the contexts and the ranges between them, up to `end`.
std::vector<RowRange> ranges(std::span<const RowRange> contexts, std::int64_t end) {
  std::vector<RowRange> out;
  std::int64_t done = 0;
  const auto add = [&](std::int64_t to) {
    to = std::min(to, end);
    if (to > done) out.push_back({done, to});
    done = std::max(done, to);
  };
  for (const RowRange& c : contexts) {
    add(c.begin);
    add(c.end);
  }
  add(end);
  return out;
}

}  // namespace

SparsePrefillScores::SparsePrefillScores(const CompressSetup& setup, std::int32_t first_position,
                                         const Settings& settings)
    : WindowScores(setup, first_position, settings.reduction),
      settings_(settings),
      pooled_(ranges(setup.contexts, first_position)) {}

Status SparsePrefillScores::after_projection(LayerPass& pass) {
  if (pass.layer + 1 < setup().num_layers) return {};
  for (std::size_t r = 0; r < pass.positions.size(); ++r) {
    if (pass.positions[r] < first_position()) (*pass.carry_on)[r] = 0;
  }
  return {};
}

Result<bool> SparsePrefillScores::attend(LayerPass& pass, const AttentionArgs& dense) {
  const std::int64_t first = std::lower_bound(dense.query_positions,
                                              dense.query_positions + dense.rows,
                                              first_position()) -
                             dense.query_positions;
  const AttentionArgs last = rows_from(dense, first, dense.rows - first);
  QUIRE_RETURN_IF_ERROR(attention(last));
  QUIRE_RETURN_IF_ERROR(for_scoring(std::span(dense.query_positions, to_size(dense.rows)),
                                    [&](Scoring kind, std::int64_t begin, std::int64_t end) {
                                      return score(kind, pass.layer,
                                                   rows_from(dense, begin, end - begin));
                                    }));
  if (first == 0) return true;
  const AttentionArgs sparse = rows_from(dense, 0, first);
  std::vector<std::vector<std::int32_t>> chosen;
  std::vector<RowList> lists;
  for (std::int32_t m = 0; m < setup().num_kv_heads; ++m)
    chosen.push_back(columns(pass.layer, m, dense.kv.num_rows));
  for (const auto& list : chosen) lists.push_back({list.data(), count_of(list)});
  count(sparse, chosen);
  QUIRE_RETURN_IF_ERROR(attention_vslash({sparse, lists.data(), settings_.rule.band}));
  return true;
}

Status SparsePrefillScores::score(Scoring kind, std::int32_t layer, const AttentionArgs& rows) {
  QUIRE_ASSIGN_OR_RETURN(LayerScores* const scores,
                         layer_scores(kind, layer, rows.kv.num_rows, nullptr));
  AttentionScoresArgs args{};
  args.q = rows.q;
  args.query_positions = rows.query_positions;
  args.lse = rows.lse;
  args.rows = rows.rows;
  args.ldq = rows.ldq;
  args.ld_lse = rows.num_heads;
  args.num_heads = rows.num_heads;
  args.scale = rows.scale;
  args.kv = rows.kv;
  args.reduction = reduction();
  args.scores = scores->scores.data();
  args.ld_scores = scores->capacity;
  return attention_scores(args);
}

/// Returns the best rows before the scoring ones, ascending.
std::vector<std::int32_t> SparsePrefillScores::columns(std::int32_t layer, std::int32_t kv_head,
                                                       std::int64_t num_rows) const {
  std::vector<float> pooled = scores(layer, kv_head, num_rows);
  pooled.resize(at(first_position()));
  pool_scores(pooled, pooled_, settings_.pooling, settings_.kernel);
  return top_k_sorted(pooled, settings_.rule.columns);
}

void SparsePrefillScores::count(const AttentionArgs& rows,
                                std::span<const std::vector<std::int32_t>> columns) {
  sparse_rows_ = std::count_if(
      rows.query_positions, rows.query_positions + rows.rows,
      [&](std::int32_t p) { return p / kVslashTile * kVslashTile > settings_.rule.band; });
  for (const auto& list : columns) {
    for (std::int64_t t = 0; t < rows.rows; ++t) {
      const std::int64_t position = rows.query_positions[t],
                         band_begin = std::max<std::int64_t>(
                             0, position / kVslashTile * kVslashTile - settings_.rule.band);
      seen_keys_ += static_cast<double>(
          position + 1 - band_begin +
          (std::lower_bound(list.begin(), list.end(), band_begin) - list.begin()));
      all_keys_ += static_cast<double>(position + 1);
    }
  }
}

SparseReport SparsePrefillScores::report() const {
  return {sparse_rows_, all_keys_ > 0 ? seen_keys_ / all_keys_ : 1};
}

}  // namespace quire
