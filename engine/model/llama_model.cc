#include "engine/model/llama_model.h"

#include <algorithm>
#include <cstring>

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Rows the feed-forward part handles at once: its activations are the widest of the model.
constexpr std::int64_t kChunkRows = 512;

const float* bias_or_null(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

class LlamaModel final : public Model {
 public:
  LlamaModel(ModelConfig config, ModelOptions options, std::shared_ptr<const RopeTable> rope, std::shared_ptr<const LlamaWeights> weights)
      : config_(std::move(config)), options_(options), shared_rope_(std::move(rope)), shared_weights_(std::move(weights)) {}

  const ModelConfig& config() const override { return config_; }
  const ModelOptions& options() const override { return options_; }
  const RopeTable& rope() const override { return rope_; }
  const std::array<std::uint8_t, 32>& weights_digest() const override { return w_.digest; }

  std::int64_t decode_weight_bytes() const override {
    std::int64_t bytes = w_.head->bytes() + float_bytes(w_.final_norm);
    for (const LlamaLayer& l : w_.layers) {
      for (const auto* m : {&l.qkv, &l.output, &l.gate_up, &l.down}) bytes += (*m)->bytes();
      for (const auto* v : {&l.input_norm, &l.post_norm, &l.q_norm, &l.k_norm, &l.qkv_bias, &l.output_bias, &l.gate_up_bias, &l.down_bias}) {
        bytes += float_bytes(*v);
      }
    }
    return bytes;
  }

  std::int64_t memory_bytes() const override {
    const std::int64_t rope = rope_.max_positions() * rope_.config().rotary_dim * static_cast<std::int64_t>(sizeof(float));
    return decode_weight_bytes() + static_cast<std::int64_t>(w_.embedding.bytes().size()) + rope;
  }

  std::unique_ptr<Model> twin() const override { return std::make_unique<LlamaModel>(config_, options_, shared_rope_, shared_weights_); }

  Status embed(std::span<const std::int32_t> ids, float* x) const override {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= config_.vocab_size) {
        return Status::invalid("token_ids", "token " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                                                " is outside the model's vocabulary of " + std::to_string(config_.vocab_size));
      }
    }
    const std::int64_t h = config_.hidden_size;
    parallel_for(static_cast<std::int64_t>(ids.size()), 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) embed_row(ids[static_cast<std::size_t>(r)], x + r * h);
    });
    return {};
  }

  Result<QkvRows> project_qkv(std::int32_t layer_idx, const float* x, std::int64_t rows) override {
    const LlamaLayer& l = layer(layer_idx);
    const ModelConfig& c = config_;
    const std::int64_t q_dim = std::int64_t{c.num_heads} * c.head_dim, kv_dim = std::int64_t{c.num_kv_heads} * c.head_dim;
    const std::int64_t ld = q_dim + 2 * kv_dim;
    grow(qkv_, rows * ld);
    for (std::int64_t begin = 0; begin < rows; begin += kChunkRows) {
      const std::int64_t n = std::min(kChunkRows, rows - begin);
      float* out = qkv_.data() + begin * ld;
      QUIRE_RETURN_IF_ERROR(norm(x + begin * c.hidden_size, l.input_norm, n));
      QUIRE_RETURN_IF_ERROR(l.qkv->multiply(normed_.data(), n, c.hidden_size, bias_or_null(l.qkv_bias), out, ld));
      if (c.qk_norm) QUIRE_RETURN_IF_ERROR(norm_heads(l, out, n, ld, q_dim));
    }
    return QkvRows{qkv_.data(), qkv_.data() + q_dim, qkv_.data() + q_dim + kv_dim, rows, ld};
  }

  Status finish_layer(std::int32_t layer_idx, float* x, const float* attention, std::int64_t rows) override {
    const LlamaLayer& l = layer(layer_idx);
    const std::int64_t h = config_.hidden_size, f = config_.intermediate_size;
    const std::int64_t q_dim = std::int64_t{config_.num_heads} * config_.head_dim;
    for (std::int64_t begin = 0; begin < rows; begin += kChunkRows) {
      const std::int64_t n = std::min(kChunkRows, rows - begin);
      float* xs = x + begin * h;
      grow(branch_, n * h);
      grow(gate_up_, n * 2 * f);
      grow(activated_, n * f);
      QUIRE_RETURN_IF_ERROR(l.output->multiply(attention + begin * q_dim, n, q_dim, bias_or_null(l.output_bias), branch_.data(), h));
      add_inplace(xs, branch_.data(), n * h);
      QUIRE_RETURN_IF_ERROR(norm(xs, l.post_norm, n));
      QUIRE_RETURN_IF_ERROR(l.gate_up->multiply(normed_.data(), n, h, bias_or_null(l.gate_up_bias), gate_up_.data(), 2 * f));
      QUIRE_RETURN_IF_ERROR(swiglu({.gate_up = gate_up_.data(), .out = activated_.data(), .rows = n, .dim = f}));
      QUIRE_RETURN_IF_ERROR(l.down->multiply(activated_.data(), n, f, bias_or_null(l.down_bias), branch_.data(), h));
      add_inplace(xs, branch_.data(), n * h);
    }
    return {};
  }

  Status final_norm(const float* x, std::int64_t rows, float* out) override {
    return rms_norm({.x = x, .weight = w_.final_norm.data(), .out = out, .rows = rows, .dim = config_.hidden_size, .eps = config_.rms_norm_eps});
  }

  Status logits(const float* x, std::int64_t rows, float* out) override {
    for (std::int64_t begin = 0; begin < rows; begin += kChunkRows) {
      const std::int64_t n = std::min(kChunkRows, rows - begin);
      QUIRE_RETURN_IF_ERROR(norm(x + begin * config_.hidden_size, w_.final_norm, n));
      QUIRE_RETURN_IF_ERROR(w_.head->multiply(normed_.data(), n, config_.hidden_size, nullptr, out + begin * config_.vocab_size, config_.vocab_size));
    }
    return {};
  }

 private:
  static std::int64_t float_bytes(const std::vector<float>& v) { return static_cast<std::int64_t>(v.size() * sizeof(float)); }
  static void grow(std::vector<float>& v, std::int64_t n) {
    if (v.size() < static_cast<std::size_t>(n)) v.resize(static_cast<std::size_t>(n));
  }

  const LlamaLayer& layer(std::int32_t i) const { return w_.layers.at(static_cast<std::size_t>(i)); }

  void embed_row(std::int32_t id, float* out) const {
    const std::int64_t h = config_.hidden_size, base = id * h;
    if (w_.embedding.dtype == DType::kF32) {
      std::memcpy(out, static_cast<const float*>(w_.embedding.data) + base, static_cast<std::size_t>(h) * sizeof(float));
    } else {
      for (std::int64_t c = 0; c < h; ++c) out[c] = load_f32(w_.embedding.data, w_.embedding.dtype, base + c);
    }
  }

  /// normed_ = RMSNorm(x).
  Status norm(const float* x, const std::vector<float>& weight, std::int64_t rows) {
    grow(normed_, rows * config_.hidden_size);
    return rms_norm({.x = x, .weight = weight.data(), .out = normed_.data(), .rows = rows, .dim = config_.hidden_size, .eps = config_.rms_norm_eps});
  }

  /// RMSNorm over each q and k head, in place. rms_norm() wants dense rows: the heads of one token are.
  Status norm_heads(const LlamaLayer& l, float* qkv, std::int64_t rows, std::int64_t ld, std::int64_t q_dim) const {
    const std::int64_t d = config_.head_dim;
    std::vector<Status> failed(static_cast<std::size_t>(rows));
    parallel_for(rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        float* q = qkv + r * ld;
        float* k = q + q_dim;
        Status s = rms_norm({.x = q, .weight = l.q_norm.data(), .out = q, .rows = config_.num_heads, .dim = d, .eps = config_.rms_norm_eps});
        if (s.ok()) s = rms_norm({.x = k, .weight = l.k_norm.data(), .out = k, .rows = config_.num_kv_heads, .dim = d, .eps = config_.rms_norm_eps});
        failed[static_cast<std::size_t>(r)] = std::move(s);
      }
    });
    for (const Status& s : failed) QUIRE_RETURN_IF_ERROR(s);
    return {};
  }

  const ModelConfig config_;
  const ModelOptions options_;
  const std::shared_ptr<const RopeTable> shared_rope_;
  const std::shared_ptr<const LlamaWeights> shared_weights_;
  const RopeTable& rope_ = *shared_rope_;
  const LlamaWeights& w_ = *shared_weights_;
  std::vector<float> normed_, qkv_, branch_, gate_up_, activated_;  // scratch of the compute methods
};

}  // namespace

Result<std::unique_ptr<Model>> make_llama_model(ModelConfig config, const ModelOptions& options, LlamaWeights weights) {
  ModelOptions effective = options;
  if (effective.max_positions == 0) effective.max_positions = config.max_position_embeddings;
  QUIRE_ASSIGN_OR_RETURN(RopeTable rope, RopeTable::build(config.rope, effective.max_positions));
  return std::unique_ptr<Model>(std::make_unique<LlamaModel>(std::move(config), effective, std::make_shared<const RopeTable>(std::move(rope)),
                                                             std::make_shared<const LlamaWeights>(std::move(weights))));
}

}  // namespace quire
