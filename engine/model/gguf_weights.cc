#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/index.h"
#include "engine/model/gguf_model.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Pair is a part of a name in a GGUF file and in a model folder.
struct Pair {
  std::string_view gguf, folder;
};
constexpr Pair kEnds[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                          {"output_norm.weight", "model.norm.weight"},
                          {"output.weight", "lm_head.weight"}};
constexpr std::string_view kLayer = "blk.", kFolderLayer = "model.layers.";
constexpr Pair kLayers[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate.bias", "mlp.gate_proj.bias"},
    {"ffn_up.bias", "mlp.up_proj.bias"},
    {"ffn_down.bias", "mlp.down_proj.bias"},
    {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
    {"ffn_up.weight", "mlp.gate_up_proj.weight"},  // where both are in one tensor
};

/// Returns whether a tensor was read with the configuration.
bool is_of_config(std::string_view name) {
  return name == "rope_freqs.weight" || name == "rope_factors_short.weight" ||
         name == "rope_factors_long.weight";
}

/// LayerName splits "blk.12.attn_q.weight" with prefix "blk." into 12 and "attn_q.weight".
struct LayerName {
  std::int64_t layer = -1;
  std::string_view rest;
};
LayerName layer_name(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return {};
  name.remove_prefix(prefix.size());
  LayerName out;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  const auto digits = to_size(end - name.data());
  if (error != std::errc() || out.layer < 0 || digits >= name.size() || name[digits] != '.')
    return {};
  out.rest = name.substr(digits + 1);
  return out;
}

/// Returns the other spelling of a name; empty if there is none.
std::string translate(std::string_view name, std::string_view Pair::*from,
                      std::string_view Pair::*to, std::string_view from_prefix,
                      std::string_view to_prefix) {
  for (const Pair& p : kEnds) {
    if (p.*from == name) return std::string(p.*to);
  }
  const LayerName layer = layer_name(name, from_prefix);
  for (const Pair& p : kLayers) {
    if (layer.layer >= 0 && p.*from == layer.rest) {
      return std::string(to_prefix) + std::to_string(layer.layer) + "." + std::string(p.*to);
    }
  }
  return {};
}
std::string gguf_name(std::string_view folder) {
  return translate(folder, &Pair::folder, &Pair::gguf, kFolderLayer, kLayer);
}
std::string folder_name(std::string_view gguf) {
  return translate(gguf, &Pair::gguf, &Pair::folder, kLayer, kFolderLayer);
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

std::string supported_types() {
  std::string out = "F32, F16, BF16";
  for (int i = 0; i < kNumGgmlTypes; ++i)
    out += ", " + std::string(block_type_name(static_cast<BlockType>(i)));
  return out;
}

Status unsupported_type(const GgufView& view) {
  return Status(Code::kUnimplemented,
                *view.file + ": tensor " + view.tensor->name + " is stored as " +
                    std::string(view.tensor->type.name) +
                    ", which is not supported; use a file of the model in one of " +
                    supported_types() + " (Q4_K_M, for instance)",
                view.tensor->name);
}

class GgufWeights final : public WeightSource {
 public:
  GgufWeights(std::shared_ptr<const GgufFile> file, const ModelConfig& config)
      : file_(std::move(file)),
        heads_(config.num_heads),
        kv_heads_(config.num_kv_heads),
        head_dim_(config.head_dim) {
    GgufFields in(file_->metadata());
    interleaved_ = in.text("general.architecture") == "llama";
  }

  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                           const char* from) override {
    const std::string stored = gguf_name(name);
    const GgufView view = file_->find(stored);
    if (view.tensor == nullptr) {
      return Status::invalid(stored, location() + ": tensor " + stored +
                                         " is missing; it must have the shape " +
                                         shape_text(shape) + " (" + from + ")");
    }
    if (view.tensor->shape != shape) {
      return Status::invalid(stored, *view.file + ": tensor " + stored + " has the shape " +
                                         shape_text(view.tensor->shape) + ", but the metadata (" +
                                         from + ") say " + shape_text(shape));
    }
    if (!view.tensor->type.supported()) return unsupported_type(view);
    used_.insert(stored);
    WeightTensor tensor{
        .name = name, .data = view.bytes.data(), .shape = std::move(shape), .mapped = true};
    tensor.dtype = view.tensor->type.dtype.value_or(DType::kF32);
    tensor.blocks = view.tensor->type.blocks;
    tensor.num_elements = 1;
    for (const std::int64_t dim : tensor.shape) tensor.num_elements *= dim;
    const std::int64_t heads = turned_heads(name);
    const bool aligned = tensor.blocks || reinterpret_cast<std::uintptr_t>(tensor.data) %
                                                  dtype_bytes(tensor.dtype) ==
                                              0;
    if (heads == 0 && aligned) return tensor;
    std::vector<std::byte>& copy = copies_[name];
    copy.assign(view.bytes.begin(), view.bytes.end());
    if (heads > 0) turn_rows(view.bytes, heads, copy);
    tensor.data = copy.data();
    tensor.mapped = false;
    return tensor;
  }

  void drop(const WeightTensor& tensor) override {
    copies_.erase(tensor.name);
    file_->drop_pages(file_->find(gguf_name(tensor.name)));
  }
  std::string location() const override { return file_->path(); }
  std::int64_t total_bytes() const override {
    return static_cast<std::int64_t>(file_->total_bytes());
  }
  std::vector<std::string> unused() const override {
    std::vector<std::string> out;
    for (const auto& [name, view] : file_->tensors()) {
      if (!is_of_config(name) && !used_.contains(name)) out.emplace_back(name);
    }
    return out;
  }

 private:
  /// Returns the heads of a tensor whose rows are in the order of an interleaved rotation; else 0.
  std::int64_t turned_heads(std::string_view name) const {
    if (!interleaved_) return 0;
    const std::string_view rest = layer_name(name, kFolderLayer).rest;
    if (rest.starts_with("self_attn.q_proj.")) return heads_;
    return rest.starts_with("self_attn.k_proj.") ? kv_heads_ : 0;
  }

  /// Reorders rows: within a head, row 2i + j of the file is row j * head_dim / 2 + i of a folder.
  void turn_rows(std::span<const std::byte> from, std::int64_t heads,
                 std::vector<std::byte>& to) const {
    const std::size_t row = from.size() / to_size(heads * head_dim_);
    parallel_for(heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin * head_dim_; r < end * head_dim_; ++r) {
        const std::int64_t in_head = r % head_dim_, half = head_dim_ / 2;
        const std::int64_t source = r - in_head + 2 * (in_head % half) + in_head / half;
        std::memcpy(to.data() + at(r) * row, from.data() + at(source) * row, row);
      }
    });
  }

  std::shared_ptr<const GgufFile> file_;
  std::int64_t heads_, kv_heads_, head_dim_;
  bool interleaved_ = false;
  std::set<std::string, std::less<>> used_;
  std::map<std::string, std::vector<std::byte>> copies_;
};

}  // namespace

