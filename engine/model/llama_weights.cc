#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "base/index.h"
#include "base/log.h"
#include "engine/model/llama_model.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

constexpr std::int64_t kProgressBytes = std::int64_t{1} << 30;

std::vector<float> to_f32(const WeightTensor& tensor) {
  std::vector<float> out(to_size(tensor.num_elements));
  if (!tensor.blocks) {
    for (std::int64_t i = 0; i < tensor.num_elements; ++i)
      out[at(i)] = load_f32(tensor.data, tensor.dtype, i);
    return out;
  }
  const BlockType type = *tensor.blocks;
  const auto* blocks = static_cast<const std::byte*>(tensor.data);
  parallel_for(tensor.num_elements / block_weights(type), 1024,
               [&](std::int64_t begin, std::int64_t end) {
                 dequantise_blocks(type, blocks + begin * block_bytes(type), end - begin,
                                   out.data() + begin * block_weights(type));
               });
  return out;
}

/// TensorGroup holds the tensors of one layer (or of the model's ends), which are fetched, hashed,
/// packed and dropped together.
class TensorGroup {
 public:
  TensorGroup(WeightSource& source, WeightsDigest& digest, std::string prefix)
      : source_(source), digest_(digest), prefix_(std::move(prefix)) {
    tensors_.reserve(32);  // pointers into it stay valid
  }
  ~TensorGroup() {
    for (const WeightTensor& t : tensors_) source_.drop(t);
  }
  TensorGroup(const TensorGroup&) = delete;
  TensorGroup& operator=(const TensorGroup&) = delete;

  /// Returns the tensor, or null after a failure, which status() describes.
  const WeightTensor* fetch(const char* name, std::vector<std::int64_t> shape, const char* from) {
    if (!status_.ok()) return nullptr;
    Result<WeightTensor> tensor = source_.get(prefix_ + name, std::move(shape), from);
    if (!tensor.ok()) {
      status_ = tensor.status();
      return nullptr;
    }
    tensors_.push_back(std::move(*tensor));
    return &tensors_.back();
  }

  /// Checks and hashes the tensors. Call it once, after the last fetch.
  Status check_and_hash() {
    QUIRE_RETURN_IF_ERROR(status_);
    if (!source_.hashes_bytes()) return {};
    Status s = digest_.add(tensors_);
    return s.ok() ? s : s.with_context(source_.location());
  }
  /// Keeps the last tensor alive past this group.
  void keep_last() { tensors_.pop_back(); }

 private:
  WeightSource& source_;
  WeightsDigest& digest_;
  std::string prefix_;
  std::vector<WeightTensor> tensors_;
  Status status_;
};

