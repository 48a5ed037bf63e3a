#include "engine/pipeline/decode_batch.h"

#include <algorithm>

#include "kernels/kv.h"
#include "kernels/rope.h"

namespace quire {
namespace {

/// One new row in every layer, or none.
Status add_row(WorkingCache& cache, std::int32_t position) {
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    auto added = cache.add_rows(layer, std::span(&position, 1));
    if (added.ok()) continue;
    for (std::int32_t l = 0; l < layer; ++l) cache.truncate(l, cache.num_rows(l) - 1);
    return added.status();
  }
  return {};
}

void drop_row(WorkingCache& cache) {
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) cache.truncate(layer, cache.num_rows(layer) - 1);
}

}  // namespace

Status DecodeBatch::step(std::span<DecodeRow> rows) {
  std::vector<DecodeRow*> active;
  for (DecodeRow& row : rows) {
    row.status = row.retriever->begin_step(row.token_id, row.position);
    if (row.status.ok()) row.status = add_row(*row.cache, row.position);
    if (row.status.ok()) active.push_back(&row);
  }
  if (active.empty()) return {};
  const Status status = run(active);
  for (DecodeRow* row : active) {
    if (!status.ok() || !row->status.ok()) drop_row(*row->cache);
  }
  return status;
}

Status DecodeBatch::run(std::span<DecodeRow*> rows) {
  const ModelConfig& config = model_.config();
  const std::size_t n = rows.size();
  const auto heads = static_cast<std::size_t>(config.num_heads) * static_cast<std::size_t>(config.head_dim);
  ids_.clear();
  positions_.clear();
  for (const DecodeRow* row : rows) {
    ids_.push_back(row->token_id);
    positions_.push_back(row->position);
  }
  x_.resize(n * static_cast<std::size_t>(config.hidden_size));
  query_.resize(n * heads);
  attention_.resize(n * heads);
  QUIRE_RETURN_IF_ERROR(model_.embed(ids_, x_.data()));
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) QUIRE_RETURN_IF_ERROR(run_layer(layer, rows));
  const auto vocab = static_cast<std::size_t>(config.vocab_size);
  logits_.resize(n * vocab);
  QUIRE_RETURN_IF_ERROR(model_.logits(x_.data(), static_cast<std::int64_t>(n), logits_.data()));
  for (std::size_t i = 0; i < n; ++i) rows[i]->logits = std::span<const float>(logits_).subspan(i * vocab, vocab);
  return {};
}

Status DecodeBatch::run_layer(std::int32_t layer, std::span<DecodeRow*> rows) {
  const ModelConfig& config = model_.config();
  const DType dtype = model_.options().kv_dtype;
  const auto n = static_cast<std::int64_t>(rows.size());
  const std::int64_t heads = std::int64_t{config.num_heads} * config.head_dim;
  for (std::int64_t i = 0; i < n; ++i) {
    Retriever& retriever = *rows[static_cast<std::size_t>(i)]->retriever;
    if (std::ranges::find(retriever.hidden_layers(), layer) != retriever.hidden_layers().end()) retriever.take_hidden(layer, x_.data() + i * config.hidden_size);
  }
  QUIRE_ASSIGN_OR_RETURN(const QkvRows qkv, model_.project_qkv(layer, x_.data(), n));
  RopeRotateArgs rotate{};
  rotate.x = qkv.q;
  rotate.out = query_.data();
  rotate.positions = positions_.data();
  rotate.rows = n;
  rotate.num_heads = config.num_heads;
  rotate.ldx = qkv.ld;
  rotate.ldo = heads;
  QUIRE_RETURN_IF_ERROR(rope_rotate(model_.rope(), rotate));
  const std::int64_t head_bytes = config.head_dim * static_cast<std::int64_t>(dtype_bytes(dtype));
  raw_.resize(static_cast<std::size_t>(2 * config.num_kv_heads * head_bytes));
  for (std::int64_t i = 0; i < n; ++i) {
    DecodeRow& row = *rows[static_cast<std::size_t>(i)];
    if (!row.status.ok()) continue;
    // Rounded before RoPE, exactly as stored KV is.
    KvPackArgs pack{};
    pack.k = qkv.k + i * qkv.ld;
    pack.v = qkv.v + i * qkv.ld;
    pack.rows = 1;
    pack.ldk = pack.ldv = qkv.ld;
    pack.num_kv_heads = config.num_kv_heads;
    pack.head_dim = config.head_dim;
    pack.dtype = dtype;
    pack.out = raw_.data();
    QUIRE_RETURN_IF_ERROR(kv_pack(pack));
    const RawKvView raw{.data = raw_.data(), .num_rows = 1, .dtype = dtype, .head_stride = 2 * head_bytes, .kv_stride = head_bytes, .row_stride = head_bytes};
    QUIRE_RETURN_IF_ERROR(row.cache->place(layer, model_.rope(), raw, row.cache->num_rows(layer) - 1));
    RetrieveStep step;
    step.layer = layer;
    step.query = query_.data() + i * heads;
    step.position = row.position;
    step.cache = row.cache;
    step.num_heads = config.num_heads;
    step.head_dim = config.head_dim;
    step.out = attention_.data() + i * heads;
    row.status = row.retriever->attend(step);
    if (!row.status.ok()) std::fill_n(step.out, heads, 0.0f);
  }
  return model_.finish_layer(layer, x_.data(), attention_.data(), n);
}

}  // namespace quire
