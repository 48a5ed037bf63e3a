/// Where a model's tensors come from: the files of a folder, a GGUF file (gguf_model.h), or a
/// random generator. Internal to engine/model and to those who load a part of a model.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/model/config.h"
#include "engine/model/safetensors.h"
#include "kernels/quant_blocks.h"

namespace quire {

/// A tensor's elements, row-major. Valid until WeightSource::drop() of it.
struct WeightTensor {
  std::string name;
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t num_elements = 0;
  /// Lies in a mapped file: valid as long as that, even after the source is gone
  bool mapped = false;
  /// Set: `data` are blocks of this type, row by row, at any address; dtype says nothing
  std::optional<BlockType> blocks;

  std::span<const std::byte> bytes() const {
    const auto elements = static_cast<std::size_t>(num_elements);
    return {static_cast<const std::byte*>(data),
            blocks ? elements / static_cast<std::size_t>(block_weights(*blocks)) *
                         static_cast<std::size_t>(block_bytes(*blocks))
                   : elements * dtype_bytes(dtype)};
  }
  /// "f32", "Q4_K", ...
  std::string_view type_name() const {
    return blocks ? block_type_name(*blocks) : dtype_name(dtype);
  }
};

/// Embedding tables up to this size are copied; larger ones are read from the mapped file, a few
/// rows a call, where the host computes.
inline constexpr std::size_t kCopyEmbeddingBytes = 64 << 20;

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The tensor `name`, which must have `shape`. `from` says which config keys the shape comes
  /// from, for the error. Errors: kInvalidArgument (missing, wrong shape or type; field() is the
  /// file), kUnimplemented (dtype).
  virtual Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                                   const char* from) = 0;
  /// The tensor is not needed any more.
  virtual void drop(const WeightTensor& tensor) = 0;
  /// Where to look, for errors and log lines.
  virtual std::string location() const = 0;
  /// Bytes of all files; 0 when nothing is read.
  virtual std::int64_t total_bytes() const = 0;
  /// What is there and was never asked for.
  virtual std::vector<std::string> unused() const = 0;
};

/// The tensors of a mapped folder. The folder must outlive the source.
std::unique_ptr<WeightSource> file_weights(const TensorFolder& folder, std::string location);

/// Uniform bf16 values scaled so that activations keep their size; norms near 1. Equal for equal
/// seed and name.
std::unique_ptr<WeightSource> random_weights(std::uint64_t seed);

/// Digest of tensors in the order they are added, over names, shapes, dtypes and bytes.
class WeightsDigest {
 public:
  WeightsDigest();
  ~WeightsDigest();
  /// Hashes the tensors (on all cores) and refuses values that are not finite. Errors:
  /// kInvalidArgument naming the tensor.
  Status add(std::span<const WeightTensor> tensors);
  void add_text(std::string_view text);
  std::array<std::uint8_t, 32> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The config fields that change what the weights compute, as text for the digest.
std::string config_digest_text(const ModelConfig& config);

}  // namespace quire
