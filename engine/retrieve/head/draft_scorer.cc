#include "engine/retrieve/head/draft_scorer.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/index.h"
#include "engine/retrieve/head/head_selection.h"
#include "kernels/rows/rope.h"

namespace quire {
namespace {

PageFormat format_of(const Model& draft) {
  const ModelConfig& c = draft.config();
  return {c.num_kv_heads, c.head_dim, cached_kv_dtype(draft.options().kv_dtype, c.head_dim)};
}

}  // namespace

DraftScorer::DraftScorer(Model& draft, std::int32_t layer)
    : draft_(draft),
      layer_(layer),
      pool_(format_of(draft), 0),
      cache_(pool_, draft.config().num_layers),
      ending_(layer, std::int64_t{draft.config().num_heads} * draft.config().head_dim) {
  QUIRE_CHECK(layer >= 0 && layer < draft.config().num_layers, "one of the draft's layers");
}

std::int64_t DraftScorer::row_bytes(const Model& draft, std::int32_t layer) {
  return (layer + 1) * format_of(draft).page_bytes() / kPageTokens;
}

Status DraftScorer::Ending::after_projection(LayerPass& pass) {
  if (pass.layer != layer_) return {};
  std::copy_n(pass.qkv.q + static_cast<std::int64_t>(pass.rows.size() - 1) * pass.qkv.ld,
              query_.size(), query_.begin());
  std::ranges::fill(*pass.carry_on, std::uint8_t{0});
  return {};
}

Status DraftScorer::check_room(std::int64_t tokens) const {
  const std::int64_t window = draft_.rope().max_positions();
  if (num_tokens() + tokens <= window) return {};
  return Status::invalid(
      "cache.decode",
      "the draft chooses, and its window of " + std::to_string(window) +
          " tokens is full; take freekv, or name a retrieval head in model.retrieval_head_path");
}

Status DraftScorer::read(std::span<const std::int32_t> token_ids) {
  QUIRE_RETURN_IF_ERROR(check_room(count_of(token_ids)));
  std::vector<std::int32_t> positions;
  for (std::size_t at = 0; at < token_ids.size(); at += kChunkTokens) {
    const auto ids = token_ids.subspan(at, std::min(kChunkTokens, token_ids.size() - at));
    positions.resize(ids.size());
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(num_tokens()));
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache_;
    request.hook = &ending_;
    QUIRE_RETURN_IF_ERROR(forward(draft_, request, workspace_));
  }
  return {};
}

Status DraftScorer::step(std::int32_t token_id, std::int32_t target_kv_heads,
                         std::vector<float>& scores) {
  QUIRE_RETURN_IF_ERROR(read(std::span(&token_id, 1)));
  const ModelConfig& c = draft_.config();
  const auto position = static_cast<std::int32_t>(num_tokens() - 1);
  std::vector<float>& query = ending_.query();
  const std::int64_t width = std::int64_t{c.num_heads} * c.head_dim;
  QUIRE_RETURN_IF_ERROR(rope_rotate(draft_.rope(), {.x = query.data(),
                                                    .out = query.data(),
                                                    .positions = &position,
                                                    .rows = 1,
                                                    .num_heads = c.num_heads,
                                                    .ldx = width,
                                                    .ldo = width}));
  return head_scores(HeadScoresArgs{.query = query.data(),
                                    .position = position,
                                    .num_heads = c.num_heads,
                                    .keys = cache_.view(layer_),
                                    .target_kv_heads = target_kv_heads},
                     scores);
}

}  // namespace quire
