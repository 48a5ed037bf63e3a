#include "engine/model/llama_model.h"

#include <algorithm>

#include "base/index.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// The rows that the projections and the feed-forward part process at once. Their activations are
/// the widest of the model, and stay in the CPU caches between products. Products read their
/// weights once per kBlockRows rows in any case (kernels/matmul/cpu/packed_matrix.cc).
constexpr std::int64_t kPieceRows = 256;

class LlamaModel final : public Model {
 public:
  LlamaModel(ModelConfig config, ModelOptions options, std::shared_ptr<Compute> compute,
             std::shared_ptr<const RopeTable> rope, std::shared_ptr<const void> known_rope,
             std::shared_ptr<const LlamaWeights> weights)
      : config_(std::move(config)),
        options_(options),
        compute_(std::move(compute)),
        memory_(compute_->memory()),
        shared_rope_(std::move(rope)),
        known_rope_(std::move(known_rope)),
        shared_weights_(std::move(weights)) {}

  const ModelConfig& config() const override { return config_; }
  const ModelOptions& options() const override { return options_; }
  const RopeTable& rope() const override { return rope_; }
  const std::array<std::uint8_t, 32>& weights_digest() const override { return w_.digest; }

  std::int64_t decode_weight_bytes() const override {
    std::int64_t bytes = w_.head->bytes() + w_.final_norm.bytes;
    for (const LlamaLayer& l : w_.layers) {
      for (const auto* m : {&l.qkv, &l.output, &l.gate_up, &l.down}) bytes += (*m)->bytes();
      for (const auto* v : {&l.input_norm, &l.post_norm, &l.q_norm, &l.k_norm, &l.qkv_bias,
                            &l.output_bias, &l.gate_up_bias, &l.down_bias}) {
        bytes += v->bytes;
      }
    }
    return bytes;
  }

  std::int64_t memory_bytes() const override {
    const std::int64_t rope = rope_.max_positions() * rope_.config().rotary_dim *
                              static_cast<std::int64_t>(sizeof(float));
    return decode_weight_bytes() + count_of(w_.embedding.bytes()) + rope;
  }

  std::unique_ptr<Model> twin() const override {
    return std::make_unique<LlamaModel>(config_, options_, compute_->twin(), shared_rope_,
                                        known_rope_, shared_weights_);
  }
  Compute& compute() const override { return *compute_; }