Status check_gguf_tensors(const GgufFile& file, const ModelConfig& config) {
  for (const auto& [name, view] : file.tensors()) {
    if (is_of_config(name)) continue;
    if (folder_name(name).empty()) {
      return Status(
          Code::kUnimplemented,
          *view.file + ": tensor " + std::string(name) +
              " is no part of a model this build knows; the model cannot be run without it",
          std::string(name));
    }
    if (const LayerName layer = layer_name(name, kLayer); layer.layer >= config.num_layers) {
      return Status::invalid(std::string(name), *view.file + " holds " + std::string(name) +
                                                    ", but its metadata say there are only " +
                                                    std::to_string(config.num_layers) +
                                                    " layers (block_count)");
    }
    if (!view.tensor->type.supported()) return unsupported_type(view);
  }
  return {};
}

std::unique_ptr<WeightSource> gguf_weights(std::shared_ptr<const GgufFile> file,
                                           const ModelConfig& config) {
  return std::make_unique<GgufWeights>(std::move(file), config);
}

std::int64_t gguf_extra_bytes(const GgufFile& file, const ModelConfig& config,
                              double bytes_per_weight) {
  const GgufView embedding = file.find("token_embd.weight");
  const std::int64_t h = config.hidden_size, f = config.intermediate_size, d = config.head_dim;
  const std::int64_t table = h * config.vocab_size;
  std::int64_t extra = 0;
  if (!config.tie_word_embeddings)
    extra -= static_cast<std::int64_t>(static_cast<double>(table) * bytes_per_weight);
  if (embedding.bytes.size() <= kCopyEmbeddingBytes) extra += count_of(embedding.bytes);
  std::int64_t widest = 0;  // the most weights that are f32 at one time
  const auto widened = [&](const char* name, std::int64_t weights) {
    const GgufView view = file.find(name);
    if (view.tensor != nullptr && view.tensor->type.blocks) widest = std::max(widest, weights);
  };
  widened("blk.0.attn_q.weight", h * d * (config.num_heads + 2 * config.num_kv_heads));
  widened("blk.0.attn_qkv.weight", h * d * (config.num_heads + 2 * config.num_kv_heads));
  widened("blk.0.ffn_gate.weight", 2 * h * f);
  if (config.fused_projections) widened("blk.0.ffn_up.weight", 2 * h * f);
  widened(config.tie_word_embeddings ? "token_embd.weight" : "output.weight", table);
  return extra + widest * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace quire
