#include "engine/prefill/context_capture.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/index.h"
#include "kernels/rows/kv.h"

namespace quire {
namespace {

std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

}  // namespace

/// Offsets of the parts of a layer's rows in the bytes that are fetched.
struct ContextCapture::Arriving {
  std::int32_t layer = 0, first_block = 0;
  std::int64_t rows = 0, blocks = 0;  ///< of the context
  bool has_local = false;             ///< rows of the last two blocks are among them
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
      first_token_(rows.first_token),
      rows_before_(rows.rows_before) {}

std::int64_t ContextCapture::first_local_row() const {
  const KvLayout& layout = kv_->layout;
  return skip_ + std::max<std::int64_t>(
                     0, layout.first_token(std::max(0, layout.num_blocks() - 2)) - first_token_);
}

Status ContextCapture::after_projection(LayerPass& pass) {
  QUIRE_RETURN_IF_ERROR(fetch_rows(pass));
  for (const ObservedRecord& record : observers_)
    QUIRE_RETURN_IF_ERROR(
        record.observer->after_projection(pass, {skip_, first_token_, rows_before_}));
  return {};
}

Status ContextCapture::after_attention(LayerPass& pass) {
  if (statistics_ != nullptr) QUIRE_RETURN_IF_ERROR(add_statistics(pass));
  // The last layer's output is not used, so its MLP need not run.
  if (pass.layer == kv_->layout.shape().num_layers - 1)
    std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
  return {};
}

/// Captures a layer: rows are packed in one piece and divided into blocks when they arrive.
Status ContextCapture::fetch_rows(const LayerPass& pass) {
  const KvLayout& layout = kv_->layout;
  const KvShape& shape = layout.shape();
  const QkvRows& qkv = pass.qkv;
  const std::int64_t width = std::int64_t{shape.num_kv_heads} * shape.head_dim;
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
  a.has_local = qkv.rows > first_local_row();
  a.means_at = aligned(2 * a.rows * width * size);
  a.local_at = a.means_at + (statistics_ != nullptr ? aligned(a.blocks * width * kFloat) : 0);
  a.bytes = a.local_at + (a.has_local ? query_dim() * kFloat : 0);
  QUIRE_ASSIGN_OR_RETURN(std::byte* const to, pass.compute->fetch().place(a.bytes));
  const auto floats = [to](std::int64_t offset) { return reinterpret_cast<float*>(to + offset); };
  QUIRE_RETURN_IF_ERROR(pass.compute->kv().pack({.k = qkv.k + skip_ * qkv.ld,
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
  if (statistics_ != nullptr)
    QUIRE_RETURN_IF_ERROR(
        pass.compute->kv().block_means(core_.model->rope(), {.raw = raw,
                                                             .num_kv_heads = shape.num_kv_heads,
                                                             .head_dim = shape.head_dim,
                                                             .block_tokens = layout.block_tokens(),
                                                             .first_position = first_token_,
                                                             .means = floats(a.means_at)}));
  if (a.has_local) QUIRE_RETURN_IF_ERROR(sum_local_rows(pass, floats(a.local_at)));
  return pass.compute->fetch().fetch(a.bytes,
                                     [this, a](const std::byte* bytes) { take(a, bytes); });
}

/// Adds the chunk's local rows to the layer's sums, one after the other, so that chunks do not
/// change a bit of them, and copies the sums.
Status ContextCapture::sum_local_rows(const LayerPass& pass, float* to) {
  const std::int64_t layers = kv_->layout.shape().num_layers, dim = query_dim(),
                     first = first_local_row();
  if (kv_->local_sums.data() == nullptr) {
    QUIRE_RETURN_IF_ERROR(kv_->local_sums.reserve(pass.compute->memory(), layers * dim));
    const std::vector<float> zeros(to_size(layers * dim));
    QUIRE_RETURN_IF_ERROR(write_memory(pass.compute->memory().get(), kv_->local_sums.data(),
                                       zeros.data(),
                                       count_of(zeros) * std::int64_t{sizeof(float)}));
  }
  float* const sums = kv_->local_sums.data() + pass.layer * dim;
  LinearOps& linear = pass.compute->linear();
  QUIRE_RETURN_IF_ERROR(linear.sum_columns({.x = pass.qkv.q + first * pass.qkv.ld,
                                            .rows = pass.qkv.rows - first,
                                            .dim = dim,
                                            .ldx = pass.qkv.ld,
                                            .sums = sums}));
  return linear.copy_rows(sums, 1, dim, dim, to);
}

std::int64_t ContextCapture::query_dim() const {
  return std::int64_t{core_.facts.num_heads} * core_.facts.shape.head_dim;
}

void ContextCapture::take(const Arriving& a, const std::byte* bytes) {
  const KvLayout& layout = kv_->layout;
  const KvShape& shape = layout.shape();
  const std::int64_t width = std::int64_t{shape.num_kv_heads} * shape.head_dim;
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
  const auto floats = [bytes](std::int64_t offset) {
    return reinterpret_cast<const float*>(bytes + offset);
  };
  if (statistics_ != nullptr) {
    if (kv_->means.empty())
      kv_->means.resize(at(shape.num_layers) * at(layout.num_blocks()) * at(width));
    std::copy_n(
        floats(a.means_at), a.blocks * width,
        kv_->means.begin() + (std::int64_t{a.layer} * layout.num_blocks() + a.first_block) * width);
  }
  if (a.has_local)
    std::copy_n(floats(a.local_at), query_dim(), kv_->local_query.begin() + a.layer * query_dim());
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
  chunk.prefix_rows = rows_before_;
  chunk.kv = pass.cache->view(pass.layer);
  chunk.compute = pass.compute;
  QUIRE_RETURN_IF_ERROR(statistics_->add(core_.model->rope(), chunk));
  statistics_ms_ += ms_between(started, Clock::now());
  return {};
}

}  // namespace quire
