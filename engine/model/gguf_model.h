/// These functions read a model from a GGUF file: its configuration, and its tensors under the
/// names of model folders.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/gguf/gguf.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace quire {

/// Converts the metadata to a ModelConfig. Architectures: llama (also Mistral, SmolLM, Yi,
/// TinyLlama), qwen2, qwen3. Stored RoPE factors must be those of Llama 3.1's formula. Errors:
/// kInvalidArgument, kUnimplemented with the file's path; field() is a metadata key, or the key of
/// the corresponding config.json.
Result<ModelConfig> gguf_model_config(const GgufFile& file);

/// Checks that every tensor belongs to the model and has a type that this build computes with.
/// Errors: kUnimplemented naming the tensor and its type; kInvalidArgument for a layer past the
/// last.
Status check_gguf_tensors(const GgufFile& file, const ModelConfig& config);

/// Makes the source of a file's tensors under the names of model folders
/// (model.layers.0.self_attn.q_proj.weight). Block types stay blocks. Rows of Q and K that the file
/// stores for an interleaved rotation (llama) are reordered to the other rotation, in copies.
/// `config` is the file's.
std::unique_ptr<WeightSource> gguf_weights(std::shared_ptr<const GgufFile> file,
                                           const ModelConfig& config);

/// Returns the bytes that a model needs on the host besides its packed weights as
/// ModelConfig::num_parameters() counts them. They are the largest matrices that packing expands at
/// once, and the embedding table; negative if the table is counted there but stays in the file.
std::int64_t gguf_extra_bytes(const GgufFile& file, const ModelConfig& config,
                              double bytes_per_weight);

}  // namespace quire
