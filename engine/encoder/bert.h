/// The forward pass of BERT on the CPU: every token sees every other of its sequence.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/encoder/encoder_config.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"
#include "kernels/matmul/matmul.h"

namespace quire {

/// One input: ids and, behind the first separator of a pair, another type.
struct BertInput {
  std::vector<std::int32_t> ids;
  std::size_t second = SIZE_MAX;  ///< index of the first token of type 1
};

/// A matrix in its stored type.
struct BertTable {
  std::vector<std::byte> bytes;
  DType dtype = DType::kF32;
};

/// Reads the tensors of a folder, named with or without the prefix `bert.`.
class BertTensors {
 public:
  /// Errors: those of TensorFolder::open().
  static Result<BertTensors> open(const std::filesystem::path& folder);

  /// Returns the tensor's values, which must have this shape. Errors: those of WeightSource::get(),
  /// kInvalidArgument (values that are not finite; field() is the tensor).
  Result<std::vector<float>> floats(const std::string& name, std::vector<std::int64_t> shape);
  /// Returns [n, k] matrices one below the other, packed. Errors: as floats().
  Result<std::unique_ptr<PackedMatrix>> matrix(std::span<const std::string> names, std::int64_t n,
                                               std::int64_t k, WeightFormat format);
  /// Returns a table as stored. Errors: as floats().
  Result<BertTable> table(const std::string& name, std::vector<std::int64_t> shape);
  bool has(const std::string& name) const { return folder_->find(full_name(name)).entry; }
  /// Returns a digest of all tensors that were read, and ends it.
  std::array<std::uint8_t, 32> digest() { return digest_->finish(); }

 private:
  std::string full_name(const std::string& name) const;
  Result<WeightTensor> get(const std::string& name, std::vector<std::int64_t> shape);

  std::unique_ptr<TensorFolder> folder_;
  std::unique_ptr<WeightSource> source_;
  std::unique_ptr<WeightsDigest> digest_;
};

/// A model's weights. Immutable; threads: any.
class Bert {
 public:
  /// Reads what the layers need; `tensors` is not kept. Errors: those of BertTensors.
  static Result<Bert> load(const BertConfig& config, WeightFormat format, BertTensors& tensors);

  /// Writes the states behind the last layer, [all tokens of all inputs, hidden], to `out`. Each
  /// input has 1 to `positions` tokens. A row depends on its own input only, whatever the batch.
  /// Errors: kInvalidArgument (an id or a length out of range).
  Status run(std::span<const BertInput> inputs, std::vector<float>& out) const;

  const BertConfig& config() const { return config_; }
  /// Returns the bytes of all matrices.
  std::int64_t bytes() const;

 private:
  struct Norm {
    std::vector<float> weight, bias;
  };
  struct Product {
    std::unique_ptr<PackedMatrix> weights;
    std::vector<float> bias;
  };
  struct Layer {
    Product qkv, attention_out, up, down;
    Norm attention_norm, norm;
  };

  Status check(std::span<const BertInput> inputs) const;
  void embed(std::span<const BertInput> inputs, float* x) const;
  Status attend(std::span<const BertInput> inputs, const float* qkv, float* out) const;
  Status apply(const Norm& norm, std::int64_t rows, float* x) const;
  static Status multiply(const Product& product, std::int64_t rows, const float* x, float* y);

  BertConfig config_;
  BertTable words_;
  std::vector<float> positions_, types_;
  Norm embedding_norm_;
  std::vector<Layer> layers_;
};

}  // namespace quire