  Result<std::unique_ptr<ComputeMatrix>> head_rows(
      std::span<const std::int32_t> token_ids) const override {
    if (!config_.tie_word_embeddings || memory_ != nullptr) return std::unique_ptr<ComputeMatrix>();
    QUIRE_RETURN_IF_ERROR(check(token_ids));
    const std::size_t row_bytes = w_.embedding.bytes().size() / to_size(config_.vocab_size);
    std::vector<std::byte> rows(token_ids.size() * row_bytes);
    for (std::size_t i = 0; i < token_ids.size(); ++i) {
      const auto row = w_.embedding.bytes().subspan(at(token_ids[i]) * row_bytes, row_bytes);
      std::copy(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes));
    }
    WeightTensor some = w_.embedding;
    some.data = rows.data();
    some.shape[0] = count_of(token_ids);
    some.num_elements = some.shape[0] * config_.hidden_size;
    const WeightTensor* one = &some;
    return pack_stacked(*compute_, {&one, 1}, matrix_format(config_, options_.weights, true));
  }

  Status embed(std::span<const std::int32_t> ids, float* x) const override {
    QUIRE_RETURN_IF_ERROR(check(ids));
    if (w_.embedding.blocks) return embed_blocks(ids, x);
    return compute_->linear().embed(w_.embedding.data, w_.embedding.dtype, config_.vocab_size,
                                    config_.hidden_size, ids, x);
  }

  Status embed_drawn(const std::int32_t* ids, std::int64_t rows, float* x) const override {
    return compute_->linear().embed_drawn(w_.embedding.data, w_.embedding.dtype, config_.vocab_size,
                                          config_.hidden_size, ids, rows, x);
  }

  Result<QkvRows> project_qkv(std::int32_t layer_idx, const float* x, std::int64_t rows) override {
    const LlamaLayer& l = layer(layer_idx);
    const ModelConfig& c = config_;
    const std::int64_t q_dim = std::int64_t{c.num_heads} * c.head_dim,
                       kv_dim = std::int64_t{c.num_kv_heads} * c.head_dim;
    const std::int64_t ld = q_dim + 2 * kv_dim;
    QUIRE_RETURN_IF_ERROR(qkv_.reserve(memory_, rows * ld));
    for (std::int64_t begin = 0; begin < rows; begin += piece_rows_) {
      const std::int64_t n = std::min(piece_rows_, rows - begin);
      float* out = qkv_.data() + begin * ld;
      const DType dtype = compute_->linear().input_dtype(*l.qkv, n);
      QUIRE_RETURN_IF_ERROR(norm(x + begin * c.hidden_size, l.input_norm, n, dtype));
      QUIRE_RETURN_IF_ERROR(compute_->linear().product(
          {l.qkv.get(), normed_.data(), n, c.hidden_size, l.qkv_bias.floats(), out, ld, dtype}));
      if (!c.qk_norm) continue;
      QUIRE_RETURN_IF_ERROR(
          compute_->linear().norm_heads({out, n, ld, c.num_heads, c.num_kv_heads, c.head_dim,
                                         l.q_norm.floats(), l.k_norm.floats(), c.rms_norm_eps}));
    }
    return QkvRows{qkv_.data(), qkv_.data() + q_dim, qkv_.data() + q_dim + kv_dim, rows, ld};
  }

  DType attention_dtype(std::int32_t layer_idx, std::int64_t rows) const override {
    const ComputeMatrix& output = *layer(layer_idx).output;
    const DType whole = compute_->linear().input_dtype(output, std::min(rows, piece_rows_));
    const std::int64_t rest = rows % piece_rows_;
    // The last piece may have so few rows that its product reads another dtype.
    return rest == 0 || compute_->linear().input_dtype(output, rest) == whole ? whole : DType::kF32;
  }

  Status finish_layer(std::int32_t layer_idx, float* x, const void* attention, DType dtype,
                      std::int64_t rows) override {
    const LlamaLayer& l = layer(layer_idx);
    const std::int64_t h = config_.hidden_size, f = config_.intermediate_size;
    const std::int64_t q_dim = std::int64_t{config_.num_heads} * config_.head_dim,
                       row_bytes = q_dim * static_cast<std::int64_t>(dtype_bytes(dtype));
    for (std::int64_t begin = 0; begin < rows; begin += piece_rows_) {
      const std::int64_t n = std::min(piece_rows_, rows - begin);
      float* xs = x + begin * h;
      QUIRE_RETURN_IF_ERROR(branch_.reserve(memory_, std::min(rows, piece_rows_) * h));
      QUIRE_RETURN_IF_ERROR(gate_up_.reserve(memory_, std::min(rows, piece_rows_) * 2 * f));
      QUIRE_RETURN_IF_ERROR(activated_.reserve(memory_, std::min(rows, piece_rows_) * f));
      const auto* attended = static_cast<const std::byte*>(attention) + begin * row_bytes;
      QUIRE_RETURN_IF_ERROR(compute_->linear().add_product(
          {l.output.get(), attended, n, q_dim, l.output_bias.floats(), xs, h, dtype},
          branch_.data()));
      const DType up_dtype = compute_->linear().input_dtype(*l.gate_up, n);
      QUIRE_RETURN_IF_ERROR(norm(xs, l.post_norm, n, up_dtype));
      QUIRE_RETURN_IF_ERROR(
          compute_->linear().feed_forward({.gate_up = l.gate_up.get(),
                                           .down = l.down.get(),
                                           .x = normed_.data(),
                                           .x_dtype = up_dtype,
                                           .rows = n,
                                           .gate_up_bias = l.gate_up_bias.floats(),
                                           .down_bias = l.down_bias.floats(),
                                           .y = xs,
                                           .gate_up_scratch = gate_up_.data(),
                                           .activated_scratch = activated_.data(),
                                           .scratch = branch_.data()}));
    }
    return {};
  }

  Status final_norm(const float* x, std::int64_t rows, float* out) override {
    const std::int64_t h = config_.hidden_size;
    if (memory_ == nullptr) return norm_into(x, w_.final_norm, rows, out, DType::kF32);
    for (std::int64_t begin = 0; begin < rows; begin += piece_rows_) {
      const std::int64_t n = std::min(piece_rows_, rows - begin);
      QUIRE_RETURN_IF_ERROR(branch_.reserve(memory_, std::min(rows, piece_rows_) * h));
      QUIRE_RETURN_IF_ERROR(memory_->write(branch_.data(), x + begin * h,
                                           n * h * static_cast<std::int64_t>(sizeof(float))));
      QUIRE_RETURN_IF_ERROR(norm(branch_.data(), w_.final_norm, n, DType::kF32));
      QUIRE_RETURN_IF_ERROR(compute_->read(normed_.data(), n * h, out + begin * h));
    }
    return {};
  }

  Status logits(const float* x, std::int64_t rows, float* out) override {
    const std::int64_t h = config_.hidden_size, vocab = config_.vocab_size;
    for (std::int64_t begin = 0; begin < rows; begin += piece_rows_) {
      const std::int64_t n = std::min(piece_rows_, rows - begin);
      const DType dtype = compute_->linear().input_dtype(*w_.head, n);
      QUIRE_RETURN_IF_ERROR(norm(x + begin * h, w_.final_norm, n, dtype));
      QUIRE_RETURN_IF_ERROR(compute_->linear().product(
          {w_.head.get(), normed_.data(), n, h, nullptr, out + begin * vocab, vocab, dtype}));
    }
    return {};
  }

 private:
  /// Embeds from a table of blocks, which is always host memory, by expanding rows at look-up.
  Status embed_blocks(std::span<const std::int32_t> ids, float* x) const {
    const BlockType type = *w_.embedding.blocks;
    const std::int64_t row_blocks = config_.hidden_size / block_weights(type);
    const auto* table = static_cast<const std::byte*>(w_.embedding.data);
    parallel_for(count_of(ids), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t row = ids[at(r)];
        dequantise_blocks(type, table + row * row_blocks * block_bytes(type), row_blocks,
                          x + r * config_.hidden_size);
      }
    });
    return {};
  }

  Status check(std::span<const std::int32_t> ids) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= config_.vocab_size) {
        return Status::invalid("token_ids", "token " + std::to_string(ids[i]) + " at index " +
                                                std::to_string(i) +
                                                " is outside the model's vocabulary of " +
                                                std::to_string(config_.vocab_size));
      }
    }
    return {};
  }
  const LlamaLayer& layer(std::int32_t i) const { return w_.layers.at(at(i)); }

  Status norm_into(const float* x, const ComputeValues& weight, std::int64_t rows, float* out,
                   DType to) {
    return compute_->linear().norm({.x = x,
                                    .weight = weight.floats(),
                                    .out = out,
                                    .rows = rows,
                                    .dim = config_.hidden_size,
                                    .eps = config_.rms_norm_eps},
                                   to);
  }
  /// Computes normed_ = RMSNorm(x) in elements of `to`.
  Status norm(const float* x, const ComputeValues& weight, std::int64_t rows, DType to) {
    QUIRE_RETURN_IF_ERROR(normed_.reserve(memory_, rows * config_.hidden_size));
    return norm_into(x, weight, rows, normed_.data(), to);
  }

  const ModelConfig config_;
  const ModelOptions options_;
  // The Compute is declared first and destroyed last, because it owns weights, table and buffers.
  const std::shared_ptr<Compute> compute_;
  const std::shared_ptr<ComputeMemory> memory_;
  const std::int64_t piece_rows_ = memory_ == nullptr ? kPieceRows : kDevicePieceRows;
  const std::shared_ptr<const RopeTable> shared_rope_;
  const std::shared_ptr<const void> known_rope_;
  const std::shared_ptr<const LlamaWeights> shared_weights_;
  const RopeTable& rope_ = *shared_rope_;
  const LlamaWeights& w_ = *shared_weights_;
  // Scratch of the compute methods.
  ComputeBuffer<float> normed_, qkv_, branch_, gate_up_, activated_;
};

}  // namespace

Result<std::unique_ptr<Model>> make_llama_model(ModelConfig config, const ModelOptions& options,
                                                LlamaWeights weights,
                                                std::shared_ptr<Compute> compute) {
  ModelOptions effective = options;
  if (effective.max_positions == 0) effective.max_positions = config.max_position_embeddings;
  choose_long_rope(config, effective.max_positions);
  QUIRE_ASSIGN_OR_RETURN(RopeTable built, RopeTable::build(config.rope, effective.max_positions));
  auto rope = std::make_shared<const RopeTable>(std::move(built));
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> known, compute->register_rope(*rope));
  return std::unique_ptr<Model>(std::make_unique<LlamaModel>(
      std::move(config), effective, std::move(compute), std::move(rope), std::move(known),
      std::make_shared<const LlamaWeights>(std::move(weights))));
}

}  // namespace quire
