/// Keys of a retrieval head for the tokens of one sequence, on the device, rotated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/head/retrieval_head.h"
#include "engine/retrieve/key_codes.h"
#include "kernels/kv.h"
#include "kernels/turned_rows.h"

namespace quire {

/// What a step scores.
struct TurnedKeys {
  TurnedRows rows;                ///< pairs of channels, bf16
  const std::int32_t* positions;  ///< [rows.num_rows]
  bool sorted;                    ///< positions ascend strictly
};

/// Rows are tokens in the order they were added, bf16. They lie turned around; where codes pay
/// (kernels/key_codes.h) row by row, and beside them, on the host, their codes. Threads: one at a
/// time.
class HeadKeys {
 public:
  /// Both must outlive it.
  HeadKeys(DevicePool& device, const RetrievalHead& head);

  /// raw: [positions.size(), key_dim()] f32 before rotation. Errors: kResourceExhausted,
  /// kInvalidArgument (a position past the head's table); nothing is added then.
  Status append(const float* raw, std::span<const std::int32_t> positions);

  /// scores [target_kv_heads, num_rows()] of a rotated query [query_dim()] at `position`, for a
  /// choice of `chosen` rows: head_scores(). Where rows have codes and there are many, scores by
  /// codes, and by the keys themselves of somewhat more rows than are chosen. `heads`: whose scores
  /// are wanted, null: all. Errors: kResourceExhausted (no host memory for codes).
  Status score(const float* query, std::int32_t position, std::int32_t target_kv_heads,
               std::int64_t chosen, const std::vector<bool>* heads, std::vector<float>& scores);

  std::int64_t num_rows() const { return static_cast<std::int64_t>(positions_.size()); }
  bool has_codes() const { return has_codes_; }
  /// Where there are no codes. Valid until the next append().
  TurnedKeys view() const;
  /// Where there are: keys as those of a cache, `values` of no matter. Valid until the next
  /// append().
  KvView rows() const;
  std::int64_t bytes() const;
  static std::int64_t bytes_for(const RetrievalHeadConfig& head, std::int64_t rows);

 private:
  DevicePool& device_;
  std::uint16_t* pair_at(std::int64_t row, std::int32_t kv_head, std::int32_t pair) const;

  const RetrievalHead& head_;
  const bool has_codes_;
  std::vector<PoolMemory> memory_;  ///< a block each
  std::vector<const std::uint16_t*> blocks_;
  std::vector<const void*> pages_;  ///< the same
  KeyCodes codes_;                  ///< as far as they were scored by
  std::vector<std::int32_t> positions_;
  bool sorted_ = true;          ///< positions ascend strictly
  std::vector<float> rotated_;  ///< scratch
};

}  // namespace quire
