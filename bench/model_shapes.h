/// Published shapes that benchmarks run with random weights.
#pragma once

namespace quire::bench {

struct ModelShape {
  const char *name, *config;  ///< config: text of a config.json
};

/// The embedded model's shape with a longer window, fast enough for hundreds of long prompts.
inline constexpr ModelShape kTiny = {
    "tiny (6 layers of 256)",
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 6, )"
    R"("hidden_size": 256,
      "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": )"
    R"(64, "vocab_size": 4096,
      "rms_norm_eps": 1e-5, "max_position_embeddings": 16384, "rope_theta": 10000.0, )"
    R"("tie_word_embeddings": true})"};
inline constexpr ModelShape kQwen05B = {
    "Qwen2.5-0.5B",
    R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 24, )"
    R"("hidden_size": 896,
      "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2, )"
    R"("vocab_size": 151936, "rms_norm_eps": 1e-6,
      "max_position_embeddings": 32768, "rope_theta": 1000000.0, "tie_word_embeddings": true})"};
inline constexpr ModelShape kLlama1B = {
    "Llama-3.2-1B",
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 16, )"
    R"("hidden_size": 2048,
      "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": )"
    R"(64, "vocab_size": 128256,
      "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0, )"
    R"("tie_word_embeddings": true,
      "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, )"
    R"("high_freq_factor": 4.0,
                       "original_max_position_embeddings": 8192}})"};
inline constexpr ModelShape kLlama8B = {
    "Llama-3.1-8B",
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, )"
    R"("hidden_size": 4096,
      "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, )"
    R"("head_dim": 128, "vocab_size": 128256,
      "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0, )"
    R"("tie_word_embeddings": false,
      "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, )"
    R"("high_freq_factor": 4.0,
                       "original_max_position_embeddings": 8192}})"};

}  // namespace quire::bench
