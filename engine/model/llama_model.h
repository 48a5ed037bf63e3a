/// This is the one decoder graph of all supported families. Internal to engine/model: callers use
/// model.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/compute/compute.h"
#include "engine/model/model.h"
#include "engine/model/weights.h"

namespace quire {

/// LlamaLayer holds the weights of one layer in memory that the Compute reads. Empty values: the
/// model has no such tensor.
struct LlamaLayer {
  ComputeValues input_norm, post_norm;  ///< [hidden] f32
  ComputeValues q_norm, k_norm;         ///< [head_dim]
  ComputeValues qkv_bias, output_bias, gate_up_bias, down_bias;
  /// Q, K and V stacked: [(heads + 2 kv_heads) * head_dim, hidden].
  std::unique_ptr<ComputeMatrix> qkv;
  std::unique_ptr<ComputeMatrix> output;  ///< [hidden, heads * head_dim]
  /// [2 * intermediate, hidden] and [hidden, intermediate].
  std::unique_ptr<ComputeMatrix> gate_up, down;
};

/// LlamaWeights holds everything read from the files, before it becomes a Model.
struct LlamaWeights {
  std::vector<LlamaLayer> layers;
  ComputeValues final_norm;
  std::unique_ptr<ComputeMatrix> head;  ///< [vocab, hidden]
  /// The embedding table [vocab, hidden], which points into `files` or `embedding_copy`. It is
  /// blocks only where the host computes.
  WeightTensor embedding;
  ComputeValues embedding_copy;
  /// The mapped files, kept only while the embedding lies in them.
  std::shared_ptr<const void> files;
  std::array<std::uint8_t, 32> digest{};
};

/// Returns how a model of weights `format` stores a matrix. Four bits (kW4) keep stored blocks and
/// round the layers of a folder. The head, and matrices that a file of blocks stores as values,
/// have eight bits, since they lose too much in four.
WeightFormat matrix_format(const ModelConfig& config, WeightFormat format, bool head);

/// Packs matrices with the same inputs into one stacked matrix for one product.
Result<std::unique_ptr<ComputeMatrix>> pack_stacked(Compute& compute,
                                                    std::span<const WeightTensor* const> tensors,
                                                    WeightFormat format);

/// Returns whether a tensor, by its name in a folder or a GGUF file, is one of a layer that
/// ModelOptions::first_layers leaves out.
bool is_left_out(const ModelConfig& config, std::string_view tensor);

/// Reads and packs all weights, layer by layer. Errors: those of WeightSource and Compute::pack.
Result<LlamaWeights> read_llama_weights(const ModelConfig& config, WeightFormat format,
                                        WeightSource& source, Compute& compute);

/// Makes the model; `weights` belong to `compute`.
Result<std::unique_ptr<Model>> make_llama_model(ModelConfig config, const ModelOptions& options,
                                                LlamaWeights weights,
                                                std::shared_ptr<Compute> compute);

}  // namespace quire
