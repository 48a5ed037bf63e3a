/// Keys of a retrieval head for the tokens of one sequence, on the device, rotated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/retrieve/device_pool.h"
#include "engine/retrieve/retrieval_head.h"
#include "kernels/base/status.h"
#include "kernels/turned_rows.h"

namespace quire {

/// What a step scores.
struct TurnedKeys {
  TurnedRows rows;                 ///< pairs of channels, bf16
  const std::int32_t* positions;   ///< [rows.num_rows]
  bool sorted;                     ///< positions ascend strictly
};

/// Rows are tokens in the order they were added. Threads: one at a time.
class HeadKeys {
 public:
  /// Both must outlive it.
  HeadKeys(DevicePool& device, const RetrievalHead& head) : device_(device), head_(head) {}

  /// raw: [positions.size(), key_dim()] f32 before rotation. Errors: kResourceExhausted, kInvalidArgument (a position past the head's table); nothing is added then.
  Status append(const float* raw, std::span<const std::int32_t> positions);

  std::int64_t num_rows() const { return static_cast<std::int64_t>(positions_.size()); }
  /// Valid until the next append().
  TurnedKeys view() const;
  std::int64_t bytes() const;
  static std::int64_t bytes_for(const RetrievalHeadConfig& head, std::int64_t rows);

 private:
  DevicePool& device_;
  const RetrievalHead& head_;
  std::vector<PoolMemory> memory_;  ///< a block each
  std::vector<const std::uint16_t*> blocks_;
  std::vector<std::int32_t> positions_;
  bool sorted_ = true;          ///< positions ascend strictly
  std::vector<float> rotated_;  ///< scratch
};

}  // namespace quire