std::vector<float> joined(std::initializer_list<const WeightTensor*> tensors) {
  std::vector<float> all;
  for (const WeightTensor* tensor : tensors) {
    const std::vector<float> values = to_f32(*tensor);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// Uploads the tensors, concatenated in f32.
Result<ComputeValues> keep(Compute& compute, std::initializer_list<const WeightTensor*> tensors) {
  return compute.upload(std::as_bytes(std::span<const float>(joined(tensors))));
}

/// Calls pack(parts, k, dtype) with the stacked tensors. Blocks are packed as they are. Values
/// usually share a dtype; if not, f32 holds them.
template <class Pack>
Result<std::unique_ptr<ComputeMatrix>> stacked(std::span<const WeightTensor* const> tensors,
                                               Pack pack) {
  std::optional<DType> dtype;
  bool same = true;
  for (const WeightTensor* t : tensors) {
    if (t->blocks) continue;
    same = same && (!dtype || *dtype == t->dtype);
    dtype = t->dtype;
  }
  std::vector<std::vector<float>> widened;
  std::vector<WeightPart> parts;
  widened.reserve(tensors.size());
  for (const WeightTensor* t : tensors) {
    if (t->blocks || same) {
      parts.push_back({t->data, t->shape[0], t->blocks});
    } else {
      widened.push_back(to_f32(*t));
      parts.push_back({widened.back().data(), t->shape[0], std::nullopt});
    }
  }
  Result<std::unique_ptr<ComputeMatrix>> packed = pack(std::span<const WeightPart>(parts),
                                                       tensors[0]->shape[1],
                                                       same && dtype ? *dtype : DType::kF32);
  if (!packed.ok()) return packed.status().with_context(tensors[0]->name);
  return packed;
}

Result<LlamaLayer> read_layer(const ModelConfig& c, WeightFormat format, WeightSource& source,
                              Compute& compute, WeightsDigest& digest, std::int32_t layer) {
  TensorGroup group(source, digest, "model.layers." + std::to_string(layer) + ".");
  const std::int64_t h = c.hidden_size, f = c.intermediate_size, d = c.head_dim;
  const std::int64_t q_dim = c.num_heads * d, kv_dim = c.num_kv_heads * d;
  const char* of_q = "num_attention_heads * head_dim, hidden_size";
  const char* of_kv = "num_key_value_heads * head_dim, hidden_size";
  const char* of_mlp = "intermediate_size, hidden_size";

  // The digest of the weights depends on this order.
  std::vector<const WeightTensor*> qkv, gate_up;
  if (c.fused_projections) {
    qkv = {group.fetch("self_attn.qkv_proj.weight", {q_dim + 2 * kv_dim, h},
                       "(num_attention_heads + 2 * num_key_value_heads) * head_dim, hidden_size")};
  } else {
    qkv = {group.fetch("self_attn.q_proj.weight", {q_dim, h}, of_q),
           group.fetch("self_attn.k_proj.weight", {kv_dim, h}, of_kv),
           group.fetch("self_attn.v_proj.weight", {kv_dim, h}, of_kv)};
  }
  const WeightTensor* o = group.fetch("self_attn.o_proj.weight", {h, q_dim}, of_q);
  if (c.fused_projections) {
    gate_up = {
        group.fetch("mlp.gate_up_proj.weight", {2 * f, h}, "2 * intermediate_size, hidden_size")};
  } else {
    gate_up = {group.fetch("mlp.gate_proj.weight", {f, h}, of_mlp),
               group.fetch("mlp.up_proj.weight", {f, h}, of_mlp)};
  }
  const WeightTensor* down = group.fetch("mlp.down_proj.weight", {h, f}, of_mlp);
  const WeightTensor* input_norm = group.fetch("input_layernorm.weight", {h}, "hidden_size");
  const WeightTensor* post_norm = group.fetch("post_attention_layernorm.weight", {h},
                                              "hidden_size");
  auto optional = [&](bool wanted, const char* name, std::int64_t n, const char* from) {
    return wanted ? group.fetch(name, {n}, from) : nullptr;
  };
  const WeightTensor* q_norm = optional(c.qk_norm, "self_attn.q_norm.weight", d, "head_dim");
  const WeightTensor* k_norm = optional(c.qk_norm, "self_attn.k_norm.weight", d, "head_dim");
  const WeightTensor* q_bias = optional(c.qkv_bias, "self_attn.q_proj.bias", q_dim, of_q);
  const WeightTensor* k_bias = optional(c.qkv_bias, "self_attn.k_proj.bias", kv_dim, of_kv);
  const WeightTensor* v_bias = optional(c.qkv_bias, "self_attn.v_proj.bias", kv_dim, of_kv);
  const WeightTensor* o_bias = optional(c.attention_output_bias, "self_attn.o_proj.bias", h,
                                        "hidden_size");
  const WeightTensor* gate_bias = optional(c.mlp_bias, "mlp.gate_proj.bias", f,
                                           "intermediate_size");
  const WeightTensor* up_bias = optional(c.mlp_bias, "mlp.up_proj.bias", f, "intermediate_size");
  const WeightTensor* down_bias = optional(c.mlp_bias, "mlp.down_proj.bias", h, "hidden_size");
  QUIRE_RETURN_IF_ERROR(group.check_and_hash());

  const WeightFormat kept = matrix_format(c, format, false);
  LlamaLayer out;
  QUIRE_ASSIGN_OR_RETURN(out.qkv, pack_stacked(compute, qkv, kept));
  QUIRE_ASSIGN_OR_RETURN(out.output, pack_stacked(compute, {&o, 1}, kept));
  std::vector<float> gate_up_values;
  if (c.mlp_bias) gate_up_values = joined({gate_bias, up_bias});
  QUIRE_ASSIGN_OR_RETURN(out.gate_up, stacked(gate_up, [&](std::span<const WeightPart> parts,
                                                           std::int64_t k, DType dtype) {
                           return compute.pack_gate_up(parts, k, dtype, kept, gate_up_values);
                         }));
  QUIRE_ASSIGN_OR_RETURN(out.down, pack_stacked(compute, {&down, 1}, kept));
  QUIRE_ASSIGN_OR_RETURN(out.input_norm, keep(compute, {input_norm}));
  QUIRE_ASSIGN_OR_RETURN(out.post_norm, keep(compute, {post_norm}));
  if (c.qk_norm) {
    QUIRE_ASSIGN_OR_RETURN(out.q_norm, keep(compute, {q_norm}));
    QUIRE_ASSIGN_OR_RETURN(out.k_norm, keep(compute, {k_norm}));
  }
  if (c.qkv_bias) {
    QUIRE_ASSIGN_OR_RETURN(out.qkv_bias, keep(compute, {q_bias, k_bias, v_bias}));
  }
  if (c.attention_output_bias) {
    QUIRE_ASSIGN_OR_RETURN(out.output_bias, keep(compute, {o_bias}));
  }
  if (c.mlp_bias) {
    QUIRE_ASSIGN_OR_RETURN(out.gate_up_bias,
                           compute.upload(std::as_bytes(std::span<const float>(gate_up_values))));
    QUIRE_ASSIGN_OR_RETURN(out.down_bias, keep(compute, {down_bias}));
  }
  return out;
}

/// Uploads the embedding table expanded to bf16, as a device looks rows up.
Status keep_expanded(Compute& compute, const WeightTensor& embedding, LlamaWeights& out) {
  const std::vector<float> values = to_f32(embedding);
  std::vector<std::uint16_t> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), f32_to_bf16);
  QUIRE_ASSIGN_OR_RETURN(out.embedding_copy, compute.upload(std::as_bytes(std::span(rounded))));
  out.embedding.data = out.embedding_copy.data.get();
  out.embedding.dtype = DType::kBF16;
  out.embedding.blocks.reset();
  return {};
}

