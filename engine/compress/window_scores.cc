#include "engine/compress/window_scores.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "engine/compute/compute.h"

namespace quire {
Status RowScorer::add(const LayerPass& pass, std::int64_t first, std::int64_t end, const float* lse,
                      float* scores, std::int64_t ld_scores) {
  const std::int64_t rows = end - first, width = std::int64_t{shape_.num_heads} * shape_.head_dim;
  AttentionOps& ops = pass.compute->attention();
  QUIRE_RETURN_IF_ERROR(query_.reserve(pass.compute->memory(), rows * width));
  RopeRotateArgs rotate{};
  rotate.x = pass.qkv.q + first * pass.qkv.ld;
  rotate.out = query_.data();
  rotate.positions = pass.positions.data() + first;
  rotate.rows = rows;
  rotate.num_heads = shape_.num_heads;
  rotate.ldx = pass.qkv.ld;
  rotate.ldo = width;
  QUIRE_RETURN_IF_ERROR(ops.rotate(*shape_.rope, rotate));
  AttentionScoresArgs args{};
  args.q = query_.data();
  args.query_positions = pass.positions.data() + first;
  args.lse = lse;
  args.rows = rows;
  args.ldq = width;
  args.ld_lse = shape_.num_heads;
  args.num_heads = shape_.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  args.kv = pass.cache->view(pass.layer);
  args.reduction = shape_.reduction;
  args.scores = scores;
  args.ld_scores = ld_scores;
  return ops.scores(args);
}

WindowScores::WindowScores(const CompressSetup& setup, std::int32_t first_position,
                           ScoreReduction reduction)
    : setup_(setup),
      first_position_(first_position),
      reduction_(reduction),
      prompt_scores_(at(setup.num_layers)),
      ahead_scores_(at(setup.num_layers)),
      scorer_({setup.rope, setup.num_heads, setup.head_dim, reduction}) {}

Result<WindowScores::LayerScores*> WindowScores::layer_scores(
    Scoring rows, std::int32_t layer, std::int64_t num_rows,
    const std::shared_ptr<ComputeMemory>& memory) {
  LayerScores& old = (rows == Scoring::kPrompt ? prompt_scores_ : ahead_scores_)[at(layer)];
  if (old.capacity >= num_rows) return &old;
  const std::int64_t heads = setup_.num_kv_heads;
  LayerScores grown;
  QUIRE_RETURN_IF_ERROR(grown.scores.reserve(memory, heads * num_rows));
  grown.capacity = num_rows;
  std::fill_n(grown.scores.data(), heads * num_rows, 0.0f);
  if (old.capacity > 0) QUIRE_RETURN_IF_ERROR(synchronize(memory.get()));
  for (std::int64_t m = 0; m < heads; ++m)
    std::copy_n(old.scores.data() + m * old.capacity, old.capacity,
                grown.scores.data() + m * num_rows);
  old = std::move(grown);
  return &old;
}

/// Returns the rows of the layer once the prompt and a look-ahead have run, if missing rows are
/// appended. Reserving them avoids growing, which synchronizes a device.
std::int64_t WindowScores::most_rows(const LayerPass& pass) const {
  const std::int64_t rows = pass.cache->num_rows(pass.layer);
  return rows + std::max<std::int64_t>(0, std::int64_t{setup_.question_end} + kMostLookAhead - 1 -
                                              pass.positions.back());
}

Status WindowScores::after_attention(LayerPass& pass) {
  return for_scoring(
      pass.positions, [&](Scoring kind, std::int64_t first, std::int64_t end) -> Status {
        LayerScores* scores = &(kind == Scoring::kPrompt ? prompt_scores_
                                                         : ahead_scores_)[at(pass.layer)];
        if (scores->capacity < pass.cache->num_rows(pass.layer)) {
          QUIRE_ASSIGN_OR_RETURN(
              scores, layer_scores(kind, pass.layer, most_rows(pass), pass.compute->memory()));
        }
        return scorer_.add(pass, first, end, pass.lse + first * setup_.num_heads,
                           scores->scores.data(), scores->capacity);
      });
}

std::vector<float> WindowScores::scores(std::int32_t layer, std::int32_t kv_head,
                                        std::int64_t num_rows, From from) const {
  std::vector<float> out(at(num_rows), 0.0f);
  const auto add = [&](const LayerScores& seen) {
    const float* head = seen.scores.data() + kv_head * seen.capacity;
    for (std::int64_t row = 0; row < std::min(seen.capacity, num_rows); ++row) {
      out[at(row)] = reduction_ == ScoreReduction::kMax ? std::max(out[at(row)], head[row])
                                                        : out[at(row)] + head[row];
    }
  };
  add(prompt_scores_[at(layer)]);
  if (from == From::kAll) add(ahead_scores_[at(layer)]);
  return out;
}

}  // namespace quire
