/// ModelConfig is a model's shape and numerics as a Hugging Face config.json states them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/rows/rope.h"

namespace quire {

enum class ModelFamily : std::uint8_t { kLlama, kMistral, kQwen2, kQwen3, kPhi3 };

/// ModelConfig describes one decoder-only transformer of the Llama family. The parser has validated
/// every number.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  std::string model_type;  ///< as written: llama, mistral, qwen2, qwen3, phi3
  /// Number of layers of the files behind num_layers that ModelOptions::first_layers leaves out.
  std::int32_t left_out_layers = 0;
  std::int32_t num_layers = 0, hidden_size = 0, intermediate_size = 0;
  std::int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0, vocab_size = 0;
  std::int64_t max_position_embeddings = 0;  ///< the window the model was trained (or scaled) for
  /// The number of last tokens that some layers are limited to; 0: no layer is. load_model()
  /// refuses a window longer than this.
  std::int64_t sliding_window = 0;
  float rms_norm_eps = 1e-5f;
  bool tie_word_embeddings = false;
  bool qkv_bias = false, attention_output_bias = false, mlp_bias = false;
  bool qk_norm = false;  ///< RMSNorm of each q and k head before RoPE (Qwen3)
  /// One tensor holds q, k and v, and another gate and up, in this order (Phi-3).
  bool fused_projections = false;
  RopeConfig rope;
  /// LongRoPE: divisors of the frequencies for windows up to rope.original_max_position, and for
  /// longer ones. choose_long_rope() enters one of them into `rope`.
  std::vector<float> short_divisors = {}, long_divisors = {};
  std::vector<std::int32_t> bos_token_ids, eos_token_ids;
  /// Most weights are stored in blocks of eight bits or fewer: model.weights = auto keeps them so.
  bool quantised_weights = false;

  std::int32_t group_size() const { return num_heads / num_kv_heads; }
  /// Returns the bytes of raw K and V of one token in one layer.
  std::int64_t kv_bytes_per_token_layer(DType dtype) const {
    return std::int64_t{2} * num_kv_heads * head_dim *
           static_cast<std::int64_t>(dtype_bytes(dtype));
  }
  /// Returns the longest sequence that can be served: the model's window, or the sliding one of
  /// some layers where that is shorter, as every layer attends to all rows here.
  std::int64_t longest_sequence() const {
    return sliding_window > 0 ? std::min(sliding_window, max_position_embeddings)
                              : max_position_embeddings;
  }
  /// Returns the number of parameters; a tied embedding counts once.
  std::int64_t num_parameters() const;
};

/// Enters the divisors of LongRoPE that a window of `positions` asks for into config.rope; other
/// models stay as they are. Cached keys and values would not fit if the divisors followed each
/// query's length, so the window decides, as in llama.cpp and vLLM.
void choose_long_rope(ModelConfig& config, std::int64_t positions);

/// Parses the text of a config.json and never throws. Unknown architectures, impossible or missing
/// shapes and unsupported features (mixture of experts, quantised weights, dynamic RoPE) are
/// kInvalidArgument/kUnimplemented with field() = the JSON key.
Result<ModelConfig> parse_model_config(std::string_view json);
/// Reads the configuration from <dir>/config.json, and more end-of-text ids from
/// <dir>/generation_config.json if it exists. If `dir` is a GGUF file, or a folder with one
/// (engine/gguf/gguf.h, find_gguf), it reads the file's metadata instead.
Result<ModelConfig> load_model_config(const std::filesystem::path& dir);

}  // namespace quire