Status read_ends(const ModelConfig& c, WeightFormat format, WeightSource& source, Compute& compute,
                 WeightsDigest& digest, LlamaWeights& out) {
  const char* from = "vocab_size, hidden_size";
  {
    TensorGroup group(source, digest, "");
    const WeightTensor* norm = group.fetch("model.norm.weight", {c.hidden_size}, "hidden_size");
    const WeightTensor* head = nullptr;
    if (!c.tie_word_embeddings)
      head = group.fetch("lm_head.weight", {c.vocab_size, c.hidden_size}, from);
    QUIRE_RETURN_IF_ERROR(group.check_and_hash());
    QUIRE_ASSIGN_OR_RETURN(out.final_norm, keep(compute, {norm}));
    if (head) {
      QUIRE_ASSIGN_OR_RETURN(out.head,
                             pack_stacked(compute, {&head, 1}, matrix_format(c, format, true)));
    }
  }
  TensorGroup group(source, digest, "");
  const WeightTensor* embedding = group.fetch("model.embed_tokens.weight",
                                              {c.vocab_size, c.hidden_size}, from);
  QUIRE_RETURN_IF_ERROR(group.check_and_hash());
  if (c.tie_word_embeddings) {
    QUIRE_ASSIGN_OR_RETURN(out.head,
                           pack_stacked(compute, {&embedding, 1}, matrix_format(c, format, true)));
  }
  out.embedding = *embedding;
  if (embedding->blocks && compute.memory() != nullptr)
    return keep_expanded(compute, *embedding, out);
  if (embedding->bytes().size() <= kCopyEmbeddingBytes || !embedding->mapped ||
      compute.memory() != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(out.embedding_copy, compute.upload(embedding->bytes()));
    out.embedding.data = out.embedding_copy.data.get();
  } else {
    group.keep_last();
  }
  return {};
}

