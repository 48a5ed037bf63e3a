/// Model is a loaded model: weights, RoPE table, and the operations that a forward pass consists
/// of.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/compute/compute.h"
#include "engine/model/config.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rows/rope.h"

namespace quire {

struct ModelOptions {
  WeightFormat weights = WeightFormat::kBF16;
  DType kv_dtype = DType::kF16;    ///< of stored and cached KV
  std::int64_t max_positions = 0;  ///< RoPE table length; 0: config.max_position_embeddings
  /// Number of first layers that are read, with the final norm and the head behind them; 0: all.
  std::int32_t first_layers = 0;
};

/// QkvRows are raw projections of some rows: q [rows, num_heads * head_dim], k and v [rows,
/// num_kv_heads * head_dim]. They are f32 row-major in one buffer with row stride ld.
struct QkvRows {
  const float *q, *k, *v;
  std::int64_t rows, ld;
};

/// kDevicePieceRows is the number of rows that the widest parts of a layer process at once on a
/// device.
inline constexpr std::int64_t kDevicePieceRows = 2048;

/// Returns the upper bound of the bytes that multiplying takes on a device with nothing but one of
/// `devices` shares of each matrix (Compute::devices()).
std::int64_t share_compute_bytes(const ModelConfig& config, std::int64_t devices);

/// Model is immutable after load. Threads: the compute methods from one thread at a time (the
/// engine thread); the rest from any. Activations are f32 [rows, hidden_size] row-major, in
/// compute().memory() if it is not null; calls return as those of Compute do.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const ModelOptions& options() const = 0;
  virtual const RopeTable& rope() const = 0;
  /// Returns a SHA-256 over the names, shapes, dtypes and bytes of every tensor used, and over the
  /// config fields that affect results.
  virtual const std::array<std::uint8_t, 32>& weights_digest() const = 0;
  /// Returns the bytes that a decode step must read: packed weights including the head, without the
  /// embedding table of an untied model.
  virtual std::int64_t decode_weight_bytes() const = 0;
  virtual std::int64_t memory_bytes() const = 0;
  /// Makes a model that shares the weights and RoPE table and has its own buffers. Its compute
  /// methods may run concurrently with those of this one, with the same results.
  virtual std::unique_ptr<Model> twin() const = 0;
  /// Packs rows of the head as the head is packed: a product with them gives the logits of only
  /// these tokens, with the same bits. Null if the rows are not available: the head is not the
  /// embedding table, or a device keeps that table. Errors: kInvalidArgument (id outside the
  /// vocabulary), those of Compute::pack().
  virtual Result<std::unique_ptr<ComputeMatrix>> head_rows(
      std::span<const std::int32_t> token_ids) const = 0;
  /// Returns the Compute of the methods below, for other operations of a pass.
  virtual Compute& compute() const = 0;

  /// Computes x[i] = embedding(ids[i]). Errors: kInvalidArgument (id outside the vocabulary).
  virtual Status embed(std::span<const std::int32_t> ids, float* x) const = 0;
  /// The same of ids in the memory of compute(), which must not be null; they are not checked.
  virtual Status embed_drawn(const std::int32_t* ids, std::int64_t rows, float* x) const = 0;
  /// Computes input norm, QKV projection, bias and QK-norm of `layer`, before RoPE. The rows stay
  /// valid until the next call.
  virtual Result<QkvRows> project_qkv(std::int32_t layer, const float* x, std::int64_t rows) = 0;
  /// Returns the dtype in which finish_layer() of so many rows reads attention: f32, or bf16 on a
  /// device. It rounds f32 to it itself, with the same bits.
  virtual DType attention_dtype(std::int32_t layer, std::int64_t rows) const = 0;
  /// Computes x += o_proj(attention); x += mlp(norm(x)). attention: [rows, num_heads * head_dim] of
  /// `dtype`, which is f32 or attention_dtype().
  virtual Status finish_layer(std::int32_t layer, float* x, const void* attention, DType dtype,
                              std::int64_t rows) = 0;
  /// Computes the final norm: out [rows, hidden_size]; `x` is not changed. Both lie in ordinary
  /// memory, and the result is complete when the call returns.
  virtual Status final_norm(const float* x, std::int64_t rows, float* out) = 0;
  /// Computes final norm and head: logits [rows, vocab_size]. `x` is not changed.
  virtual Status logits(const float* x, std::int64_t rows, float* out) = 0;
};

/// Reads a Hugging Face folder (config.json, *.safetensors single or sharded), or a GGUF file:
/// `dir` is the file, or a folder with one (engine/gguf/gguf.h, find_gguf). A wrong, inconsistent
/// or truncated file is refused with its name and the reason; nothing is read past its end. Logs
/// progress for large models. Errors: kNotFound (no such file), kInvalidArgument (field() is the
/// config key, file or tensor), kUnimplemented, kResourceExhausted (it does not fit in memory),
/// kIo. `compute` keeps the weights and runs the model; null: the CPU.
Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& dir,
                                          const ModelOptions& options,
                                          std::shared_ptr<Compute> compute = nullptr);

/// Makes a model with random weights of a given shape for speed measurements, with the same code
/// path and no files. Deterministic in `seed`.
Result<std::unique_ptr<Model>> make_random_model(const ModelConfig& config,
                                                 const ModelOptions& options, std::uint64_t seed,
                                                 std::shared_ptr<Compute> compute = nullptr);

}  // namespace quire
