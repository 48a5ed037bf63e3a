/// A model in a GGUF file: its configuration, and its tensors under the names of model folders.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/gguf/gguf.h"
#include "engine/model/config.h"
#include "engine/model/weights.h"

namespace quire {

/// The metadata as a ModelConfig. Architectures: llama (also Mistral, SmolLM, Yi, TinyLlama),
/// qwen2, qwen3. Stored RoPE factors must be those of Llama 3.1's formula. Errors:
/// kInvalidArgument, kUnimplemented with the file's path; field() is a metadata key, or the key of
/// a config.json that stands for it.
Result<ModelConfig> gguf_model_config(const GgufFile& file);

/// Whether every tensor is one of the model's and of a type this build computes with. Errors:
/// kUnimplemented naming the tensor and its type; kInvalidArgument for a layer past the last.
Status check_gguf_tensors(const GgufFile& file, const ModelConfig& config);

/// The tensors of a file by the names of model folders (model.layers.0.self_attn.q_proj.weight).
/// Block types stay blocks. Rows of Q and K that the file keeps in the order of an interleaved
/// rotation (llama) come in the order of the others: those tensors are copies. `config` is the
/// file's.
std::unique_ptr<WeightSource> gguf_weights(std::shared_ptr<const GgufFile> file,
                                           const ModelConfig& config);

/// Bytes a model needs on the host beside its packed weights as ModelConfig::num_parameters()
/// counts them: the largest matrices that are expanded at once while they are packed, and the
/// embedding table. May be negative where the table is counted there, but stays in the file.
std::int64_t gguf_extra_bytes(const GgufFile& file, const ModelConfig& config,
                              double bytes_per_weight);

}  // namespace quire
