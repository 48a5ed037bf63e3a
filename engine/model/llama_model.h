/// The one decoder graph of all supported families. Internal to engine/model: callers use model.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model/compute.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"

namespace quire {

/// Weights of one layer, where the Compute reads them. Empty values: the model has no such tensor.
struct LlamaLayer {
  ComputeValues input_norm, post_norm;  ///< [hidden] f32
  ComputeValues q_norm, k_norm;         ///< [head_dim]
  ComputeValues qkv_bias, output_bias, gate_up_bias, down_bias;
  /// Q, k, v stacked: [(heads + 2 kv_heads) * head_dim, hidden]
  std::unique_ptr<ComputeMatrix> qkv;
  std::unique_ptr<ComputeMatrix> output;  ///< [hidden, heads * head_dim]
  /// [2 * intermediate, hidden], [hidden, intermediate]
  std::unique_ptr<ComputeMatrix> gate_up, down;
};

/// Everything read from the files, before it becomes a Model.
struct LlamaWeights {
  std::vector<LlamaLayer> layers;
  ComputeValues final_norm;
  std::unique_ptr<ComputeMatrix> head;  ///< [vocab, hidden]
  /// [vocab, hidden]: points into `files` or `embedding_copy`; blocks only where the host computes
  WeightTensor embedding;
  ComputeValues embedding_copy;
  /// The mapped files, kept only while the embedding lies in them
  std::shared_ptr<const void> files;
  std::array<std::uint8_t, 32> digest{};
};

/// How a matrix is kept in a model of weights `format`. Four bits (kW4) leave blocks as they are
/// stored and round the layers of a folder; the head, and matrices that a file of blocks holds as
/// values, are kept in eight, since they lose too much in four.
WeightFormat matrix_format(const ModelConfig& config, WeightFormat format, bool head);

/// Matrices with the same inputs, stacked into one product.
Result<std::unique_ptr<ComputeMatrix>> pack_stacked(Compute& compute,
                                                    std::span<const WeightTensor* const> tensors,
                                                    WeightFormat format);

/// Reads and packs all weights, layer by layer. Errors: those of WeightSource and Compute::pack.
Result<LlamaWeights> read_llama_weights(const ModelConfig& config, WeightFormat format,
                                        WeightSource& source, Compute& compute);

/// `weights` are those of `compute`.
Result<std::unique_ptr<Model>> make_llama_model(ModelConfig config, const ModelOptions& options,
                                                LlamaWeights weights,
                                                std::shared_ptr<Compute> compute);

}  // namespace quire
