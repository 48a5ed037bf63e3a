#include "engine/prefill/context_capture.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "kernels/kv.h"

namespace quire {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

}  // namespace

/// Offsets of the parts of a layer's rows in the bytes that come from a device.
struct ContextCapture::Arriving {
  std::int32_t layer = 0, first_block = 0;
  std::int64_t rows = 0, blocks = 0;  ///< of the context
  std::int64_t local_rows = 0;
  std::int64_t means_at = 0, local_at = 0, bytes = 0;
};

ContextCapture::ContextCapture(const PassResources& core, std::shared_ptr<ContextKv> kv,
                               AttentionStatistics* statistics,
                               std::span<const ObservedRecord> observers, const ChunkRows& rows)
    : core_(core),
      kv_(std::move(kv)),
      statistics_(statistics),
      observers_(observers),
      skip_(rows.skip),
      first_token_(rows.first_token) {}

std::int64_t ContextCapture::first_local_row() const {
  const KvLayout& layout = kv_->layout;
  return skip_ + std::max<std::int64_t>(
                     0, layout.first_token(std::max(0, layout.num_blocks() - 2)) - first_token_);
}

Status ContextCapture::after_projection(LayerPass& pass) {
  HookCompute* const hooks = hooks_of(pass);
  QUIRE_RETURN_IF_ERROR(hooks != nullptr ? fetch_rows(pass, *hooks) : pack_here(pass));
  for (const ObservedRecord& record : observers_)
    QUIRE_RETURN_IF_ERROR(record.observer->after_projection(pass, {skip_, first_token_}));
  return {};
}

Status ContextCapture::after_attention(LayerPass& pass) {
  if (statistics_ != nullptr) QUIRE_RETURN_IF_ERROR(add_statistics(pass));
  // The last layer's output is not used, so its MLP need not run.
  if (pass.layer == kv_->layout.shape().num_layers - 1)
    std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
  return {};
}

Status ContextCapture::pack_here(const LayerPass& pass) {
  const KvLayout& layout = kv_->layout;
  const KvShape& shape = layout.shape();
  const QkvRows& qkv = pass.qkv;
  std::int64_t token = first_token_;
  for (std::int64_t row = skip_; row < qkv.rows;) {
    const auto block = static_cast<std::int32_t>(token / layout.block_tokens());
    const std::int64_t rows = layout.tokens_in(block);
    QUIRE_CHECK(token == layout.first_token(block) && row + rows <= qkv.rows,
                "chunk not at a block border");
    auto& value = kv_->values[at(block * layout.num_groups() + layout.group_of(pass.layer))];
    KvPackArgs args{};
    args.k = qkv.k + row * qkv.ld;
    args.v = qkv.v + row * qkv.ld;
    args.rows = rows;
    args.ldk = args.ldv = qkv.ld;
    args.num_kv_heads = shape.num_kv_heads;
    args.head_dim = shape.head_dim;
    args.dtype = shape.dtype;
    args.out = value->payload().data() + layout.layer_offset(block, pass.layer);
    QUIRE_RETURN_IF_ERROR(kv_pack(args));
    row += rows;
    token += rows;
  }
  const std::int64_t local = first_local_row();
  if (local < qkv.rows)
    add_local_query(pass.layer, qkv.q + local * qkv.ld, qkv.rows - local, qkv.ld);
  return {};
}

