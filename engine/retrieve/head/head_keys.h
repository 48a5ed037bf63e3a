/// HeadKeys holds a retrieval head's rotated keys for the tokens of one sequence on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/head/retrieval_head.h"
#include "engine/retrieve/key_codes.h"
#include "kernels/choice/transposed_rows.h"
#include "kernels/rows/kv.h"

namespace quire {

/// TransposedKeys are the keys that a step scores.
struct TransposedKeys {
  TransposedRows rows;            ///< pairs of channels, bf16
  const std::int32_t* positions;  ///< [rows.num_rows]
  bool sorted;                    ///< positions ascend strictly
};

/// HeadKeys stores bf16 rows in the order in which their tokens were added. Keys are transposed. If
/// codes pay (kernels/choice/key_codes.h) they are row-major instead, and their codes lie on the
/// host. Threads: one at a time.
class HeadKeys {
 public:
  /// Makes an empty object. Both arguments must outlive it.
  HeadKeys(DevicePool& device, const RetrievalHead& head);

  /// Appends keys from `raw`, [positions.size(), key_dim()] f32 before rotation. Errors:
  /// kResourceExhausted, kInvalidArgument (a position past the head's table); nothing is added
  /// then.
  Status append(const float* raw, std::span<const std::int32_t> positions);

  /// Computes head_scores(), scores [target_kv_heads, num_rows()], of a rotated query [query_dim()]
  /// at `position`, for a choice of `chosen` rows. Many rows with codes are scored by codes, and
  /// slightly more rows than are chosen by the keys themselves; `heads`: whose scores are wanted,
  /// null: all. Errors: kResourceExhausted (no host memory for codes).
  Status score(const float* query, std::int32_t position, std::int32_t target_kv_heads,
               std::int64_t chosen, const std::vector<bool>* heads, std::vector<float>& scores);

  std::int64_t num_rows() const { return count_of(positions_); }
  bool has_codes() const { return has_codes_; }
  /// Returns the transposed keys; only without codes. Valid until the next append().
  TransposedKeys view() const;
  /// Returns the keys like those of a cache, with unspecified `values`; only with codes. Valid
  /// until the next append().
  KvView rows() const;
  std::int64_t bytes() const;
  static std::int64_t bytes_for(const RetrievalHeadConfig& head, std::int64_t rows);

 private:
  DevicePool& device_;
  std::uint16_t* pair_at(std::int64_t row, std::int32_t kv_head, std::int32_t pair) const;

  const RetrievalHead& head_;
  const bool has_codes_;
  std::vector<PoolMemory> memory_;  ///< one block each
  std::vector<const std::uint16_t*> blocks_;
  std::vector<const void*> pages_;  ///< the same blocks as page pointers
  KeyCodes codes_;                  ///< of the rows that were scored by codes so far
  std::vector<std::int32_t> positions_;
  bool sorted_ = true;          ///< positions ascend strictly
  std::vector<float> rotated_;  ///< scratch
};

}  // namespace quire