Status check_unused(const ModelConfig& c, const WeightSource& source) {
  const std::string further = "model.layers." + std::to_string(c.num_layers) + ".";
  std::vector<std::string> unused = source.unused();
  std::erase_if(unused, [&](const std::string& name) {
    return name.ends_with("rotary_emb.inv_freq") ||
           (c.tie_word_embeddings && name == "lm_head.weight") || is_left_out(c, name);
  });
  for (const std::string& name : unused) {
    if (name.starts_with(further)) {
      return Status::invalid("num_hidden_layers", source.location() + " holds " + name +
                                                      ", but config.json says there are only " +
                                                      std::to_string(c.num_layers) +
                                                      " layers (num_hidden_layers)");
    }
  }
  if (!unused.empty()) {
    log_warning("tensors of the model are not used", {{"model", source.location()},
                                                      {"count", std::to_string(unused.size())},
                                                      {"first", unused[0]}});
  }
  return {};
}

}  // namespace

bool is_left_out(const ModelConfig& config, std::string_view tensor) {
  for (const std::string_view prefix : {"model.layers.", "blk."}) {
    if (!tensor.starts_with(prefix)) continue;
    std::int64_t layer = -1;
    std::from_chars(tensor.data() + prefix.size(), tensor.data() + tensor.size(), layer);
    return layer >= config.num_layers &&
           layer < std::int64_t{config.num_layers} + config.left_out_layers;
  }
  return false;
}

WeightFormat matrix_format(const ModelConfig& config, WeightFormat format, bool head) {
  if (format != WeightFormat::kW4) return format;
  return head || config.quantised_weights ? WeightFormat::kW8 : WeightFormat::kW4;
}

Result<std::unique_ptr<ComputeMatrix>> pack_stacked(Compute& compute,
                                                    std::span<const WeightTensor* const> tensors,
                                                    WeightFormat format) {
  return stacked(tensors, [&](std::span<const WeightPart> parts, std::int64_t k, DType dtype) {
    return compute.pack(parts, k, dtype, format);
  });
}

Result<LlamaWeights> read_llama_weights(const ModelConfig& config, WeightFormat format,
                                        WeightSource& source, Compute& compute) {
  using Clock = std::chrono::steady_clock;
  const bool show = source.total_bytes() > kProgressBytes;
  auto last = Clock::now();
  LlamaWeights out;
  WeightsDigest digest;
  digest.add_text(config_digest_text(config));
  if (show) {
    log_info("loading weights", {{"model", source.location()},
                                 {"mib", std::to_string(source.total_bytes() >> 20)},
                                 {"layers", std::to_string(config.num_layers)}});
  }
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    QUIRE_ASSIGN_OR_RETURN(LlamaLayer one,
                           read_layer(config, format, source, compute, digest, layer));
    out.layers.push_back(std::move(one));
    if (show && Clock::now() - last > std::chrono::seconds(2)) {
      last = Clock::now();
      log_info("loading weights",
               {{"layer", std::to_string(layer + 1)}, {"of", std::to_string(config.num_layers)}});
    }
  }
  QUIRE_RETURN_IF_ERROR(read_ends(config, format, source, compute, digest, out));
  QUIRE_RETURN_IF_ERROR(check_unused(config, source));
  out.digest = digest.finish();
  return out;
}

}  // namespace quire
