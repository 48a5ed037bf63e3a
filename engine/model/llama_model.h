/// The one decoder graph of all supported families. Internal to engine/model: callers use model.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/model.h"
#include "engine/model/weights.h"
#include "kernels/matmul.h"

namespace quire {

/// Weights of one layer, packed. Empty vectors: the model has no such tensor.
struct LlamaLayer {
  std::vector<float> input_norm, post_norm;        ///< [hidden]
  std::vector<float> q_norm, k_norm;               ///< [head_dim]
  std::vector<float> qkv_bias, output_bias, gate_up_bias, down_bias;
  std::unique_ptr<PackedMatrix> qkv;               ///< q, k, v stacked: [(heads + 2 kv_heads) * head_dim, hidden]
  std::unique_ptr<PackedMatrix> output;            ///< [hidden, heads * head_dim]
  std::unique_ptr<PackedMatrix> gate_up, down;     ///< [2 * intermediate, hidden], [hidden, intermediate]
};

/// Everything read from the files, before it becomes a Model.
struct LlamaWeights {
  std::vector<LlamaLayer> layers;
  std::vector<float> final_norm;
  std::unique_ptr<PackedMatrix> head;              ///< [vocab, hidden]
  WeightTensor embedding;                          ///< [vocab, hidden]: points into `folder` or `embedding_copy`
  std::vector<std::byte> embedding_copy;
  std::unique_ptr<TensorFolder> folder;            ///< kept open only while the embedding lies in it
  std::array<std::uint8_t, 32> digest{};
};

/// Reads and packs all weights, layer by layer. Errors: those of WeightSource and pack_weights.
Result<LlamaWeights> read_llama_weights(const ModelConfig& config, WeightFormat format, WeightSource& source);

Result<std::unique_ptr<Model>> make_llama_model(ModelConfig config, const ModelOptions& options, LlamaWeights weights);

}  // namespace quire
