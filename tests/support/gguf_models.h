/// Writes models as GGUF files for tests, from the tensors of a model folder.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/matmul/quant_blocks.h"
#include "tests/support/gguf_files.h"
#include "tests/support/model_files.h"

namespace quire::test {

/// Maps "model.layers.3.self_attn.q_proj.weight" to "blk.3.attn_q.weight".
inline std::string gguf_tensor_name(std::string name) {
  const std::pair<std::string, std::string> parts[] = {
      {"model.layers.", "blk."},           {"model.embed_tokens", "token_embd"},
      {"model.norm", "output_norm"},       {"lm_head", "output"},
      {"input_layernorm", "attn_norm"},    {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
      {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},       {"self_attn.qkv_proj", "attn_qkv"},
      {"mlp.gate_up_proj", "ffn_up"},
  };
  for (const auto& [from, to] : parts) {
    if (const std::size_t at = name.find(from); at != std::string::npos) {
      name.replace(at, from.size(), to);
    }
  }
  return name;
}

inline std::uint32_t gguf_type_number(const std::string& name) {
  const std::pair<const char*, std::uint32_t> numbers[] = {
      {"F32", 0},  {"F16", 1},   {"BF16", 30}, {"Q4_0", 2},  {"Q4_1", 3},
      {"Q8_0", 8}, {"Q2_K", 10}, {"Q4_K", 12}, {"Q6_K", 14}, {"IQ1_S", 19}};
  for (const auto& [known, number] : numbers) {
    if (name == known) return number;
  }
  return 99;
}

/// Returns the rows of Q or K in the order of the architecture llama: row j * d / 2 + i of a head
/// becomes its row 2i + j.
inline std::string rows_for_llama(const std::string& bytes, std::int64_t heads,
                                  std::int64_t head_dim) {
  const std::size_t row = bytes.size() / static_cast<std::size_t>(heads * head_dim);
  std::string out(bytes.size(), '\0');
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < head_dim / 2; ++i) {
      for (std::int64_t j = 0; j < 2; ++j) {
        const auto from = static_cast<std::size_t>(h * head_dim + j * head_dim / 2 + i) * row;
        const auto to = static_cast<std::size_t>(h * head_dim + 2 * i + j) * row;
        std::memcpy(out.data() + to, bytes.data() + from, row);
      }
    }
  }
  return out;
}

inline void add_gguf_config(GgufWriter& out, const ModelConfig& c,
                            const std::string& architecture) {
  const std::string p = architecture + ".";
  const auto n = [](auto value) { return static_cast<std::uint32_t>(value); };
  out.text("general.architecture", architecture);
  out.u32(p + "block_count", n(c.num_layers)).u32(p + "embedding_length", n(c.hidden_size));
  out.u32(p + "feed_forward_length", n(c.intermediate_size))
      .u32(p + "attention.head_count", n(c.num_heads));
  out.u32(p + "attention.head_count_kv", n(c.num_kv_heads))
      .u32(p + "attention.key_length", n(c.head_dim));
  out.u32(p + "attention.value_length", n(c.head_dim))
      .u32(p + "rope.dimension_count", n(c.rope.rotary_dim));
  out.u32(p + "context_length", n(c.max_position_embeddings))
      .u32(p + "vocab_size", n(c.vocab_size));
  out.f32(p + "attention.layer_norm_rms_epsilon", c.rms_norm_eps)
      .f32(p + "rope.freq_base", c.rope.theta);
}

/// Adds the tensors of a folder. Their types are "F32", "F16", "BF16" or, where bytes are blocks,
/// those of GGUF files.
inline void add_gguf_tensors(GgufWriter& out, const ModelConfig& c, const std::string& architecture,
                             const std::vector<testing::FileTensor>& tensors) {
  for (const testing::FileTensor& t : tensors) {
    const std::string name = gguf_tensor_name(t.name);
    const bool q = name.find("attn_q.") != std::string::npos,
               k = name.find("attn_k.") != std::string::npos;
    const bool turn = architecture == "llama" && (q || k);
    std::vector<std::uint64_t> dims(t.shape.rbegin(), t.shape.rend());
    out.tensor(
        name, dims, gguf_type_number(t.dtype),
        turn ? rows_for_llama(t.bytes, q ? c.num_heads : c.num_kv_heads, c.head_dim) : t.bytes);
  }
}

/// Converts f32 values to another type.
inline testing::FileTensor tensor_as(const testing::FileTensor& f32, DType dtype) {
  testing::FileTensor out = f32;
  out.dtype = dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
  const std::size_t count = f32.bytes.size() / sizeof(float);
  out.bytes.assign(count * dtype_bytes(dtype), '\0');
  for (std::size_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, f32.bytes.data() + i * sizeof(float), sizeof(float));
    store_f32(out.bytes.data(), dtype, static_cast<std::int64_t>(i), value);
  }
  return out;
}

}  // namespace quire::test
