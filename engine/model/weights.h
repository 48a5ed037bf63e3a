/// WeightSource provides a model's tensors: from the files of a folder, a GGUF file (gguf_model.h),
/// or a random generator. Internal to engine/model and to callers that load a part of a model.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/index.h"
#include "base/status.h"
#include "engine/model/config.h"
#include "engine/model/safetensors.h"
#include "kernels/matmul/quant_blocks.h"

namespace quire {

/// WeightTensor is a tensor's elements, row-major. Valid until WeightSource::drop() of it.
struct WeightTensor {
  std::string name;
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t num_elements = 0;
  /// Whether the data lies in a mapped file and is valid as long as that, even after the source is
  /// destroyed.
  bool mapped = false;
  /// If set, `data` are blocks of this type, row by row, at any address; dtype is meaningless.
  std::optional<BlockType> blocks;

  std::span<const std::byte> bytes() const {
    const auto elements = to_size(num_elements);
    return {static_cast<const std::byte*>(data),
            blocks ? elements / to_size(block_weights(*blocks)) * to_size(block_bytes(*blocks))
                   : elements * dtype_bytes(dtype)};
  }
  /// "f32", "Q4_K", ...
  std::string_view type_name() const {
    return blocks ? block_type_name(*blocks) : dtype_name(dtype);
  }
};

/// kCopyEmbeddingBytes is the largest embedding table that is copied. Where the host computes,
/// larger ones are read from the mapped file, a few rows a call.
inline constexpr std::size_t kCopyEmbeddingBytes = 64 << 20;

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Returns the tensor `name`, which must have `shape`. `from` names the config keys of the shape
  /// for the error. Errors: kInvalidArgument (missing, wrong shape or type; field() is the file),
  /// kUnimplemented (dtype).
  virtual Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape,
                                   const char* from) = 0;
  /// Tells the source that the tensor is not needed any more.
  virtual void drop(const WeightTensor& tensor) = 0;
  /// Returns the location of the tensors for errors and log lines.
  virtual std::string location() const = 0;
  /// Returns the bytes of all files; 0 if it reads none.
  virtual std::int64_t total_bytes() const = 0;
  /// Returns the names of tensors that were never requested.
  virtual std::vector<std::string> unused() const = 0;
  /// Returns whether the digest of the weights covers their bytes, which takes seconds for large
  /// models.
  virtual bool hashes_bytes() const { return true; }
};

/// Makes the source of a mapped folder's tensors. The folder must outlive the source.
std::unique_ptr<WeightSource> file_weights(const TensorFolder& folder, std::string location);

/// Makes uniform bf16 values, scaled so that activations keep their size, and norms near 1. They
/// are equal for equal seed and name.
std::unique_ptr<WeightSource> random_weights(std::uint64_t seed);

/// Makes values as random_weights() does, of which all matrices with as many columns have the same.
/// Their bytes are not hashed, so models of equal shape have equal digests.
std::unique_ptr<WeightSource> repeating_weights(std::uint64_t seed);

/// WeightsDigest hashes tensors in the order they are added, over names, shapes, dtypes, bytes
/// and the version of how blocks are packed (kernels/matmul/group_of_blocks.h).
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

/// Returns the config fields that change what the weights compute, as text for the digest.
std::string config_digest_text(const ModelConfig& config);

}  // namespace quire
