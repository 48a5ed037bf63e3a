/// Keys of a retrieval head for the tokens of one sequence, on the device, rotated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/retrieve/device_pool.h"
#include "engine/retrieve/retrieval_head.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/kv.h"

namespace quire {

/// Rows are tokens in the order they were added. Threads: one at a time.
class HeadKeys {
 public:
  /// Both must outlive it. `dtype` f32, f16 or bf16.
  HeadKeys(DevicePool& device, const RetrievalHead& head, DType dtype) : device_(device), head_(head), dtype_(dtype) {}

  /// raw: [positions.size(), key_dim()] f32 before rotation. Errors: kResourceExhausted, kInvalidArgument (a position past the head's table); nothing is added then.
  Status append(const float* raw, std::span<const std::int32_t> positions);

  std::int64_t num_rows() const { return static_cast<std::int64_t>(positions_.size()); }
  /// A cache of which the values are the keys. Valid until the next append().
  KvView view() const;
  std::int64_t bytes() const;
  static std::int64_t bytes_for(const RetrievalHeadConfig& head, DType dtype, std::int64_t rows);

 private:
  DevicePool& device_;
  const RetrievalHead& head_;
  const DType dtype_;
  std::vector<DeviceBuffer> memory_;  ///< a page each: [num_kv_heads][kPageTokens][head_dim]
  std::vector<const void*> pages_;
  std::vector<std::int32_t> positions_;
  bool sorted_ = true;          ///< positions ascend strictly
  std::vector<float> rotated_;  ///< scratch
};

}  // namespace quire
