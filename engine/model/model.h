/// A loaded model: weights, RoPE table, and the pieces a forward pass is made of.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/model/compute.h"
#include "engine/model/config.h"
#include "kernels/matmul.h"
#include "kernels/rope.h"

namespace quire {

struct ModelOptions {
  WeightFormat weights = WeightFormat::kBF16;
  DType kv_dtype = DType::kF16;    ///< of stored and cached KV
  std::int64_t max_positions = 0;  ///< RoPE table length; 0: config.max_position_embeddings
};

/// Raw projections of some rows: q [rows, num_heads * head_dim], k and v [rows, num_kv_heads *
/// head_dim], f32 row-major, all inside one buffer with row stride ld.
struct QkvRows {
  const float *q, *k, *v;
  std::int64_t rows, ld;
};

/// On a device the widest parts of a layer handle so many rows at once.
inline constexpr std::int64_t kDevicePieceRows = 2048;

/// Immutable after load. Threads: the compute methods from one thread at a time (the engine
/// thread); the rest from any. Activations are f32 [rows, hidden_size] row-major, in the memory of
/// compute() where it has one; calls return as its calls do.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const ModelOptions& options() const = 0;
  virtual const RopeTable& rope() const = 0;
  /// SHA-256 over the names, shapes, dtypes and bytes of every tensor used, and the config fields
  /// that matter.
  virtual const std::array<std::uint8_t, 32>& weights_digest() const = 0;
  /// Bytes a decode step must read (packed weights incl. the head, without the embedding table of
  /// an untied model).
  virtual std::int64_t decode_weight_bytes() const = 0;
  virtual std::int64_t memory_bytes() const = 0;
  /// The same weights and RoPE table, not copied, with buffers of its own: its compute methods may
  /// run beside those of this one, with the same results.
  virtual std::unique_ptr<Model> twin() const = 0;
  /// Rows of the head, packed as it is: a product with them gives the logits of these tokens alone,
  /// with the same bits. Null where they are not at hand: a head that is not the embedding table,
  /// or a device that keeps that. Errors: kInvalidArgument (id outside the vocabulary), those of
  /// Compute::pack().
  virtual Result<std::unique_ptr<ComputeMatrix>> head_rows(
      std::span<const std::int32_t> token_ids) const = 0;
  /// Who computes the methods below, for what a pass needs besides.
  virtual Compute& compute() const = 0;

  /// x[i] = embedding(ids[i]). Errors: kInvalidArgument (id outside the vocabulary).
  virtual Status embed(std::span<const std::int32_t> ids, float* x) const = 0;
  /// Input norm, QKV projection, bias and QK-norm of `layer`, before RoPE. The rows stay valid
  /// until the next call.
  virtual Result<QkvRows> project_qkv(std::int32_t layer, const float* x, std::int64_t rows) = 0;
  /// x += o_proj(attention); x += mlp(norm(x)). attention: [rows, num_heads * head_dim].
  virtual Status finish_layer(std::int32_t layer, float* x, const float* attention,
                              std::int64_t rows) = 0;
  /// Final norm: out [rows, hidden_size]. `x` is not changed. Both lie in ordinary memory, and it
  /// has run when the call returns.
  virtual Status final_norm(const float* x, std::int64_t rows, float* out) = 0;
  /// Final norm and head: logits [rows, vocab_size]. `x` is not changed.
  virtual Status logits(const float* x, std::int64_t rows, float* out) = 0;
};

/// Reads a Hugging Face folder (config.json, *.safetensors single or sharded), or a GGUF file:
/// `dir` is the file, or a folder with one (engine/gguf/gguf.h, find_gguf). A wrong, lying or
/// truncated file is refused with its name and the reason; nothing is read past its end. Logs
/// progress for large models. Errors: kNotFound (no such file), kInvalidArgument (field() is the
/// config key, file or tensor), kUnimplemented, kResourceExhausted (it does not fit in memory),
/// kIo. `compute` keeps the weights and runs the model; null: the CPU.
Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& dir,
                                          const ModelOptions& options,
                                          std::shared_ptr<Compute> compute = nullptr);

/// Random weights of a given shape, for speed measurements: the same code path, no files.
/// Deterministic in `seed`.
Result<std::unique_ptr<Model>> make_random_model(const ModelConfig& config,
                                                 const ModelOptions& options, std::uint64_t seed,
                                                 std::shared_ptr<Compute> compute = nullptr);

}  // namespace quire
