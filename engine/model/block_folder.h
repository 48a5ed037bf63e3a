/// BlockFolder is what the sources of quantised folders share. Internal to engine/model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

namespace quire {

inline constexpr std::int64_t kBlockInputs = 32;  ///< of the blocks that matrices become

/// A BlockFolder reads tensors that it does not know as values of the folder, and keeps the blocks
/// that matrices are turned into until drop().
class BlockFolder : public WeightSource {
 public:
  BlockFolder(const TensorFolder& folder, std::string location);

  void drop(const WeightTensor& tensor) override;
  std::string location() const override { return location_; }
  std::int64_t total_bytes() const override { return values_->total_bytes(); }
  std::vector<std::string> unused() const override;

 protected:
  Result<WeightTensor> values(const std::string& name, std::vector<std::int64_t> shape,
                              const char* from) {
    return values_->get(name, std::move(shape), from);
  }
  /// Returns the tensor, which must have `type` and `shape`, and counts it as used. Errors:
  /// kInvalidArgument (missing, or another one).
  Result<std::span<const std::byte>> part(const std::string& name, std::string_view type,
                                          const std::vector<std::int64_t>& shape);
  Status missing(const std::string& name) const;
  Status wrong(const TensorView& view, const std::string& name, const std::string& wanted) const;
  /// Makes a matrix [n, k] of blocks; write(output, input, to) writes the one that begins there,
  /// from any thread.
  WeightTensor as_blocks(
      const std::string& name, std::int64_t n, std::int64_t k, BlockType type,
      const std::function<void(std::int64_t output, std::int64_t input, std::byte* to)>& write);

  const TensorFolder& folder_;
  const std::string location_;
  std::set<std::string> used_;  ///< tensors that matrices were made of

 private:
  const std::unique_ptr<WeightSource> values_;
  std::map<std::string, std::vector<std::byte>> blocks_;
};

}  // namespace quire
