#include "engine/compress/window_scores.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Status RowScorer::add(const LayerPass& pass, std::int64_t first, const float* lse, float* scores, std::int64_t ld_scores) {
  const std::int64_t rows = pass.qkv.rows - first, width = std::int64_t{shape_.num_heads} * shape_.head_dim;
  query_.resize(at(rows * width));
  RopeRotateArgs rotate{};
  rotate.x = pass.qkv.q + first * pass.qkv.ld;
  rotate.out = query_.data();
  rotate.positions = pass.positions.data() + first;
  rotate.rows = rows;
  rotate.num_heads = shape_.num_heads;
  rotate.ldx = pass.qkv.ld;
  rotate.ldo = width;
  QUIRE_RETURN_IF_ERROR(rope_rotate(*shape_.rope, rotate));
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
  return attention_scores(args);
}

WindowScores::WindowScores(const CompressSetup& setup, std::int32_t first_position, ScoreReduction reduction)
    : setup_(setup), first_position_(first_position), reduction_(reduction), scores_(at(setup.num_layers)), scorer_({setup.rope, setup.num_heads, setup.head_dim, reduction}) {}

/// To rows of `num_rows` per KV head, what is new zero.
void WindowScores::grow(std::vector<float>& scores, std::int64_t num_rows) const {
  const std::int64_t heads = setup_.num_kv_heads, old = static_cast<std::int64_t>(scores.size()) / heads;
  if (old >= num_rows) return;
  std::vector<float> grown(at(heads * num_rows), 0.0f);
  for (std::int64_t m = 0; m < heads; ++m) std::copy_n(scores.begin() + m * old, old, grown.begin() + m * num_rows);
  scores = std::move(grown);
}

std::vector<float>& WindowScores::layer_scores(std::int32_t layer, std::int64_t num_rows) {
  std::vector<float>& scores = scores_[at(layer)];
  grow(scores, num_rows);
  return scores;
}

Status WindowScores::after_attention(LayerPass& pass) {
  const auto found = std::find_if(pass.positions.begin(), pass.positions.end(), [this](std::int32_t p) { return p >= first_position_; });
  const std::int64_t first = found - pass.positions.begin(), rows = pass.qkv.rows - first;
  if (rows <= 0) return {};
  std::vector<float>& scores = layer_scores(pass.layer, pass.cache->num_rows(pass.layer));
  return scorer_.add(pass, first, pass.lse + first * setup_.num_heads, scores.data(), static_cast<std::int64_t>(scores.size()) / setup_.num_kv_heads);
}

std::vector<float> WindowScores::scores(std::int32_t layer, std::int32_t kv_head, std::int64_t num_rows) const {
  const std::vector<float>& seen = scores_[at(layer)];
  const std::int64_t rows = static_cast<std::int64_t>(seen.size()) / setup_.num_kv_heads;
  std::vector<float> out(at(num_rows), 0.0f);
  std::copy_n(seen.begin() + kv_head * rows, std::min(rows, num_rows), out.begin());
  return out;
}

}  // namespace quire