/// Captures a layer on a device: rows are packed in one piece and divided into blocks when they
/// arrive.
Status ContextCapture::fetch_rows(const LayerPass& pass, HookCompute& hooks) {
  const KvLayout& layout = kv_->layout;
  const KvShape& shape = layout.shape();
  const QkvRows& qkv = pass.qkv;
  const std::int64_t width = std::int64_t{shape.num_kv_heads} * shape.head_dim,
                     queries = std::int64_t{core_.facts.num_heads} * shape.head_dim;
  const auto size = static_cast<std::int64_t>(dtype_bytes(shape.dtype));
  Arriving a;
  a.layer = pass.layer;
  a.rows = qkv.rows - skip_;
  a.first_block = static_cast<std::int32_t>(first_token_ / layout.block_tokens());
  a.blocks = (a.rows + layout.block_tokens() - 1) / layout.block_tokens();
  QUIRE_CHECK(
      first_token_ == layout.first_token(a.first_block) &&
          (first_token_ + a.rows == layout.num_tokens() || a.rows % layout.block_tokens() == 0),
      "chunk not at a block border");
  a.local_rows = std::max<std::int64_t>(0, qkv.rows - first_local_row());
  a.means_at = aligned(2 * a.rows * width * size);
  a.local_at = a.means_at + aligned(a.blocks * width * kFloat);
  a.bytes = a.local_at + queries * kFloat;
  QUIRE_ASSIGN_OR_RETURN(std::byte* const to, hooks.place(a.bytes));
  const auto floats = [to](std::int64_t offset) { return reinterpret_cast<float*>(to + offset); };
  QUIRE_RETURN_IF_ERROR(hooks.pack_rows({.k = qkv.k + skip_ * qkv.ld,
                                         .v = qkv.v + skip_ * qkv.ld,
                                         .rows = a.rows,
                                         .ldk = qkv.ld,
                                         .ldv = qkv.ld,
                                         .num_kv_heads = shape.num_kv_heads,
                                         .head_dim = shape.head_dim,
                                         .dtype = shape.dtype,
                                         .out = to}));
  const std::int64_t row_bytes = shape.head_dim * size;
  const RawKvView raw{.data = to,
                      .num_rows = a.rows,
                      .dtype = shape.dtype,
                      .head_stride = 2 * a.rows * row_bytes,
                      .kv_stride = a.rows * row_bytes,
                      .row_stride = row_bytes};
  QUIRE_RETURN_IF_ERROR(
      hooks.block_means(core_.model->rope(), {.raw = raw,
                                              .num_kv_heads = shape.num_kv_heads,
                                              .head_dim = shape.head_dim,
                                              .block_tokens = layout.block_tokens(),
                                              .first_position = first_token_,
                                              .means = floats(a.means_at)}));
  if (a.local_rows > 0)
    QUIRE_RETURN_IF_ERROR(hooks.sum_rows(qkv.q + (qkv.rows - a.local_rows) * qkv.ld, a.local_rows,
                                         queries, qkv.ld, floats(a.local_at)));
  return hooks.fetch(a.bytes, [this, a](const std::byte* bytes) { take(a, bytes); });
}

void ContextCapture::take(const Arriving& a, const std::byte* bytes) {
  const KvLayout& layout = kv_->layout;
  const KvShape& shape = layout.shape();
  const std::int64_t width = std::int64_t{shape.num_kv_heads} * shape.head_dim,
                     queries = std::int64_t{core_.facts.num_heads} * shape.head_dim;
  const std::int64_t row_bytes = shape.head_dim *
                                 static_cast<std::int64_t>(dtype_bytes(shape.dtype));
  for (std::int64_t b = 0; b < a.blocks; ++b) {
    const auto block = a.first_block + static_cast<std::int32_t>(b);
    const std::int64_t rows = layout.tokens_in(block), before = b * layout.block_tokens();
    std::byte* to =
        kv_->values[at(block * layout.num_groups() + layout.group_of(a.layer))]->payload().data() +
        layout.layer_offset(block, a.layer);
    for (std::int64_t part = 0; part < 2 * shape.num_kv_heads; ++part, to += rows * row_bytes) {
      std::memcpy(to, bytes + (part * a.rows + before) * row_bytes, at(rows * row_bytes));
    }
  }
  if (kv_->means.empty())
    kv_->means.resize(at(shape.num_layers) * at(layout.num_blocks()) * at(width));
  const auto floats = [bytes](std::int64_t offset) {
    return reinterpret_cast<const float*>(bytes + offset);
  };
  std::copy_n(
      floats(a.means_at), a.blocks * width,
      kv_->means.begin() + (std::int64_t{a.layer} * layout.num_blocks() + a.first_block) * width);
  if (a.local_rows > 0) add_local_query(a.layer, floats(a.local_at), 1, queries);
}

Status ContextCapture::add_statistics(const LayerPass& pass) {
  const auto started = Clock::now();
  AttentionStatistics::Chunk chunk;
  chunk.layer = pass.layer;
  chunk.q = pass.qkv.q + skip_ * pass.qkv.ld;
  chunk.lse = pass.lse + skip_ * core_.facts.num_heads;
  chunk.rows = pass.qkv.rows - skip_;
  chunk.ldq = pass.qkv.ld;
  chunk.first_token = first_token_;
  chunk.prefix_rows = static_cast<std::int64_t>(core_.facts.ingest_prefix.size());
  chunk.kv = pass.cache->view(pass.layer);
  chunk.compute = pass.compute;
  QUIRE_RETURN_IF_ERROR(statistics_->add(core_.model->rope(), chunk));
  statistics_ms_ += ms_between(started, Clock::now());
  return {};
}

void ContextCapture::add_local_query(std::int32_t layer, const float* q, std::int64_t rows,
                                     std::int64_t ld) {
  const std::size_t dim = at(core_.facts.num_heads) * at(core_.facts.shape.head_dim);
  float* sum = kv_->local_query.data() + at(layer) * dim;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < dim; ++c) sum[c] += q[r * ld + static_cast<std::int64_t>(c)];
  }
}

}  // namespace quire
